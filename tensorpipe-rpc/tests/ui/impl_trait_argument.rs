use tensorpipe_rpc::tensor_service;

#[tensor_service]
pub trait Embedder {
    async fn embed(&self, text: impl serde::Serialize) -> u64;
}

fn main() {}
