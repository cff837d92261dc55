//! What the generated client and server do.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{Stream, StreamExt as _, stream};
use tensorpipe::Message;
use tensorpipe_rpc::schema::method_id;
use tensorpipe_rpc::{CallContext, CallError, tensor_service};

use super::{connection, pipe};

/// Why a gradient was not added.
#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) enum PushError {
    /// Nothing of this name is stored.
    UnknownName(String),
}

/// A store of named vectors.
#[tensor_service]
pub(crate) trait ParameterServer {
    /// Adds a gradient.
    async fn push(&self, name: String, gradient: Vec<f32>) -> Result<u64, PushError>;

    /// What is stored.
    #[rpc(idempotent)]
    async fn pull(&self, names: Vec<String>) -> HashMap<String, Vec<f32>>;

    /// Borrows the context.
    async fn deadline(&self, cx: &CallContext, factor: u32) -> Duration;

    /// Takes the context.
    async fn owned_context(&self, factor: u32, cx: CallContext) -> Duration;

    /// Answers nothing.
    async fn clear(&self);

    /// Has a body.
    async fn count(&self, unused: String) -> Result<usize, PushError> {
        let all = self.pull(vec!["w".to_owned()]).await;
        if all.is_empty() {
            return Err(PushError::UnknownName(unused));
        }
        Ok(all.len())
    }
}

#[derive(Default)]
struct Store {
    vectors: Mutex<HashMap<String, Vec<f32>>>,
}

impl ParameterServer for Store {
    async fn push(&self, name: String, gradient: Vec<f32>) -> Result<u64, PushError> {
        let mut vectors = self.vectors.lock().unwrap();
        let Some(vector) = vectors.get_mut(&name) else {
            return Err(PushError::UnknownName(name));
        };
        for (value, step) in vector.iter_mut().zip(gradient) {
            *value += step;
        }
        Ok(7)
    }

    async fn pull(&self, names: Vec<String>) -> HashMap<String, Vec<f32>> {
        let vectors = self.vectors.lock().unwrap();
        let wanted = vectors.iter().filter(|(name, _)| names.contains(name));
        wanted
            .map(|(name, vector)| (name.clone(), vector.clone()))
            .collect()
    }

    async fn deadline(&self, cx: &CallContext, factor: u32) -> Duration {
        cx.time_left().unwrap() * factor
    }

    async fn owned_context(&self, factor: u32, cx: CallContext) -> Duration {
        cx.time_left().unwrap() * factor
    }

    async fn clear(&self) {
        self.vectors.lock().unwrap().clear();
    }
}

async fn connected(store: Store) -> ParameterServerClient {
    let connection = connection(ParameterServerService::new(store)).await;
    ParameterServerClient::on(&connection).await.unwrap()
}

fn store() -> Store {
    let vectors = HashMap::from([("w".to_owned(), vec![1.0, 2.0])]);
    Store {
        vectors: Mutex::new(vectors),
    }
}

#[tokio::test]
async fn a_call_reaches_the_service_and_comes_back() {
    let client = connected(store()).await;
    let (name, gradient) = ("w".to_owned(), vec![0.5, 0.5]);
    assert_eq!(client.push(&name, &gradient).await.unwrap(), 7);
    let pulled = client.pull(vec![name, "v".to_owned()]).await.unwrap();
    assert_eq!(pulled, HashMap::from([("w".to_owned(), vec![1.5, 2.5])]));
}

#[tokio::test]
async fn the_context_is_filled_in_by_the_server() {
    let client = connected(store())
        .await
        .with_deadline(Duration::from_secs(3));
    let twice = client.deadline(2).await.unwrap();
    let thrice = client.owned_context(3).await.unwrap();
    for (left, all) in [(twice, 6), (thrice, 9)] {
        let all = Duration::from_secs(all);
        assert!(left <= all && left > all / 2, "{left:?} of {all:?}");
    }
}

#[tokio::test]
async fn a_default_body_serves() {
    let client = connected(store()).await;
    assert_eq!(client.count("unused").await.unwrap(), 1);
    client.clear().await.unwrap();
    let error = client.count("unused").await.unwrap_err();
    match error {
        CallError::Service(error) => {
            assert_eq!(error, PushError::UnknownName("unused".to_owned()))
        }
        other => panic!("{other:?}"),
    }
}

