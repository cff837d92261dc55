use tensorpipe_rpc::tensor_service;

pub struct Text;

#[tensor_service]
pub trait Embedder {
    async fn embed(&self, text: Vec<Text>) -> u64;
}

fn main() {}
