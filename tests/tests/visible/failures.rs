//! Calls that fail outside of their handlers: each is told once, in the span of the call that the server handles.

use std::time::Duration;

use tensorpipe::{Context, Limits};
use tensorpipe_rpc::{CallError, Server, ServerLimits, tensor_service};
use tensorpipe_tests::{runtime, soon};

use crate::spans::{collect, seen};

#[tensor_service]
trait Careless {
    /// So many letters.
    async fn spell(&self, letters: u64) -> String;
    async fn fail(&self) -> u64;
    /// Keeps its thread.
    async fn block(&self, ms: u64) -> u64;
}

struct Hasty;

impl Careless for Hasty {
    async fn spell(&self, letters: u64) -> String {
        "a".repeat(letters as usize)
    }

    async fn fail(&self) -> u64 {
        panic!("as it was asked to");
    }

    async fn block(&self, ms: u64) -> u64 {
        std::thread::sleep(Duration::from_millis(ms));
        ms
    }
}

/// What servers said of calls of this method, with the level, the outcome and the error.
fn told(method: &str) -> Vec<[String; 3]> {
    let is = |field: Option<&String>, what: &str| field.is_some_and(|field| field == what);
    let mut told = seen("event");
    told.retain(|event| {
        let of = |field| event.get(field);
        is(of("service"), "Careless") && is(of("method"), method) && is(of("span"), "rpc.handle")
    });
    let fields = ["level", "outcome", "error"];
    told.iter()
        .map(|event| fields.map(|field| event.get(field).cloned().unwrap_or_default()))
        .collect()
}

fn is_told(method: &str, level: &str, outcome: &str, words: &str) {
    match &told(method)[..] {
        [[is_level, is_outcome, error]] => {
            assert_eq!([&**is_level, is_outcome], [level, outcome], "{method}");
            assert!(error.contains(words), "{method}: {error}");
        }
        other => panic!("{method}: {other:?}"),
    }
}

#[test]
fn what_fails_outside_of_a_handler_is_told_in_the_span_of_its_call() {
    collect();
    runtime().block_on(async {
        let serve = async |limits| {
            let server = Server::builder().service(CarelessService::new(Hasty));
            let server = server.limits(limits).listen("tcp://127.0.0.1:0").await;
            server.unwrap()
        };
        let server = serve(ServerLimits::default()).await;
        let mut limits = Limits::default();
        (limits.metadata, limits.payload) = (400, 10_000);
        let small = Context::builder().limits(limits).build().unwrap();
        let url = server.url().to_string();
        let client = CarelessClient::connect_with(&small, &url).await.unwrap();

        let error = soon("a call", client.spell(50_000)).await.unwrap_err();
        assert!(matches!(error, CallError::BadReply(_)), "{error}");
        is_told("spell", "ERROR", "bad_reply", "10000");

        let error = soon("a call", client.fail()).await.unwrap_err();
        assert!(matches!(error, CallError::Panicked { .. }), "{error}");
        is_told("fail", "ERROR", "panicked", "as it was asked to");

        let mut limits = ServerLimits::default();
        limits.longest_call = Duration::from_millis(50);
        let server = serve(limits).await;
        let client = CarelessClient::connect(server.url().to_string()).await;
        let error = soon("a call", client.unwrap().block(200))
            .await
            .unwrap_err();
        assert!(matches!(error, CallError::Deadline { .. }), "{error}");
        is_told("block", "WARN", "deadline", "its deadline passed");
    });
}
