#[path = "../mock/mod.rs"]
mod mock;
use mock::CallContext;

#[tensorpipe_macros::tensor_service(crate = "crate::mock")]
pub trait Embedder {
    async fn embed(&self, context: &mut CallContext) -> u64;
}

fn main() {}
