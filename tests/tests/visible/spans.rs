//! One trace from end to end: a call to another process, whose handler calls back into this one.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use tensorpipe::Context;
use tensorpipe::transports::{TcpTransport, Transport};
use tensorpipe_rpc::{CallContext, Server, TraceContext, tensor_service};
use tensorpipe_tests::{Child, eventually, runtime, say, soon};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

#[tensor_service]
trait Relay {
    /// Calls `work` of a server there.
    async fn relay(&self, url: String, what: u64) -> Result<u64, String>;
    async fn panic(&self) -> u64;
    /// The spans and events that its process has seen.
    async fn seen(&self) -> Vec<BTreeMap<String, String>>;
}

#[tensor_service]
trait Work {
    async fn work(&self, cx: &CallContext, what: u64) -> Result<u64, String>;
}

struct There;

impl Relay for There {
    async fn relay(&self, url: String, what: u64) -> Result<u64, String> {
        let client = WorkClient::connect(url)
            .await
            .map_err(|error| error.to_string())?;
        client.work(what).await.map_err(|error| error.to_string())
    }

    async fn panic(&self) -> u64 {
        panic!("as it was asked to");
    }

    async fn seen(&self) -> Vec<BTreeMap<String, String>> {
        seen("")
    }
}

struct Here;

impl Work for Here {
    async fn work(&self, cx: &CallContext, what: u64) -> Result<u64, String> {
        assert_ne!(cx.trace().trace_id, 0);
        match what {
            0 => Err("nothing to do".to_owned()),
            what => Ok(what),
        }
    }
}

pub(crate) fn play() {
    collect();
    runtime().block_on(async {
        let context = Context::builder().name("relay").token("tests", [7; 16]);
        let context = context.build().unwrap();
        let server = Server::builder()
            .context(&context)
            .service(RelayService::new(There));
        let server = server.listen("tcp://127.0.0.1:0").await.unwrap();
        say("url", server.url());
        server.wait().await;
    });
}

#[test]
fn a_trace_leads_through_two_processes_and_back() {
    collect();
    runtime().block_on(async {
        let child = Child::start("relay", &[]);
        let server = Server::builder().service(WorkService::new(Here));
        let server = server.listen("tcp://127.0.0.1:0").await.unwrap();
        let context = Context::builder().token("tests", [7; 16]).build().unwrap();
        let client = RelayClient::connect_with(&context, child.hear("url"));
        let client = soon("a client", client).await.unwrap();
        let url = server.url().to_string();
        let listening = format!("listening at {url}");
        let mut told = seen("event").into_iter();
        let told = told.find(|event| event.get("message") == Some(&listening));
        assert_eq!(told.expect("it says where")["level"], "INFO");
        assert_eq!(soon("a call", client.relay(&url, 7)).await.unwrap(), 7);

        let there = soon("what it saw", client.seen()).await.unwrap();
        let find = |all: &[BTreeMap<String, String>], name: &str, method: &str| {
            let is = |span: &&BTreeMap<_, _>| {
                span["name"] == name && span.get("method").is_some_and(|m| m == method)
            };
            all.iter()
                .find(is)
                .unwrap_or_else(|| panic!("{name} {method} in {all:?}"))
                .clone()
        };
        let here = seen("");
        let called = find(&here, "rpc.call", "relay");
        let handled = find(&there, "rpc.handle", "relay");
        let called_back = find(&there, "rpc.call", "work");
        let handled_here = find(&here, "rpc.handle", "work");
        let chain = [&called, &handled, &called_back, &handled_here];
        // It began here.
        assert_eq!(called["parent"], "0".repeat(16));
        assert_eq!(called["trace_id"].len(), 32);
        for (outer, inner) in chain.iter().zip(&chain[1..]) {
            assert_eq!(inner["parent"], outer["span_id"], "{chain:?}");
            assert_eq!(inner["trace_id"], outer["trace_id"], "{chain:?}");
        }
        assert_eq!((&*called["service"], &*called["peer"]), ("Relay", "relay"));
        for proved in [&called, &handled] {
            assert_eq!(proved["identity"], "token tests");
        }
        assert!(!called_back.contains_key("identity"), "{called_back:?}");
        // So does what both log of the pipe.
        for all in [&here, &there] {
            let opened = all.iter().filter(|event| {
                event
                    .get("message")
                    .is_some_and(|message| message == "open" && event["transport"] == "shm")
            });
            let proved: Vec<_> = opened.filter_map(|event| event.get("identity")).collect();
            assert_eq!(proved, ["token tests"]);
        }
        assert_eq!(called["call"], handled["call"]);
        assert!(handled["entered"].parse::<u64>().unwrap() >= 1);

        // The next one is another trace; one that is given goes on.
        soon("a call", client.relay(&url, 8)).await.unwrap();
        let given = TraceContext {
            trace_id: 0xabc,
            span_id: 0xdef,
        };
        soon("a call", client.with_trace(given).relay(&url, 9))
            .await
            .unwrap();
        let calls: Vec<_> = seen("rpc.call")
            .into_iter()
            .filter(|span| span["method"] == "relay")
            .collect();
        assert_eq!(calls.len(), 3);
        assert_ne!(calls[1]["trace_id"], calls[0]["trace_id"]);
        assert_eq!(calls[2]["trace_id"], format!("{:032x}", 0xabc));
        assert_eq!(calls[2]["parent"], format!("{:016x}", 0xdef));

        // Failures are told in their spans, as loud as they are bad.
        let _ = soon("a call", client.relay(&url, 0)).await.unwrap_err();
        let _ = soon("a call", client.panic()).await.unwrap_err();
        let there = soon("what it saw", client.seen()).await.unwrap();
        let event = |all: &[BTreeMap<String, String>], outcome: &str, service: &str| {
            let is = |event: &&BTreeMap<_, _>| {
                event.get("outcome").is_some_and(|o| o == outcome) && event["service"] == service
            };
            all.iter()
                .find(is)
                .unwrap_or_else(|| panic!("{outcome} in {all:?}"))
                .clone()
        };
        let here = seen("");
        assert_eq!(event(&here, "service_error", "Work")["level"], "DEBUG");
        assert_eq!(event(&here, "panicked", "Relay")["level"], "ERROR");
        assert_eq!(event(&there, "panicked", "Relay")["level"], "ERROR");
        assert!(event(&here, "panicked", "Relay")["error"].contains("as it was asked to"));

        // Many alike are told a few times, and counted.
        for _ in 0..40 {
            let _ = soon("a call", client.panic()).await.unwrap_err();
        }
        for all in [seen(""), soon("what it saw", client.seen()).await.unwrap()] {
            let alike = all.iter().filter(|event| {
                event.get("outcome").is_some_and(|o| o == "panicked") && event["service"] == "Relay"
            });
            let (loud, quiet): (Vec<_>, Vec<_>) =
                alike.partition(|event| event["level"] == "ERROR");
            assert_eq!(loud.len() + quiet.len(), 41);
            // Five in ten seconds, on a machine that is slow.
            assert!(loud.len() <= 20, "{loud:?}");
        }

        // Its runtime ends, and says no goodbye.
        let url = server.url().to_string();
        let ends = tokio::task::spawn_blocking(|| {
            let client = runtime().block_on(async { WorkClient::connect(url).await });
            client.unwrap()
        });
        let _lost = ends.await.unwrap();
        let is_told = || {
            let mut told = seen("event").into_iter();
            let message = |event: BTreeMap<_, _>| event.get("message").cloned();
            told.any(|event| message(event).is_some_and(|said| said == "a client is lost"))
        };
        eventually("that is told", is_told).await;
    });
}

