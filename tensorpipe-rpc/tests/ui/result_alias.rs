use tensorpipe_rpc::tensor_service;

type Result<T> = std::result::Result<T, u8>;

#[tensor_service]
pub trait Embedder {
    async fn embed(&self, text: String) -> Result<u64>;
}

fn main() {}
