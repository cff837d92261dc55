use std::pin::Pin;

use tensorpipe_rpc::tensor_service;

#[tensor_service]
pub trait Embedder {
    fn embed(&self, text: String) -> impl Future<Output = u64>;
    fn norm(&self) -> Pin<Box<dyn Future<Output = f32> + Send>>;
    async fn size(&self) -> impl Future<Output = u64>;
}

fn main() {}
