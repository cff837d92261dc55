//! A handler blocks its thread. Its process stays alive, still answers pings, and answers the call in the end.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use tensorpipe::transports::{MemoryTransport, ShmTransport, TcpTransport, Transport};
use tensorpipe::{Context, ContextBuilder, Error, Tensor, Timeouts};
use tensorpipe_rpc::{CallError, Connection, Server, tensor_service};
use tensorpipe_tests::{Child, alone, eventually, say, soon};
use tokio::runtime::{Builder, Runtime};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Several times as long as [`timeouts`] allow silence.
const BLOCK_MS: u64 = 3000;

#[tensor_service]
trait Blocks {
    /// Keeps the thread that runs the handler.
    async fn block(&self, ms: u64) -> u64;
    /// The same.
    async fn hurry(&self, ms: u64);
    /// The same, for a batch: the rows say how long.
    #[rpc(batch(max_size = 4, max_wait = "1ms"))]
    async fn batch(&self, rows: Tensor) -> Result<Tensor, String>;
}

struct Blocker;

impl Blocks for Blocker {
    async fn block(&self, ms: u64) -> u64 {
        std::thread::sleep(Duration::from_millis(ms));
        ms
    }

    async fn hurry(&self, ms: u64) {
        std::thread::sleep(Duration::from_millis(ms));
    }

    async fn batch(&self, rows: Tensor) -> Result<Tensor, String> {
        let ms = rows.as_slice::<u64>().map_err(|error| error.to_string())?[0];
        std::thread::sleep(Duration::from_millis(ms));
        Ok(rows)
    }
}

fn timeouts(blocked_ms: u64) -> Timeouts {
    let mut timeouts = Timeouts::default();
    timeouts.silence = Some(Duration::from_secs(1));
    timeouts.blocked = Duration::from_millis(blocked_ms);
    timeouts
}

/// A context with this transport, and with tcp, through which another one is found.
fn over(transport: &str) -> ContextBuilder {
    let tcp: Arc<dyn Transport> = Arc::new(TcpTransport::new());
    let transports = match transport {
        "tcp" => vec![tcp],
        "shm" => vec![Arc::new(ShmTransport::new()) as _, tcp],
        "memory" => vec![Arc::new(MemoryTransport::new()) as _],
        other => panic!("no transport {other}"),
    };
    Context::builder().transports(transports)
}

/// With no worker it is a runtime of the thread that blocks on it.
fn runtime(workers: usize) -> Runtime {
    let mut builder = match workers {
        0 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    let builder = builder.worker_threads(workers.max(1)).enable_all();
    builder.build().unwrap()
}

async fn served(context: &Context, url: &str) -> Server {
    let builder = Server::builder().context(context);
    let service = BlocksService::new(Blocker);
    builder.service(service).listen(url).await.unwrap()
}

/// The role of a server whose handlers block. It prints what is logged.
pub(crate) fn serve() {
    let told = |name| std::env::var(name).unwrap();
    let _ = tracing::subscriber::set_global_default(Printer);
    runtime(told("WORKERS").parse().unwrap()).block_on(async {
        let bound = told("BLOCKED").parse().unwrap();
        let context = over(&told("OVER")).timeouts(timeouts(bound));
        let server = served(&context.build().unwrap(), "tcp://127.0.0.1:0").await;
        say("url", server.url());
        server.wait().await;
    });
}

fn child(transport: &str, workers: &str, blocked_ms: &str) -> Child {
    let variables = [
        ("OVER", transport),
        ("WORKERS", workers),
        ("BLOCKED", blocked_ms),
    ];
    Child::start("blocker", &variables)
}

async fn client(transport: &str, url: &str) -> (Connection, BlocksClient) {
    let context = over(transport).timeouts(timeouts(60_000)).build().unwrap();
    let connection = Connection::builder().context(&context).connect(url).await;
    let connection = connection.unwrap();
    let client = BlocksClient::on(&connection).await.unwrap();
    assert_eq!(connection.pipe().route().transport, transport);
    (connection, client)
}

#[test]
fn a_process_whose_handler_blocks_is_not_given_up() {
    alone(async || {
        let ways = ["tcp", "shm"].map(|over| ["0", "1", "2"].map(|workers| (over, workers)));
        let block = async |(over, workers): (&str, &str)| {
            let child = child(over, workers, "60000");
            let (_connection, client) = client(over, &child.hear("url")).await;
            // At rest first, so that one thread of the runtime waits for sockets, and the others for work.
            tokio::time::sleep(Duration::from_millis(300)).await;
            let case = format!("over {over}, with {workers} workers");
            let answer = soon("the answer", client.block(BLOCK_MS)).await;
            assert!(matches!(answer, Ok(BLOCK_MS)), "{case}: {answer:?}");
            client.block(1).await.expect("the same pipe serves on");
            // Its last words may be on their way.
            let has_warned = || child.complaints().contains("kept its thread");
            eventually("the warning", has_warned).await;
            let logged = child.complaints();
            let warned = logged
                .lines()
                .filter(|line| line.contains("kept its thread"));
            let warned: Vec<_> = warned.collect();
            assert_eq!(warned.len(), 1, "{case}: {logged}");
            let names = [r#"service="Blocks""#, r#"method="block""#];
            assert!(names.iter().all(|name| warned[0].contains(name)));
            // While it lasts, another thread says so.
            if workers == "0" {
                assert!(
                    logged.contains("of a pipe does not run"),
                    "{case}: {logged}"
                );
            }
        };
        futures_util::future::join_all(ways.into_iter().flatten().map(block)).await;
    });
}

/// An idle thread of the runtime is sent to look after the sockets that the blocked one has left.
#[test]
fn others_are_served_while_a_handler_blocks_one_of_two_threads() {
    alone(async || {
        let child = child("tcp", "2", "60000");
        let url = child.hear("url");
        let (_one, blocks) = client("tcp", &url).await;
        let (_two, other) = client("tcp", &url).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let blocked = tokio::spawn(async move { blocks.block(4 * BLOCK_MS).await });
        // So that it blocks before the other one asks.
        tokio::time::sleep(Duration::from_millis(300)).await;
        soon("an answer", other.block(1)).await.unwrap();
        assert!(!blocked.is_finished(), "it waited for the other one");
        soon("the answer", blocked).await.unwrap().unwrap();
    });
}

/// It might for ever. However it is polled: on a task of its own, on its connection's since it was short until now, or for a batch.
#[test]
fn a_handler_that_keeps_its_thread_is_told_of_while_it_does() {
    alone(async || {
        let child = child("tcp", "4", "60000");
        let url = child.hear("url");
        let (_one, first) = client("tcp", &url).await;
        let (_two, hurried) = client("tcp", &url).await;
        let (_three, batched) = client("tcp", &url).await;
        // One slow one outweighs many.
        for _ in 0..200 {
            soon("an answer", hurried.hurry(0)).await.unwrap();
        }
        let ms = 4 * BLOCK_MS;
        let rows = Tensor::from_vec(vec![ms], [1, 1]).unwrap();
        let (block, hurry, batch) =
            futures_util::join!(first.block(ms), hurried.hurry(ms), batched.batch(rows));
        assert!(block.is_ok() && hurry.is_ok() && batch.is_ok());
        for method in ["block", "hurry", "batch"] {
            let line = |logged: &str, text: &str| {
                let method = format!(" service=\"Blocks\" method={method:?}");
                let is_it = |line: &str| line.contains(text) && line.contains(&method);
                logged.lines().position(is_it)
            };
            let kept = || line(&child.complaints(), "kept its thread");
            eventually("the last word of it", || kept().is_some()).await;
            let logged = child.complaints();
            let keeps = line(&logged, "keeps its thread");
            assert!(keeps.is_some() && keeps < kept(), "{method}: {logged}");
        }
    });
}

/// Two threads of one process, each with its runtime.
#[test]
fn a_runtime_that_blocks_is_not_given_up_by_another_of_its_process() {
    let (tell, url) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        runtime(0).block_on(async {
            let context = over("memory").timeouts(timeouts(60_000)).build().unwrap();
            let server = served(&context, "memory://blocks").await;
            tell.send(server.url().to_string()).unwrap();
            server.wait().await;
        });
    });
    let url = url.recv_timeout(Duration::from_secs(30)).unwrap();
    alone(async || {
        let (_connection, client) = client("memory", &url).await;
        soon("the answer", client.block(BLOCK_MS)).await.unwrap();
    });
}

