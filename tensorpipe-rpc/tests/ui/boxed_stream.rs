use std::pin::Pin;

use futures_util::stream::BoxStream;
use tensorpipe_rpc::{Stream, tensor_service};

#[tensor_service]
trait Sampler {
    fn sample(&self) -> Pin<Box<dyn Stream<Item = u64> + Send>>;
    fn tokens(&self) -> BoxStream<'static, String>;
}

fn main() {}
