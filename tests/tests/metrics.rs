//! Metrics reach the recorder that the application installs, under the documented names. A process has one recorder, so these
//! tests have a binary of their own.
#![allow(missing_docs, reason = "a test")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use futures_util::stream;
use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    with_local_recorder,
};
use tensorpipe::transports::TcpTransport;
use tensorpipe::{Context, DType, Limits, Message, PipeStats, Tensor};
use tensorpipe_rpc::replicas::{Backoff, ReplicaState, ReplicaStatus};
use tensorpipe_rpc::service::Service;
use tensorpipe_rpc::{Remote, Replicas, Server, Stream, Streaming, tensor_service};
use tensorpipe_tests::{answers, eventually, over, runtime, soon};

#[tensor_service]
trait Counted {
    async fn echo(&self, tensor: Tensor) -> Tensor;
    async fn fail(&self) -> Result<u64, String>;
    async fn panic(&self) -> u64;
    async fn sleep(&self) -> u64;
    async fn read(&self) -> u64;
    async fn spell(&self, letters: u64) -> String;
    #[rpc(batch(max_size = 100, max_wait = "1000s"))]
    async fn gather(&self, rows: Tensor) -> Tensor;
    async fn keep(&self) -> Remote<Tensor>;
    fn count(&self, to: u64) -> impl Stream<Item = u64> + Send;
}

struct Plain;

impl Counted for Plain {
    async fn echo(&self, tensor: Tensor) -> Tensor {
        tensor
    }

    async fn fail(&self) -> Result<u64, String> {
        Err("as it was asked to".to_owned())
    }

    async fn panic(&self) -> u64 {
        panic!("as it was asked to");
    }

    async fn sleep(&self) -> u64 {
        std::future::pending().await
    }

    async fn read(&self) -> u64 {
        7
    }

    async fn spell(&self, letters: u64) -> String {
        "a".repeat(letters as usize)
    }

    async fn gather(&self, rows: Tensor) -> Tensor {
        rows
    }

    async fn keep(&self) -> Remote<Tensor> {
        Remote::new(Tensor::scalar(1f32))
    }

    fn count(&self, to: u64) -> impl Stream<Item = u64> + Send {
        stream::iter(0..to)
    }
}

/// Only this test makes references and streams, and has calls of this service.
#[test]
fn calls_streams_references_and_pipes_are_counted() {
    record();
    runtime().block_on(async {
        let server = Server::builder().service(CountedService::new(Plain));
        let server = server.listen("tcp://127.0.0.1:0").await.unwrap();
        let client = CountedClient::connect(server.url().to_string());
        let client = soon("a client", client).await.unwrap();
        assert!(value("tensorpipe_pipes_open") >= 2.0);
        for _ in 0..3 {
            soon("a call", client.echo(Tensor::scalar(1f32))).await.unwrap();
        }
        let _ = soon("a call", client.fail()).await.unwrap_err();
        let _ = soon("a call", client.panic()).await.unwrap_err();
        let sleeping = client.sleep();
        let gathering = client.gather(Tensor::from(vec![1f32]));
        let of = |what: &str, method: &str| value(&format!("tensorpipe_{what} method={method} service=Counted"));
        for method in ["sleep", "gather"] {
            eventually("a call under way", || of("server_calls_in_flight", method) == 1.0).await;
            assert_eq!(of("client_calls_in_flight", method), 1.0);
        }
        drop((sleeping, gathering));
        for method in ["sleep", "gather"] {
            eventually("none under way", || of("server_calls_in_flight", method) == 0.0).await;
            assert_eq!(of("client_calls_in_flight", method), 0.0);
        }
        eventually("its time", || of("server_handler_seconds", "sleep") == 1.0).await;

        let mut limits = Limits::default();
        (limits.metadata, limits.payload) = (400, 10_000);
        let small = Context::builder().limits(limits).build().unwrap();
        let small = CountedClient::connect_with(&small, server.url().to_string());
        let small = soon("a client", small).await.unwrap();
        let _ = soon("a call", small.spell(50_000)).await.unwrap_err();

        let other = CountedClient::connect(answers(&[0xff; 3]).await);
        let other = soon("a client", other).await.unwrap();
        let _ = soon("a call", other.read()).await.unwrap_err();
        let read = |outcome: &str| {
            value(&format!(
                "tensorpipe_client_calls_finished method=read outcome={outcome} service=Counted"
            ))
        };
        assert_eq!((read("decode"), read("ok")), (1.0, 0.0));
        // It is answered, and nobody looks.
        let unread = client.read();
        eventually("its answer", || of("server_calls_started", "read") == 1.0).await;
        let kept = soon("a reference", client.keep()).await.unwrap();
        assert_eq!((of("client_calls_in_flight", "read"), read("ok")), (1.0, 0.0));
        drop(unread);
        assert_eq!((of("client_calls_in_flight", "read"), read("ok")), (0.0, 1.0));

        assert_eq!(value("tensorpipe_references_held"), 1.0);
        drop(kept);
        eventually("none held", || value("tensorpipe_references_held") == 0.0).await;
        let mut items = client.count(100);
        let mut counted = 0;
        while let Some(item) = soon("an item", items.next()).await {
            assert_eq!(item.unwrap(), counted);
            counted += 1;
        }
        for way in ["sent", "received"] {
            assert_eq!(value(&format!("tensorpipe_stream_items_{way}")), 100.0);
        }

        for side in ["client", "server"] {
            for (method, outcome, calls) in [
                ("echo", "ok", 3.0),
                ("fail", "service_error", 1.0),
                ("panic", "panicked", 1.0),
                ("sleep", "cancelled", 1.0),
                ("gather", "cancelled", 1.0),
                ("count", "ok", 1.0),
                // Its result was larger than the client takes.
                ("spell", "bad_reply", 1.0),
                ("spell", "ok", 0.0),
            ] {
                let finished = format!(
                    "tensorpipe_{side}_calls_finished method={method} outcome={outcome} service=Counted"
                );
                // A server counts an answer just after it was sent.
                eventually(&finished, || value(&finished) == calls).await;
            }
            let started = |method: &str| value(&format!("tensorpipe_{side}_calls_started method={method} service=Counted"));
            assert_eq!((started("echo"), started("sleep")), (3.0, 1.0));
        }
        for name in ["tensorpipe_client_call_seconds", "tensorpipe_server_handler_seconds"] {
            assert_eq!(value(&format!("{name} method=echo service=Counted")), 3.0, "{name}");
        }
        // It waited for its batch, and no handler has begun.
        assert_eq!(of("server_handler_seconds", "gather"), 0.0);
        for name in ["bytes_out", "bytes_in", "bytes_copied"] {
            assert!(value(&format!("tensorpipe_pipe_{name}")) > 0.0, "{name}");
        }
    });
}

