#[path = "../mock/mod.rs"]
mod mock;

#[tensorpipe_macros::tensor_service(crate = "crate::mock")]
pub struct Embedder {
    size: usize,
}

fn main() {
    let _ = Embedder { size: 1 };
}
