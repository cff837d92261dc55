use tensorpipe::Tensor;
use tensorpipe_rpc::tensor_service;

#[tensor_service]
trait Store {
    async fn push(&self, #[tensor] value: Tensor);
}

fn main() {}