/// Default bodies whose context has no name, or may change.
#[tensor_service]
trait Patterns {
    async fn ignored(&self, _: &CallContext, number: u8) -> u8 {
        number
    }
    async fn dropped(&self, number: u8, _: CallContext) -> u8 {
        number
    }
    async fn changed(&self, mut cx: CallContext) -> bool {
        let first = cx.clone();
        cx = first;
        cx.time_left().is_some()
    }
    fn streamed(&self, mut cx: CallContext) -> impl Stream<Item = bool> {
        let first = cx.clone();
        cx = first;
        stream::iter([cx.time_left().is_some()])
    }
}

impl Patterns for Store {}

#[tokio::test]
async fn a_default_body_takes_its_context_by_any_pattern() {
    let connection = connection(PatternsService::new(store())).await;
    let client = PatternsClient::on(&connection).await.unwrap();
    assert_eq!(client.ignored(7).await.unwrap(), 7);
    assert_eq!(client.dropped(8).await.unwrap(), 8);
    assert!(client.changed().await.unwrap());
    let streamed: Vec<_> = client.streamed().collect().await;
    assert_eq!(streamed.len(), 1);
}

#[test]
fn the_schema_says_what_the_trait_says() {
    let schema = ParameterServerClient::SCHEMA;
    assert_eq!(schema.service, "ParameterServer");
    let signatures: Vec<_> = schema
        .methods
        .iter()
        .map(|method| method.signature)
        .collect();
    assert_eq!(
        signatures,
        [
            "async fn push(&self, name: String, gradient: Vec<f32>) -> Result<u64, PushError>",
            "async fn pull(&self, names: Vec<String>) -> HashMap<String, Vec<f32>>",
            "async fn deadline(&self, factor: u32) -> Duration",
            "async fn owned_context(&self, factor: u32) -> Duration",
            "async fn clear(&self)",
            "async fn count(&self, unused: String) -> Result<usize, PushError>",
        ]
    );
    let idempotent = schema.methods.iter().filter(|method| method.idempotent);
    assert_eq!(
        idempotent.map(|method| method.name).collect::<Vec<_>>(),
        ["pull"]
    );
}

#[test]
fn the_structure_names_every_type() {
    let description = ParameterServerClient::SCHEMA.describe();
    let push = &description.methods[0];
    assert_eq!(push.untraced, [""; 0]);
    for line in ["name: ", "gradient: ", "u64", "UnknownName"] {
        assert!(push.structure.contains(line), "{}", push.structure);
    }
}

/// What the server answers to these bytes as the arguments of a method: kind, and the code of a failure.
async fn answer(method: u32, arguments: &[u8]) -> (u8, u8) {
    let pipe = pipe(ParameterServerService::new(store())).await;
    // See the table in `header.rs`.
    let mut call = vec![1, 28, 0, 0];
    call.extend_from_slice(&7u64.to_le_bytes());
    call.extend_from_slice(&0u32.to_le_bytes());
    call.extend_from_slice(&method.to_le_bytes());
    call.extend_from_slice(&5_000_000u64.to_le_bytes());
    call.extend_from_slice(arguments);
    pipe.send(Message::new(call)).unwrap();
    let reply = pipe.read().await.unwrap().metadata;
    (reply[0], reply[3])
}

#[tokio::test]
async fn surplus_and_missing_arguments_are_refused() {
    const BAD_ARGUMENTS: (u8, u8) = (4, 4);
    let deadline = method_id("deadline");
    assert_eq!(answer(deadline, &[1]).await, (2, 0));
    assert_eq!(answer(deadline, &[]).await, BAD_ARGUMENTS);
    assert_eq!(answer(deadline, &[1, 1]).await, BAD_ARGUMENTS);
}

#[tokio::test]
async fn an_unknown_method_is_refused() {
    assert_eq!(answer(method_id("absent"), &[]).await, (4, 3));
}

#[tokio::test]
async fn clones_share_the_implementation() {
    let store = Arc::new(store());
    let service = ParameterServerService::from_arc(Arc::clone(&store));
    let connection = connection(service.clone()).await;
    let client = ParameterServerClient::on(&connection).await.unwrap();
    client.clone().clear().await.unwrap();
    assert!(store.vectors.lock().unwrap().is_empty());
    assert_eq!(format!("{service:?}"), "ParameterServerService");
}
