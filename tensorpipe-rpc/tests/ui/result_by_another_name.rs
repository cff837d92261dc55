use tensorpipe_rpc::{Stream, tensor_service};

type Fallible<T> = Result<T, String>;

#[tensor_service]
pub trait Embedder {
    async fn embed(&self, text: String) -> Fallible<u64>;
    fn tokens(&self) -> impl Stream<Item = Fallible<u64>>;
}

fn main() {}
