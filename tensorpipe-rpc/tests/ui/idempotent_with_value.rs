use tensorpipe_rpc::tensor_service;

#[tensor_service]
pub trait Embedder {
    #[rpc(idempotent = true)]
    async fn embed(&self, text: String) -> u64;
}

fn main() {}