/// It was made within `block_on` of a runtime that nobody runs any more, and is used on another one.
#[test]
fn a_client_whose_runtime_nobody_runs_has_its_answers_and_its_deadlines() {
    alone(async || {
        for over in ["tcp", "shm"] {
            // The server has one thread, which blocks: it does not say that a deadline has passed.
            let child = child(over, "0", "60000");
            let url = child.hear("url");
            let made = tokio::task::spawn_blocking(move || {
                let mut builder = Builder::new_current_thread();
                let idle = builder.enable_all().max_blocking_threads(1);
                let idle = idle.build().unwrap();
                let (connection, client) = idle.block_on(client(over, &url));
                // Nor does it have a thread to spare.
                let (end, ends) = std::sync::mpsc::channel::<()>();
                idle.spawn_blocking(move || ends.recv());
                (idle, end, connection, client)
            });
            let (idle, end, _connection, client) = made.await.unwrap();
            for ms in [0, 0, 300] {
                let answer = soon("an answer", client.block(ms)).await;
                assert_eq!(answer.unwrap(), ms, "{over}");
            }
            // Many at once: some leave driving to others.
            let many = (0..50).map(|_| client.block(0));
            for answer in soon("many answers", futures_util::future::join_all(many)).await {
                answer.unwrap();
            }
            let hurried = client.with_deadline(Duration::from_millis(200));
            let error = soon("its deadline", hurried.block(60_000)).await;
            assert!(
                matches!(error, Err(CallError::Deadline { .. })),
                "{over}: {error:?}"
            );
            drop(end);
            tokio::task::spawn_blocking(|| drop(idle)).await.unwrap();
        }
    });
}

#[test]
fn a_runtime_that_blocks_for_longer_than_its_bound_is_given_up() {
    alone(async || {
        let child = child("shm", "0", "1000");
        let (connection, client) = client("shm", &child.hear("url")).await;
        let error = soon("the silence", client.block(60_000)).await.unwrap_err();
        assert!(matches!(error, CallError::Connection { .. }), "{error}");
        let ended = soon("the end", connection.pipe().ended()).await;
        assert!(matches!(ended, Error::Silent { .. }), "{ended}");
    });
}

/// Nothing of it runs, not even what says that it is alive.
#[test]
fn a_process_that_is_stopped_is_given_up() {
    alone(async || {
        for over in ["tcp", "shm"] {
            let child = child(over, "2", "60000");
            let (connection, client) = client(over, &child.hear("url")).await;
            soon("an answer", client.block(0)).await.unwrap();
            child.suspend();
            let ended = soon("the silence", connection.pipe().ended()).await;
            assert!(matches!(ended, Error::Silent { .. }), "{over}: {ended}");
        }
    });
}

/// Prints warnings, a line each.
struct Printer;

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!(" {field}={value:?}");
    }
}

impl Subscriber for Printer {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        eprintln!("logged:{}", line.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
