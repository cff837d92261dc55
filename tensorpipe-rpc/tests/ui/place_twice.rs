use tensorpipe::Tensor;
use tensorpipe_rpc::tensor_service;

#[tensor_service]
trait Store {
    async fn push(&self, #[tensor(device = "cuda:0")] #[tensor(device = "cuda:1")] value: Tensor);
}

fn main() {}
