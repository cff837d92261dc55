use tensorpipe::Tensor;
use tensorpipe_rpc::tensor_service;

#[tensor_service]
trait Store {
    async fn push(&self, #[tensor(device = "gpu")] value: Tensor);
}

fn main() {}
