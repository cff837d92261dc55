use tensorpipe_rpc::tensor_service;

#[tensor_service(crate = "my crate")]
pub trait Embedder {}

fn main() {}
