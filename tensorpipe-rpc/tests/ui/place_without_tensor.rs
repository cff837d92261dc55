use std::collections::HashMap;

use tensorpipe::Tensor;
use tensorpipe_rpc::{Stream, Streaming, tensor_service};

type Tokens = Vec<Option<u32>>;

#[tensor_service]
trait Store {
    async fn push(&self, #[tensor(device = "cuda:0")] key: String, value: Tensor);
    async fn embed(&self, #[tensor(device = "cuda:0")] tokens: Tokens) -> Tensor;
    async fn feed(&self, #[tensor(device = "cuda:0")] tokens: Streaming<(u64, Tokens)>);
    #[tensor(device = "cuda:0")]
    async fn sizes(&self) -> Result<HashMap<String, u64>, String>;
    #[tensor(device = "cuda:0")]
    fn tokens(&self) -> impl Stream<Item = Tokens>;
}

fn main() {}
