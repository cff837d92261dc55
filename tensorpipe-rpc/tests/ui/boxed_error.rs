use tensorpipe_rpc::tensor_service;

#[tensor_service]
pub trait Embedder {
    async fn embed(&self, text: String) -> Result<u64, Box<dyn std::error::Error>>;
}

fn main() {}
