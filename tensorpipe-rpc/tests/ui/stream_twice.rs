use tensorpipe_rpc::{Streaming, tensor_service};

#[tensor_service]
trait Sampler {
    async fn merge(&self, left: Streaming<u64>, right: Streaming<u64>) -> u64;
}

fn main() {}
