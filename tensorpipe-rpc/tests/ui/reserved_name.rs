use tensorpipe_rpc::tensor_service;

#[tensor_service]
pub trait Embedder {
    async fn connect(&self, text: String) -> u64;
}

fn main() {}
