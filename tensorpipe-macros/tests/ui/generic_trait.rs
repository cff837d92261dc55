#[path = "../mock/mod.rs"]
mod mock;

#[tensorpipe_macros::tensor_service(crate = "crate::mock")]
pub trait Embedder<T> {
    async fn embed(&self, text: T) -> u64;
}

fn main() {}
