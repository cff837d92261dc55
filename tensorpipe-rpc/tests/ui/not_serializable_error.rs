use tensorpipe_rpc::tensor_service;

pub enum Refused {}

#[tensor_service]
pub trait Embedder {
    async fn embed(&self, text: String) -> Result<u64, Refused>;
}

fn main() {}
