use tensorpipe_rpc::tensor_service;

#[tensor_service]
pub trait Embedder {
    fn embed(&self, text: String) -> u64;
}

fn main() {}
