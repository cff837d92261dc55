use tensorpipe::Tensor;
use tensorpipe_rpc::tensor_service;

#[tensor_service]
trait Model {
    #[rpc(batch(max_size = 32, max_wait = "2ms"))]
    async fn run(&self, #[tensor(device = "cuda:0")] rows: Tensor) -> Tensor;
}

fn main() {}
