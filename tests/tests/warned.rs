//! What a program hears that logs warnings only, as with `RUST_LOG=warn`.
#![allow(missing_docs, reason = "a test")]

use std::fmt::{Debug, Write};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Recorder, SharedString, Unit};
use serde::ser::Error as _;
use serde::{Deserialize, Serialize, Serializer};
use tensorpipe::Context;
use tensorpipe_rpc::replicas::{ReplicaState, ReplicaStatus};
use tensorpipe_rpc::{CallError, ConnectError, Replicas, Server, ServerLimits, tensor_service};
use tensorpipe_tests::{answers, eventually, runtime, soon};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

#[path = "warned/replicas.rs"]
mod replicas;

#[tensor_service]
trait Fragile {
    async fn fail(&self) -> u64;

    async fn wait(&self) -> u64;

    async fn block(&self) -> u64;

    async fn put(&self, secret: Secret);

    async fn set(&self, secret: Secret);
}

#[derive(Clone, Deserialize)]
struct Secret;

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(S::Error::custom("whoever has it keeps it"))
    }
}

/// As a later version defines it.
mod newer {
    #[tensorpipe_rpc::tensor_service]
    pub(super) trait Fragile {
        async fn added(&self) -> u64;
    }
}

#[tensor_service]
trait Elsewhere {
    async fn there(&self) -> u64;
}

struct Panics;

impl Fragile for Panics {
    async fn fail(&self) -> u64 {
        panic!("{} as it was asked to", "very ".repeat(60));
    }

    async fn wait(&self) -> u64 {
        std::future::pending().await
    }

    async fn block(&self) -> u64 {
        std::thread::sleep(Duration::from_millis(1200));
        7
    }

    async fn put(&self, _: Secret) {}

    async fn set(&self, _: Secret) {}
}

async fn fragile() -> Server {
    let server = Server::builder().service(FragileService::new(Panics));
    server.listen("tcp://127.0.0.1:0").await.unwrap()
}

#[test]
fn a_failed_call_is_told_at_both_ends() {
    collect();
    runtime().block_on(async {
        let server = fragile().await;
        let client = FragileClient::connect(server.url().to_string()).await;
        let _ = soon("a call", client.unwrap().fail()).await.unwrap_err();
    });
    for end in ["rpc.call", "rpc.handle"] {
        let line = said(&[
            "ERROR",
            "the call failed",
            "Fragile",
            "method=\"fail\"",
            "panicked",
            end,
        ]);
        assert!((1..=5).contains(&line.len()), "{:?}", said(&[]));
    }
    // The client's has all of it.
    let line = said(&["the call failed", "rpc.call", "as it was asked to"]);
    assert!((1..=5).contains(&line.len()), "{:?}", said(&[]));
}

/// No process takes spans.
#[test]
fn a_result_that_cannot_be_read_is_told() {
    collect();
    runtime().block_on(async {
        let url = answers(&[0xff; 3]).await;
        let client = FragileClient::connect(&url).await.unwrap();
        let error = soon("a call", client.block()).await.unwrap_err();
        assert!(matches!(error, CallError::Decode(_)), "{error}");
        let replicas = Replicas::builder().urls([url]).connect().await.unwrap();
        let client = FragileClient::on(&replicas).await.unwrap();
        let error = soon("a call", client.wait()).await.unwrap_err();
        assert!(matches!(error, CallError::Decode(_)), "{error}");
    });
    for method in ["block", "wait"] {
        let method = format!("method=\"{method}\"");
        let words = [
            "ERROR",
            "the call failed",
            "rpc.call",
            "\"decode\"",
            &method,
        ];
        assert_eq!(said(&words).len(), 1, "{:?}", said(&[]));
    }
}

#[test]
fn an_argument_that_cannot_be_sent_is_told() {
    collect();
    runtime().block_on(async {
        let server = fragile().await;
        let url = server.url().to_string();
        let client = FragileClient::connect(&url).await.unwrap();
        let error = soon("a call", client.put(Secret)).await.unwrap_err();
        assert!(matches!(error, CallError::Encode(_)), "{error}");
        let replicas = Replicas::builder().urls([url]).connect().await.unwrap();
        let client = FragileClient::on(&replicas).await.unwrap();
        let error = soon("a call", client.set(Secret)).await.unwrap_err();
        assert!(matches!(error, CallError::Encode(_)), "{error}");
    });
    for method in ["put", "set"] {
        let method = format!("method=\"{method}\"");
        let words = ["WARN", "the call failed", "rpc.call", "keeps it", &method];
        assert_eq!(said(&words).len(), 1, "{:?}", said(&[]));
    }
}

