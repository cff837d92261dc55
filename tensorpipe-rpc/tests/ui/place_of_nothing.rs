use tensorpipe::Tensor;
use tensorpipe_rpc::tensor_service;

#[tensor_service]
trait Store {
    #[tensor(device = "cuda:0")]
    async fn push(&self, value: Tensor);
}

fn main() {}
