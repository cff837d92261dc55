use tensorpipe::Tensor;
use tensorpipe_rpc::tensor_service;

#[tensor_service]
pub trait Embedder {
    #[rpc(batch(max_size = 32, max_wait = "2ms"))]
    fn embed(&self, ids: Tensor) -> impl tensorpipe_rpc::Stream<Item = Tensor>;
}

fn main() {}