#[tensor_service]
trait Elsewhere {
    #[rpc(idempotent)]
    async fn name(&self) -> u64;
}

struct Number(u64);

impl Elsewhere for Number {
    async fn name(&self) -> u64 {
        self.0
    }
}

/// Only this test has replicas.
#[test]
fn connects_and_losses_of_replicas_are_counted() {
    record();
    let runtime = runtime();
    let (replicas, _servers) = runtime.block_on(async {
        let serve = async |number, url: &str| {
            let server = Server::builder().service(ElsewhereService::new(Number(number)));
            server.listen(url).await.unwrap()
        };
        let counts = || {
            let connects = value("tensorpipe_replica_connects");
            (connects, value("tensorpipe_replicas_lost"))
        };
        let mut one = serve(1, "tcp://127.0.0.1:0").await;
        let (url, other) = (one.url().to_string(), serve(2, "tcp://127.0.0.1:0").await);
        let backoff = Backoff {
            first: Duration::from_millis(5),
            longest: Duration::from_millis(20),
            ..Backoff::default()
        };
        let replicas = Replicas::builder()
            .urls([&url, &other.url().to_string()])
            .backoff(backoff);
        let replicas = soon("replicas", replicas.connect()).await.unwrap();
        let client = soon("a client", ElsewhereClient::on(&replicas))
            .await
            .unwrap();
        eventually("both there", || counts() == (2.0, 0.0)).await;
        // Whoever lets go of replicas has lost none.
        let let_go = Replicas::builder().urls([url.clone()]);
        let let_go = soon("another", let_go.connect()).await.unwrap();
        eventually("it there, too", || counts() == (3.0, 0.0)).await;
        drop(let_go);
        eventually("it is gone", || one.pipes().len() == 1).await;
        assert_eq!(counts(), (3.0, 0.0));
        for round in [1.0, 2.0, 3.0] {
            // Attempts that come to nothing are not counted.
            soon("its end", one.shutdown()).await;
            eventually("its loss", || counts() == (2.0 + round, round)).await;
            assert_eq!(soon("a call", client.name()).await.unwrap(), 2);
            one = serve(1, &url).await;
            eventually("it again", || counts() == (3.0 + round, round)).await;
        }
        (replicas, [one, other])
    });
    // They are lost, too, when their runtime ends.
    drop(runtime);
    let is_closed = |one: &ReplicaStatus| matches!(one.state, ReplicaState::Closed);
    assert!(replicas.status().iter().all(is_closed));
    assert_eq!(value("tensorpipe_replicas_lost"), 5.0);
}

#[tensor_service]
trait Scales {
    async fn weigh(&self, tensor: Tensor, numbers: Streaming<u64>) -> u64;
}

struct Kitchen;

impl Scales for Kitchen {
    async fn weigh(&self, tensor: Tensor, _: Streaming<u64>) -> u64 {
        tensor.byte_len() as u64
    }
}

