use tensorpipe_rpc::tensor_service;

#[tensor_service]
pub trait Embedder {
    async fn embed<T: serde::Serialize>(&self, text: T) -> u64;
}

fn main() {}
