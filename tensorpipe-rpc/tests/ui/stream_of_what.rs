use tensorpipe_rpc::{Stream, Streaming, tensor_service};

struct Secret;

#[tensor_service]
trait Sampler {
    fn sample(&self) -> impl Stream<Item = Secret>;
    async fn total(&self, samples: Streaming<&str>) -> u64;
}

fn main() {}
