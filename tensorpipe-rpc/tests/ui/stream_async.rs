use tensorpipe_rpc::{Stream, tensor_service};

#[tensor_service]
trait Sampler {
    async fn sample(&self) -> impl Stream<Item = u64>;
}

fn main() {}
