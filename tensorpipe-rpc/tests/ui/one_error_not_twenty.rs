use tensorpipe_rpc::{Server, tensor_service};

#[tensor_service]
pub trait Embedder {
    async fn embed(&self, text: &str) -> u64;
    async fn size(&self) -> u64;
}

fn main() {
    let _ = async {
        let client = EmbedderClient::connect("tcp://a:1").await.unwrap();
        let _: u64 = client.embed("a").await.unwrap() + client.size().await.unwrap();
        let _ = Server::builder().service(EmbedderService::new(One));
    };
}

struct One;

impl Embedder for One {
    async fn embed(&self, _: &str) -> u64 { 1 }
    async fn size(&self) -> u64 { 1 }
}
