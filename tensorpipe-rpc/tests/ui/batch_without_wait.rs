use tensorpipe::Tensor;
use tensorpipe_rpc::tensor_service;

#[tensor_service]
pub trait Embedder {
    #[rpc(batch(max_size = 32))]
    async fn embed(&self, ids: Tensor) -> Tensor;
}

fn main() {}
