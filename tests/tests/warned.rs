//! What a program hears that logs warnings only, as with `RUST_LOG=warn`.
#![allow(missing_docs, reason = "a test")]

use std::fmt::{Debug, Write};
use std::process::Command;
use std::sync::Mutex;

use tensorpipe::Context;
use tensorpipe_rpc::replicas::{ReplicaState, ReplicaStatus};
use tensorpipe_rpc::{CallError, Replicas, Server, ServerLimits, tensor_service};
use tensorpipe_tests::{eventually, runtime, soon};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

#[tensor_service]
trait Fragile {
    async fn fail(&self) -> u64;

    async fn wait(&self) -> u64;
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
        assert_eq!(line.len(), 1, "{:?}", said(&[]));
    }
    // The client's has all of it.
    let line = said(&["the call failed", "rpc.call", "as it was asked to"]);
    assert_eq!(line.len(), 1, "{:?}", said(&[]));
}

/// In a process of its own, since a process has one subscriber.
fn fails_a_call(variable: &str) {
    let mut again = Command::new(std::env::current_exe().unwrap());
    again
        .env(variable, "")
        .args(["--exact", "a_failed_call_is_told_at_both_ends"]);
    assert!(again.status().unwrap().success());
}

/// As with `RUST_LOG=error`.
#[test]
fn what_is_an_error_is_told_where_warnings_are_not() {
    fails_a_call(ERRORS_ONLY);
}

#[test]
fn a_caller_has_its_answer_whatever_the_servers_subscriber_does() {
    fails_a_call(PANICS);
}

#[test]
fn a_server_tells_of_clients_that_get_no_service() {
    collect();
    runtime().block_on(async {
        let server = fragile().await;
        let url = server.url().to_string();
        for _ in 0..20 {
            let client = ElsewhereClient::connect(&url).await;
            client.expect_err("it is not there");
        }
    });
    let words = [
        "WARN",
        "a client gets no service",
        "has no service `Elsewhere`",
    ];
    let lines = said(&words);
    assert!((1..=3).contains(&lines.len()), "{lines:?}");
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

#[test]
fn the_last_replica_that_is_gone_is_worth_a_warning() {
    collect();
    runtime().block_on(async {
        let servers = [fragile().await, fragile().await];
        let urls = servers.each_ref().map(|server| server.url().to_string());
        let replicas = Replicas::builder().urls(urls).connect().await.unwrap();
        let is_live = |one: &ReplicaStatus| matches!(one.state, ReplicaState::Live);
        let all = || replicas.status().iter().all(is_live);
        eventually("both", all).await;
        for server in servers {
            server.shutdown().await;
        }
        let told = || said(&["WARN", "the last replica is gone", "url="]).len() == 1;
        eventually("a warning", told).await;
    });
}

/// Once a process.
fn collect() {
    let _ = tracing::subscriber::set_global_default(Warnings);
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

/// The variable of a process whose subscriber panics over what a server says of a call.
const PANICS: &str = "PANICS";

/// Hears of these, and of what is worse.
fn heard() -> Level {
    match std::env::var_os(ERRORS_ONLY) {
        Some(_) => Level::ERROR,
        None => Level::WARN,
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
        Some(heard().into())
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        let panics = line.0.contains("rpc.handle") && std::env::var_os(PANICS).is_some();
        SAID.lock().unwrap().push(line.0);
        assert!(!panics, "a subscriber's own");
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
