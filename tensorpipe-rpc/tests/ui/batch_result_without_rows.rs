use tensorpipe::Tensor;
use tensorpipe_rpc::tensor_service;

#[tensor_service]
pub trait Embedder {
    #[rpc(batch(max_size = 32, max_wait = "2ms"))]
    async fn count(&self, ids: Tensor) -> Result<u64, String>;
}

fn main() {}
