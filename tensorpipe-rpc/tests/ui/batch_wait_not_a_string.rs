use tensorpipe::Tensor;
use tensorpipe_rpc::tensor_service;

#[tensor_service]
pub trait Embedder {
    #[rpc(batch(max_size = 32, max_wait = 2))]
    async fn embed(&self, ids: Tensor) -> Tensor;
    #[rpc(batch(max_size = "32", max_wait = "2ms"))]
    async fn sum(&self, ids: Tensor) -> Tensor;
}

fn main() {}