/// In a process of its own, since a process has one subscriber.
fn plays_again(test: &str, variable: &str, value: &str) {
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.env(variable, value).args(["--exact", test]);
    assert!(again.status().unwrap().success(), "{test}");
}

/// As with `RUST_LOG=error`.
#[test]
fn what_is_an_error_is_told_where_warnings_are_not() {
    plays_again("a_failed_call_is_told_at_both_ends", ERRORS_ONLY, "");
}

/// As with `RUST_LOG=info,tensorpipe_rpc=warn`.
#[test]
fn a_failed_call_is_told_where_others_may_have_spans() {
    plays_again("a_failed_call_is_told_at_both_ends", OTHERS_SPANS, "");
}

#[test]
fn a_caller_has_its_answer_whatever_the_servers_subscriber_does() {
    for told in [
        "a_failed_call_is_told_at_both_ends",
        "a_server_tells_of_clients_that_get_no_service",
        "a_server_tells_of_calls_that_it_refuses",
        "a_server_tells_of_calls_that_are_not_allowed",
        "a_server_tells_of_a_handler_that_blocks",
    ] {
        plays_again(told, PANICS, "");
    }
    for at in ["enter", "exit", "close"] {
        plays_again("a_caller_hears_the_words_of_a_panic", SPANS_PANIC, at);
    }
}

#[test]
fn a_caller_hears_the_words_of_a_panic() {
    collect();
    runtime().block_on(async {
        let server = fragile().await;
        let client = FragileClient::connect(server.url().to_string()).await;
        let client = client.unwrap();
        for _ in 0..2 {
            let error = soon("a call", client.fail()).await.unwrap_err();
            assert!(error.to_string().contains("as it was asked to"), "{error}");
        }
    });
}

#[test]
fn a_server_tells_of_clients_that_get_no_service() {
    collect();
    runtime().block_on(async {
        let server = fragile().await;
        let url = server.url().to_string();
        for _ in 0..20 {
            let client = ElsewhereClient::connect(&url).await;
            let error = client.expect_err("it is not there");
            assert!(matches!(error, ConnectError::NoService { .. }), "{error}");
        }
    });
    let words = [
        "WARN",
        "a client gets no service",
        "has no service `Elsewhere`",
    ];
    let lines = said(&words);
    assert!((1..=15).contains(&lines.len()), "{} lines", lines.len());
}

#[test]
fn a_server_tells_of_calls_that_it_refuses() {
    collect();
    runtime().block_on(async {
        let mut limits = ServerLimits::default();
        limits.calls_per_connection = 1;
        let server = Server::builder().service(FragileService::new(Panics));
        let server = server.limits(limits).listen("tcp://127.0.0.1:0").await;
        let client = FragileClient::connect(server.as_ref().unwrap().url().to_string()).await;
        let client = client.unwrap();
        let waits = client.wait();
        let refused = soon("a call", client.wait()).await.unwrap_err();
        assert!(matches!(refused, CallError::Overloaded(_)), "{refused}");
        drop(waits);
    });
    let words = [
        "WARN",
        "a call is refused",
        "calls of this connection are under way",
    ];
    assert_eq!(said(&words).len(), 1, "{:?}", said(&[]));
}

#[test]
fn both_ends_tell_of_a_method_that_the_server_lacks() {
    collect();
    runtime().block_on(async {
        let server = Server::builder().service(FragileService::new(Panics));
        let server = server.listen("tcp://127.0.0.1:0").await.unwrap();
        let url = server.url().to_string();
        let client = newer::FragileClient::connect(url).await.unwrap();
        let error = soon("a call", client.added()).await.unwrap_err();
        assert!(matches!(error, CallError::Unimplemented(_)), "{error}");
    });
    for words in [
        [
            "rpc.call",
            "the server has no method of `Fragile` with the id 0x",
            "it was built with another version of the service",
        ],
        [
            "a call is refused",
            "no method of `Fragile` with the id 0x",
            "the client was built with a method that this server lacks",
        ],
    ] {
        assert_eq!(said(&words).len(), 1, "{:?}", said(&[]));
    }
}

#[test]
fn a_server_tells_of_calls_that_are_not_allowed() {
    collect();
    runtime().block_on(async {
        let server = Server::builder().service(FragileService::new(Panics));
        let server = server.authorize(|_, _, method| match method {
            "wait" => Err("not today".to_owned()),
            _ => panic!("no idea"),
        });
        let server = server.listen("tcp://127.0.0.1:0").await.unwrap();
        let client = FragileClient::connect(server.url().to_string()).await;
        let client = client.unwrap();
        for call in [client.wait(), client.fail()] {
            let error = soon("a call", call).await.unwrap_err();
            assert!(matches!(error, CallError::Denied(_)), "{error}");
        }
    });
    for words in [
        ["WARN", "a call is not allowed", "not today"],
        ["ERROR", "who decides on calls panicked", "no idea"],
    ] {
        assert_eq!(said(&words).len(), 1, "{:?}", said(&[]));
    }
}

