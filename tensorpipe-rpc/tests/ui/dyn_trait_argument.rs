use tensorpipe_rpc::tensor_service;

#[tensor_service]
pub trait Embedder {
    async fn embed(&self, text: Box<dyn std::any::Any>) -> u64;
}

fn main() {}
