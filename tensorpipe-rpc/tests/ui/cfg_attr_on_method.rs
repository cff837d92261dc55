use tensorpipe_rpc::tensor_service;

#[tensor_service]
pub trait Embedder {
    #[cfg_attr(unix, cfg(unix))]
    async fn embed(&self, text: String) -> u64;
}

fn main() {}
