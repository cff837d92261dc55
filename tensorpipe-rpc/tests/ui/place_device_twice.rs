use tensorpipe::Tensor;
use tensorpipe_rpc::tensor_service;

#[tensor_service]
trait Store {
    #[tensor(device = "cuda:0", device = "cuda:1")]
    async fn pull(&self) -> Tensor;
}

fn main() {}
