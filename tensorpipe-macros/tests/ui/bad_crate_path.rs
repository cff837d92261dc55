#[path = "../mock/mod.rs"]
mod mock;

#[tensorpipe_macros::tensor_service(crate = "my crate")]
pub trait Embedder {}

fn main() {}
