#[path = "../mock/mod.rs"]
mod mock;

#[tensorpipe_macros::tensor_service(crate = "crate::mock")]
pub trait Embedder {
    async fn costarring(&self, text: String) -> u64;
    async fn liquid(&self, text: String) -> u64;
}

fn main() {}
