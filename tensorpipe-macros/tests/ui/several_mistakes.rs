#[path = "../mock/mod.rs"]
mod mock;

#[tensorpipe_macros::tensor_service(crate = "crate::mock")]
pub trait Embedder {
    fn embed(&self, text: &str) -> std::io::Result<u64>;
    async fn on(self);
}

fn main() {}
