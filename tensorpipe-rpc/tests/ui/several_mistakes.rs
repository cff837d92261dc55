use tensorpipe_rpc::tensor_service;

#[tensor_service]
pub trait Embedder {
    fn embed(&self, text: &str) -> std::io::Result<u64>;
    async fn on(self);
}

fn main() {}
