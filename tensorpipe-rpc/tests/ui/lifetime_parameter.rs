use tensorpipe_rpc::tensor_service;

#[tensor_service]
pub trait Embedder {
    async fn embed<'a>(&self, text: std::borrow::Cow<'a, str>) -> u64;
}

fn main() {}
