use tensorpipe_rpc::tensor_service;

#[derive(serde::Serialize)]
pub struct Text;

#[tensor_service]
pub trait Embedder {
    async fn embed(&self, text: Text) -> u64;
}

fn main() {}
