use tensorpipe_rpc::tensor_service;

#[tensor_service]
pub unsafe trait Embedder {
    async fn embed(&self, text: String) -> u64;
}

fn main() {}
