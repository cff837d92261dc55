#[path = "../mock/mod.rs"]
mod mock;

#[tensorpipe_macros::tensor_service(crate = "crate::mock")]
pub trait Embedder {
    async fn embed(&self, text: &str) -> u64;
    async fn size(&self) -> u64;
}

fn main() {
    let client: EmbedderClient = mock::run(EmbedderClient::connect("shm://a")).unwrap();
    let _ = mock::run(client.embed("a")).unwrap() + mock::run(client.size()).unwrap();
    let service = EmbedderService::new(One);
    let _ = mock::Connection(std::sync::Arc::new(service));
}

struct One;

impl Embedder for One {
    async fn embed(&self, _: &str) -> u64 { 1 }
    async fn size(&self) -> u64 { 1 }
}
