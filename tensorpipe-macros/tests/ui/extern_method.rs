#[path = "../mock/mod.rs"]
mod mock;

#[tensorpipe_macros::tensor_service(crate = "crate::mock")]
pub trait Embedder {
    async extern "C" fn embed(&self, text: String) -> u64;
}

fn main() {}
