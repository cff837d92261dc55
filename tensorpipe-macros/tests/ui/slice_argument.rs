#[path = "../mock/mod.rs"]
mod mock;

#[tensorpipe_macros::tensor_service(crate = "crate::mock")]
pub trait Embedder {
    async fn embed(&self, tokens: Option<&[u32]>) -> u64;
}

fn main() {}
