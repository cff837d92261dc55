#[path = "../mock/mod.rs"]
mod mock;

type Result<T> = std::result::Result<T, u8>;

#[tensorpipe_macros::tensor_service(crate = "crate::mock")]
pub trait Embedder {
    async fn embed(&self, text: String) -> Result<u64>;
}

fn main() {}
