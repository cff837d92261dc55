use tensorpipe_rpc::tensor_service;

#[tensor_service]
pub trait Embedder {
    async fn embed(&self, #[cfg(unix)] text: String) -> u64;
}

fn main() {}
