#[path = "../mock/mod.rs"]
mod mock;

pub struct Text;

#[tensorpipe_macros::tensor_service(crate = "crate::mock")]
pub trait Embedder {
    async fn embed(&self, text: Vec<Text>) -> u64;
}

fn main() {}
