use tensorpipe_rpc::{CallContext, tensor_service};

#[tensor_service]
pub trait Embedder {
    async fn embed(&self, one: &CallContext, two: CallContext) -> u64;
}

fn main() {}
