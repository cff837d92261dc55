use tensorpipe::Tensor;
use tensorpipe_rpc::tensor_service;

#[tensor_service]
pub trait Embedder {
    #[rpc(batch(max_size = 32, max_wait = "2ms"))]
    async fn embed(&self, ids: Tensor, masks: Vec<Tensor>) -> Tensor;
}

fn main() {}
