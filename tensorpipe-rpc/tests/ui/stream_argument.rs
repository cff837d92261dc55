use tensorpipe_rpc::{Stream, tensor_service};

#[tensor_service]
trait Sampler {
    async fn total(&self, samples: impl Stream<Item = u64>) -> u64;
    async fn nested(&self) -> Vec<impl Stream<Item = u64>>;
}

fn main() {}
