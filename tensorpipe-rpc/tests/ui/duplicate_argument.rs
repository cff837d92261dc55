use tensorpipe_rpc::tensor_service;

#[tensor_service]
pub trait Embedder {
    async fn embed(&self, text: String, text: String) -> u64;
}

fn main() {}
