//! What the generated client and server do, over a runtime in memory.

mod mock;

use mock::{CallContext, CallError, Connection, Service, run};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tensorpipe_macros::tensor_service;

/// Why a gradient was not added.
#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum PushError {
    /// Nothing of this name is stored.
    UnknownName(String),
}

/// A store of named vectors.
#[tensor_service(crate = "crate::mock")]
pub trait ParameterServer {
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
        cx.deadline * factor
    }

    async fn owned_context(&self, factor: u32, cx: CallContext) -> Duration {
        cx.deadline * factor
    }

    async fn clear(&self) {
        self.vectors.lock().unwrap().clear();
    }
}

fn connected(store: Store) -> ParameterServerClient {
    let connection = Connection(Arc::new(ParameterServerService::new(store)));
    run(ParameterServerClient::on(&connection)).unwrap()
}

fn store() -> Store {
    let vectors = HashMap::from([("w".to_owned(), vec![1.0, 2.0])]);
    Store {
        vectors: Mutex::new(vectors),
    }
}

#[test]
fn a_call_reaches_the_service_and_comes_back() {
    let client = connected(store());
    assert_eq!(run(client.push("w", vec![0.5, 0.5])), Ok(7));
    let pulled = run(client.pull(vec!["w".to_owned(), "v".to_owned()])).unwrap();
    assert_eq!(pulled, HashMap::from([("w".to_owned(), vec![1.5, 2.5])]));
}

#[test]
fn arguments_are_taken_by_value_and_by_reference() {
    let client = connected(store());
    let (name, gradient) = ("w".to_owned(), vec![1.0, 1.0]);
    run(client.push(&name, &gradient)).unwrap();
    run(client.push(name, gradient)).unwrap();
    assert_eq!(
        run(client.pull(vec!["w".to_owned()])).unwrap()["w"],
        [3.0, 4.0]
    );
}

#[test]
fn the_services_own_error_comes_back_typed() {
    let error = run(connected(store()).push("v", vec![])).unwrap_err();
    assert_eq!(
        error,
        CallError::Service(PushError::UnknownName("v".to_owned()))
    );
}

#[test]
fn the_context_is_filled_in_by_the_server() {
    let client = connected(store()).with_deadline(Duration::from_secs(3));
    assert_eq!(run(client.deadline(2)).unwrap(), Duration::from_secs(6));
    assert_eq!(
        run(client.owned_context(3)).unwrap(),
        Duration::from_secs(9)
    );
}

#[test]
fn a_default_body_serves() {
    let client = connected(store());
    assert_eq!(run(client.count("unused")), Ok(1));
    run(client.clear()).unwrap();
    let error = run(client.count("unused")).unwrap_err();
    assert_eq!(
        error,
        CallError::Service(PushError::UnknownName("unused".to_owned()))
    );
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
    let mut tracer = mock::__private::Tracer::default();
    (ParameterServerClient::SCHEMA.methods[0].structure)(&mut tracer);
    assert_eq!(
        tracer.0,
        [
            "name: alloc::string::String",
            "gradient: alloc::vec::Vec<f32>",
            "-> u64",
            "error service::PushError",
        ]
    );
}

#[test]
fn surplus_and_missing_arguments_are_refused() {
    let service = ParameterServerService::new(store());
    let handle = |bytes: &[u8]| {
        let arguments = mock::__private::Arguments(bytes.to_vec());
        let context = CallContext {
            deadline: Duration::ZERO,
        };
        run(service.call(2, arguments, context)).0
    };
    assert!(handle(&[1]).is_ok());
    assert!(handle(&[]).unwrap_err().starts_with("bad arguments"));
    assert!(handle(&[1, 1]).unwrap_err().starts_with("bad arguments"));
}

#[test]
fn an_unknown_method_is_refused() {
    let service = ParameterServerService::new(store());
    let context = CallContext {
        deadline: Duration::ZERO,
    };
    let arguments = mock::__private::Arguments(Vec::new());
    assert_eq!(
        run(service.call(6, arguments, context)).0.unwrap_err(),
        "unknown method 6"
    );
}

#[test]
fn clones_share_the_implementation() {
    let store = Arc::new(store());
    let service = ParameterServerService::from_arc(Arc::clone(&store));
    let connection = Connection(Arc::new(service.clone()));
    let client = run(ParameterServerClient::on(&connection)).unwrap();
    run(client.clone().clear()).unwrap();
    assert!(store.vectors.lock().unwrap().is_empty());
    assert_eq!(format!("{service:?}"), "ParameterServerService");
}
