use tensorpipe::Tensor;
use tensorpipe_rpc::tensor_service;

#[tensor_service]
pub trait Embedder {
    #[rpc(batch)]
    async fn embed(&self, ids: Tensor) -> Tensor;
}

fn main() {}
