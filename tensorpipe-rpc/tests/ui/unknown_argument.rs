use tensorpipe_rpc::tensor_service;

#[tensor_service(derive = "Hash")]
pub trait Embedder {
    async fn embed(&self, text: String) -> u64;
}

fn main() {}