#[test]
fn a_token_that_nothing_protects_is_warned_of_once() {
    collect();
    runtime().block_on(async {
        let tcp: [Arc<dyn Transport>; 1] = [Arc::new(TcpTransport::new())];
        let context = Context::builder().transports(tcp).token("tests", [7; 16]);
        let context = context.build().unwrap();
        let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        for _ in 0..2 {
            let both = async { tokio::join!(context.connect(listener.url()), listener.accept()) };
            let (client, server) = soon("a pipe", both).await;
            assert!(client.unwrap().route().exposed && server.unwrap().route().exposed);
        }
    });
    let is_warning = |event: &BTreeMap<String, String>| {
        let message = event.get("message");
        message.is_some_and(|words| words.contains("protects nothing that follows"))
    };
    let warnings: Vec<_> = seen("event").into_iter().filter(is_warning).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert_eq!(warnings[0]["level"], "WARN");
}

pub(crate) fn collect() {
    // Once a process.
    let _ = tracing::subscriber::set_global_default(Collector);
}

/// Spans and events by the order in which they came; those of one name, or all.
pub(crate) fn seen(name: &str) -> Vec<BTreeMap<String, String>> {
    let all = all().lock().unwrap();
    all.iter()
        .filter(|span| name.is_empty() || span["name"] == name)
        .cloned()
        .collect()
}

fn all() -> &'static Mutex<Vec<BTreeMap<String, String>>> {
    static ALL: OnceLock<Mutex<Vec<BTreeMap<String, String>>>> = OnceLock::new();
    ALL.get_or_init(Mutex::default)
}

/// Takes what calls have to say. A span's number is its place among `all`, from 1 on.
struct Collector;

struct Fields<'a>(&'a mut BTreeMap<String, String>);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        write!(text, "{value:?}").unwrap();
        self.0.insert(field.name().to_owned(), text);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        matches!(
            metadata.target(),
            "tensorpipe_rpc"
                | "tensorpipe_rpc::server"
                | "tensorpipe_rpc::server::shared"
                | "tensorpipe::negotiate::establish"
        )
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = BTreeMap::from([
            ("name".to_owned(), span.metadata().name().to_owned()),
            ("entered".to_owned(), "0".to_owned()),
        ]);
        span.record(&mut Fields(&mut fields));
        let mut all = all().lock().unwrap();
        all.push(fields);
        Id::from_u64(all.len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut all = all().lock().unwrap();
        let span = event
            .parent()
            .and_then(|id| all.get(id.into_u64() as usize - 1));
        let mut fields = span.cloned().unwrap_or_default();
        if let Some(span) = fields.insert("name".to_owned(), "event".to_owned()) {
            fields.insert("span".to_owned(), span);
        }
        fields.insert("level".to_owned(), event.metadata().level().to_string());
        event.record(&mut Fields(&mut fields));
        all.push(fields);
    }

    fn enter(&self, id: &Id) {
        static ENTERED: AtomicU64 = AtomicU64::new(0);
        let entered = ENTERED.fetch_add(1, Ordering::Relaxed) + 1;
        let mut all = all().lock().unwrap();
        all[id.into_u64() as usize - 1].insert("entered".to_owned(), entered.to_string());
    }

    fn exit(&self, _: &Id) {}
}
