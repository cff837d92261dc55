use tensorpipe::Tensor;
use tensorpipe_rpc::{CallContext, tensor_service};

#[tensor_service]
trait Store {
    async fn push(&self, value: Tensor, #[tensor(device = "cuda:0")] cx: &CallContext);
}

fn main() {}
