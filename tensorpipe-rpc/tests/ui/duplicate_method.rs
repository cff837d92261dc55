use tensorpipe_rpc::tensor_service;

#[tensor_service]
pub trait Embedder {
    async fn embed(&self, text: String) -> u64;
    async fn embed(&self, tokens: Vec<u32>) -> u64;
}

fn main() {}
