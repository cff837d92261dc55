use tensorpipe::Tensor;
use tensorpipe_rpc::tensor_service;

#[tensor_service]
#[tensor(device = "cuda:0")]
trait Store {
    async fn pull(&self) -> Tensor;
}

fn main() {}
