use tensorpipe::Tensor;
use tensorpipe_rpc::tensor_service;

#[tensor_service]
trait Store {
    async fn push(&self, value: Tensor);
    async fn pull(#[tensor(device = "cuda:0")] &self) -> Tensor;
}

fn main() {}