/// By a peer that breaks the stream while the call's tensor is on its way.
#[test]
fn a_call_whose_stream_breaks_before_all_of_it_is_here_is_not_run() {
    const CALL: u8 = 1;
    const VALUE: u8 = 2;
    const FAILURE: u8 = 4;
    const ITEMS: u8 = 9;
    record();
    runtime().block_on(async {
        let service = ScalesService::new(Kitchen);
        let method = service.schema().methods[0].id;
        // Bytes through a socket take longer than the word that breaks the stream.
        let context = over(vec![Arc::new(TcpTransport::new())]).build().unwrap();
        let server = Server::builder().context(&context).service(service);
        let server = server.listen("tcp://127.0.0.1:0").await.unwrap();
        let pipe = context.connect(server.url().to_string());
        let pipe = soon("a pipe", pipe).await.unwrap();
        let answer = async || loop {
            let message = soon("an answer", pipe.read()).await.unwrap();
            if [FAILURE, VALUE].contains(&message.metadata[0]) {
                return (message.metadata[0], message.metadata[4]);
            }
        };
        let call = |number: u64| {
            let mut metadata = vec![CALL, 28, 0, 0];
            metadata.extend(number.to_le_bytes());
            metadata.extend(0u32.to_le_bytes());
            metadata.extend(method.to_le_bytes());
            metadata.extend([0; 9]);
            let tensor = Tensor::zeros(DType::U8, [64 << 20]).unwrap();
            pipe.send(Message::new(metadata).tensor(tensor)).unwrap();
        };
        call(1);
        let no_items = [ITEMS, 12, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
        pipe.send(Message::new(no_items.to_vec())).unwrap();
        assert_eq!(answer().await, (FAILURE, 1));
        // All of the first one has come when the second one has.
        call(2);
        assert_eq!(answer().await, (VALUE, 2));
        let of = |what: &str| {
            value(&format!(
                "tensorpipe_server_calls_{what} method=weigh service=Scales"
            ))
        };
        assert_eq!(of("started"), 1.0);
        eventually("none under way", || of("in_flight") == 0.0).await;
    });
}

/// A recorder of its own counts what this thread does.
#[test]
fn a_pipe_that_has_ended_is_not_open_though_its_client_is_there() {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    let book = Book::default();
    with_local_recorder(&book, || {
        runtime.block_on(async {
            let open = || book.value("tensorpipe_pipes_open");
            let server = Server::builder().service(CountedService::new(Plain));
            let server = server.listen("tcp://127.0.0.1:0").await.unwrap();
            let client = CountedClient::connect(server.url().to_string());
            let client = soon("a client", client).await.unwrap();
            assert_eq!(open(), 2.0);
            let tensor = Tensor::zeros(DType::U8, [1 << 20]).unwrap();
            soon("a call", client.echo(tensor)).await.unwrap();
            let mut pipes = server.pipes();
            pipes.push(client.connection().pipe().clone());
            assert_eq!(pipes.len(), 2);
            soon("the end", server.shutdown()).await;
            eventually("both are closed", || open() == 0.0).await;
            // Their goodbyes are part of it.
            let all = |of: fn(&PipeStats) -> u64| {
                let stats = pipes.iter().map(|pipe| of(&pipe.stats()));
                stats.sum::<u64>() as f64
            };
            eventually("all is counted", || {
                book.value("tensorpipe_pipe_bytes_in") == all(|stats| stats.bytes_in)
                    && book.value("tensorpipe_pipe_bytes_out") == all(|stats| stats.bytes_out)
            })
            .await;
            drop(client);
            assert_eq!(open(), 0.0);
        });
    });
}

/// That of the process.
static BOOK: Book = Book(Mutex::new(BTreeMap::new()));

/// Once for the process.
fn record() {
    static RECORDED: Once = Once::new();
    RECORDED.call_once(|| metrics::set_global_recorder(&BOOK).unwrap());
}

fn value(key: &str) -> f64 {
    BOOK.value(key)
}

/// Counters, gauges, and how often a histogram was given something: by their names and labels.
#[derive(Default)]
struct Book(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

impl Book {
    fn entry(&self, key: &str) -> Arc<AtomicU64> {
        let mut book = self.0.lock().unwrap();
        book.entry(key.to_owned()).or_default().clone()
    }

    fn value(&self, key: &str) -> f64 {
        let is_gauge = ["in_flight", "open", "held"]
            .iter()
            .any(|what| key.contains(what));
        let bits = self.entry(key).load(Ordering::SeqCst);
        if is_gauge {
            f64::from_bits(bits)
        } else {
            bits as f64
        }
    }

    fn named(&self, key: &Key) -> Arc<AtomicU64> {
        let mut labels: Vec<_> = key
            .labels()
            .map(|label| format!(" {}={}", label.key(), label.value()))
            .collect();
        labels.sort();
        self.entry(&format!("{}{}", key.name(), labels.concat()))
    }
}

struct Count(Arc<AtomicU64>);

impl HistogramFn for Count {
    fn record(&self, _: f64) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Recorder for Book {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.named(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.named(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(Count(self.named(key))))
    }
}
