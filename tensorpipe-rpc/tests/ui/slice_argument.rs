use tensorpipe_rpc::tensor_service;

#[tensor_service]
pub trait Embedder {
    async fn embed(&self, tokens: Option<&[u32]>) -> u64;
}

fn main() {}
