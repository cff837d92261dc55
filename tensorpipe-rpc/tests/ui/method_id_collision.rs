use tensorpipe_rpc::tensor_service;

#[tensor_service]
pub trait Embedder {
    async fn costarring(&self, text: String) -> u64;
    async fn liquid(&self, text: String) -> u64;
}

fn main() {}
