use tensorpipe_rpc::tensor_service;

#[tensor_service]
pub trait Embedder {
    async fn embed(&self, text: std::borrow::Cow<'_, str>) -> u64;
}

fn main() {}
