#[path = "../mock/mod.rs"]
mod mock;

pub enum Refused {}

#[tensorpipe_macros::tensor_service(crate = "crate::mock")]
pub trait Embedder {
    async fn embed(&self, text: String) -> Result<u64, Refused>;
}

fn main() {}
