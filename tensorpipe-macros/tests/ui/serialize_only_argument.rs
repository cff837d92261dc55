#[path = "../mock/mod.rs"]
mod mock;

#[derive(serde::Serialize)]
pub struct Text;

#[tensorpipe_macros::tensor_service(crate = "crate::mock")]
pub trait Embedder {
    async fn embed(&self, text: Text) -> u64;
}

fn main() {}
