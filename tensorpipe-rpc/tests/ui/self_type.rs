use tensorpipe_rpc::tensor_service;

#[tensor_service]
pub trait Embedder {
    async fn embed(&self, other: Option<Self>) -> u64;
}

fn main() {}
