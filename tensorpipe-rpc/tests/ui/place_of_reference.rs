use tensorpipe::Tensor;
use tensorpipe_rpc::{Remote, tensor_service};

#[tensor_service]
trait Store {
    #[tensor(device = "cuda:0")]
    async fn keep(&self, value: Tensor) -> Remote<Tensor>;
    async fn drop_it(&self, #[tensor(device = "cuda:0")] value: Remote<Tensor>);
}

fn main() {}
