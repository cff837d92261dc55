use tensorpipe_rpc::tensor_service;

#[tensor_service]
pub trait Embedder<T> {
    async fn embed(&self, text: T) -> u64;
}

fn main() {}
