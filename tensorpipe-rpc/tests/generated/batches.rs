//! Batched methods: what the adapter has for them, beside the user's names and `#[cfg]`s.

use tensorpipe::Tensor;
use tensorpipe_rpc::{CallContext, tensor_service};

use super::connection;

/// The arguments have the names of generated variables.
#[tensor_service]
trait Batched {
    #[cfg(not(test))]
    #[rpc(batch(max_size = 1, max_wait = "0s"))]
    async fn absent(&self, x: Tensor, missing: Missing) -> Missing;
    #[rpc(idempotent, batch(max_size = 2, max_wait = "1ms", concurrency = 3))]
    async fn r#type(
        &self,
        batch: Tensor,
        key: u8,
        context: Tensor,
        service: String,
        cx: &CallContext,
        arguments: Vec<f32>,
    ) -> Result<(Tensor, Tensor), String>;
    #[rpc(batch(max_size = 2, max_wait = "0s"))]
    async fn nothing(&self, x: Tensor);
    async fn plain(&self) -> u8;
}

#[derive(Debug)]
struct Here;

impl Batched for Here {
    async fn r#type(
        &self,
        batch: Tensor,
        key: u8,
        context: Tensor,
        service: String,
        _: &CallContext,
        arguments: Vec<f32>,
    ) -> Result<(Tensor, Tensor), String> {
        match (key, service.as_str(), arguments.as_slice()) {
            (7, "s", [0.5]) => Ok((context, batch)),
            other => Err(format!("{other:?}")),
        }
    }

    async fn nothing(&self, _: Tensor) {}

    async fn plain(&self) -> u8 {
        9
    }
}

#[tokio::test]
async fn names_and_attributes_are_the_users_and_clones_of_the_adapter_share_what_they_count() {
    let service = BatchedService::new(Here);
    let batches = service.clone().batches();
    let client = BatchedClient::on(&connection(service).await).await.unwrap();
    let (one, two) = (Tensor::from(vec![1u8]), Tensor::from(vec![2u16]));
    let call = client.r#type(&one, 7, &two, "s", vec![0.5]);
    let (first, second) = call.await.unwrap();
    assert_eq!(first.as_slice::<u16>().unwrap(), [2]);
    assert_eq!(second.as_slice::<u8>().unwrap(), [1]);
    client.nothing(&one).await.unwrap();
    assert_eq!(client.plain().await.unwrap(), 9);

    assert_eq!(batches.stats("type").unwrap().runs, 1);
    assert_eq!(batches.stats("nothing").unwrap().calls, 1);
    assert!(batches.stats("absent").is_none() && batches.stats("plain").is_none());
    let idempotent = BatchedClient::SCHEMA.methods.iter().map(|m| m.idempotent);
    assert_eq!(idempotent.collect::<Vec<_>>(), [true, false, false]);
}
