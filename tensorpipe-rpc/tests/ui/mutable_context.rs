use tensorpipe_rpc::{CallContext, tensor_service};

#[tensor_service]
pub trait Embedder {
    async fn embed(&self, context: &mut CallContext) -> u64;
}

fn main() {}
