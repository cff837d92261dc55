#[path = "../mock/mod.rs"]
mod mock;

#[tensorpipe_macros::tensor_service(crate = "crate::mock")]
pub trait Embedder {
    async fn embed<'a>(&self, text: std::borrow::Cow<'a, str>) -> u64;
}

fn main() {}