#[test]
fn a_server_tells_of_a_handler_that_blocks() {
    collect();
    runtime().block_on(async {
        let server = fragile().await;
        let client = FragileClient::connect(server.url().to_string()).await;
        let answer = soon("a call", client.unwrap().block()).await;
        assert_eq!(answer.unwrap(), 7);
    });
    let words = ["WARN", "a handler kept its thread", "Fragile"];
    assert_eq!(said(&words).len(), 1, "{:?}", said(&[]));
}

#[test]
fn a_listener_tells_of_those_who_have_another_secret() {
    collect();
    let with = |secret| Context::builder().token("ours", [secret; 16]).build();
    runtime().block_on(async {
        let listener = with(1).unwrap().listen(["tcp://127.0.0.1:0"]).await;
        let listener = listener.unwrap();
        let (other, none) = (with(2).unwrap(), Context::new());
        other.connect(listener.url()).await.unwrap_err();
        let words = ["WARN", "a handshake failed", "to prove token `ours`"];
        eventually("a warning", || said(&words).len() == 1).await;
        let listener = none.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        other.connect(listener.url()).await.unwrap_err();
        let words = ["WARN", "a handshake failed", "asks for proof of a token"];
        eventually("a warning", || !said(&words).is_empty()).await;
    });
}

/// Once a process.
fn collect() {
    let _ = tracing::subscriber::set_global_default(Warnings);
    if std::env::var_os(PANICS).is_some() {
        metrics::set_global_recorder(Breaks).unwrap();
    }
}

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The lines with all of these words.
fn said(words: &[&str]) -> Vec<String> {
    let all = SAID.lock().unwrap();
    let has = |line: &&String| words.iter().all(|word| line.contains(word));
    all.iter().filter(has).cloned().collect()
}

/// The variable of a process that hears of errors only.
const ERRORS_ONLY: &str = "ERRORS_ONLY";

/// The variable of a process whose other crates may say more.
const OTHERS_SPANS: &str = "OTHERS_SPANS";

/// The variable of a process whose subscriber panics over new spans, and what a server says of a call. Its recorder of metrics panics
/// always.
const PANICS: &str = "PANICS";

/// The variable of a process that takes spans, and whose subscriber panics when one of them does this.
const SPANS_PANIC: &str = "SPANS_PANIC";

/// The variable of a process that hears of more than warnings.
const INFO_TOO: &str = "INFO_TOO";

/// Hears of these, and of what is worse.
fn heard() -> Level {
    let is_set = |variable| std::env::var_os(variable).is_some();
    match is_set(ERRORS_ONLY) {
        true => Level::ERROR,
        false if [PANICS, SPANS_PANIC, INFO_TOO].into_iter().any(is_set) => Level::INFO,
        false => Level::WARN,
    }
}

fn panics_at(what: &str) {
    let at = std::env::var(SPANS_PANIC);
    assert!(at.as_deref() != Ok(what), "a subscriber's own");
}

/// What a server says of a call.
const OF_A_SERVER: [&str; 6] = [
    "rpc.handle",
    "a client gets no service",
    "a call is refused",
    "a call is not allowed",
    "who decides on calls panicked",
    "a handler kept its thread",
];

/// A recorder that panics whenever it is asked.
struct Breaks;

impl Recorder for Breaks {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &metrics::Metadata<'_>) -> Counter {
        panic!("a recorder's own")
    }

    fn register_gauge(&self, _: &Key, _: &metrics::Metadata<'_>) -> Gauge {
        panic!("a recorder's own")
    }

    fn register_histogram(&self, _: &Key, _: &metrics::Metadata<'_>) -> Histogram {
        panic!("a recorder's own")
    }
}

struct Warnings;

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {field}={value:?}");
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= heard()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        match std::env::var_os(OTHERS_SPANS) {
            Some(_) => Some(LevelFilter::INFO),
            None => Some(heard().into()),
        }
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        let is_servers = OF_A_SERVER.iter().any(|words| line.0.contains(words));
        let panics = is_servers && std::env::var_os(PANICS).is_some();
        SAID.lock().unwrap().push(line.0);
        assert!(!panics, "a subscriber's own");
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        assert!(std::env::var_os(PANICS).is_none(), "a subscriber's own");
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {
        panics_at("enter");
    }

    fn exit(&self, _: &Id) {
        panics_at("exit");
    }

    fn try_close(&self, _: Id) -> bool {
        panics_at("close");
        true
    }
}
