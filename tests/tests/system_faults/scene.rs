//! The scene that a child runs under a fault: each way to move a tensor, and a call. The child reports the outcome of each.

use std::fmt::Display;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorpipe::channels::{BasicChannel, Channel, CmaChannel, LeaseChannel, Pays, Threshold};
use tensorpipe::conformance::{assert_same, pattern};
use tensorpipe::transports::{ShmTransport, TcpTransport, Transport};
use tensorpipe::{
    Allocation, BufferMut, ConnectPolicy, Context, ContextBuilder, DType, Listener, Message, Pipe,
    Place, Tensor, Timeouts,
};
use tensorpipe_rpc::{Connection, Server, tensor_service};
use tensorpipe_tests::{runtime, say};
use tokio::time::timeout;

use super::faults::impose;

#[tensor_service]
pub(crate) trait Echo {
    async fn echo(&self, tensor: Tensor) -> Tensor;
}

pub(crate) struct Echoes;

impl Echo for Echoes {
    async fn echo(&self, tensor: Tensor) -> Tensor {
        tensor
    }
}

/// The parts of the scene.
pub(crate) const PARTS: [&str; 5] = ["shm", "lease", "cma", "tcp", "call"];

/// A bound on each: far above those of the product.
const BOUND: Duration = Duration::from_secs(40);

/// Above what a connection rests before it gives memory back: 10 s, and once more where it was under load when it first fell asleep.
const REST: Duration = Duration::from_secs(30);

pub(crate) const SMALL: usize = 64 << 10;
pub(crate) const LARGE: usize = 1 << 20;

/// What a context waits for, but for what a row is about.
pub(crate) fn timeouts() -> Timeouts {
    let mut timeouts = Timeouts::default();
    timeouts.linger = Duration::from_secs(1);
    timeouts
}

pub(crate) fn builder(timeouts: Timeouts) -> ContextBuilder {
    Context::builder()
        .name("scene")
        .timeouts(timeouts)
        .connect_policy(ConnectPolicy::retrying_for(Duration::from_millis(500)))
}

/// In seconds, of a variable.
pub(crate) fn seconds(name: &str) -> Option<Duration> {
    let value = std::env::var(name).ok()?;
    Some(Duration::from_secs(value.parse().unwrap()))
}

enum Opened {
    /// A context, its listener, and both ends.
    Pipes(
        Context,
        #[expect(dead_code, reason = "it is kept open")] Listener,
        Pipe,
        Pipe,
    ),
    Call(
        #[expect(dead_code, reason = "it is kept open")] Server,
        EchoClient,
    ),
}

/// What carries a part, and where this process listens for it.
pub(crate) fn context(part: &str, timeouts: Timeouts) -> Result<(Context, String), String> {
    let shm: Arc<dyn Transport> = Arc::new(ShmTransport::new());
    let tcp: Arc<dyn Transport> = Arc::new(TcpTransport::new());
    let basic: Arc<dyn Channel> = Arc::new(BasicChannel::new());
    let lease: Arc<dyn Channel> = Arc::new(LeaseChannel::also_within_process());
    let cma: Arc<dyn Channel> = Arc::new(CmaChannel::also_within_process());
    let shm_url = format!("shm://system faults {}", std::process::id());
    let tcp_url = "tcp://127.0.0.1:0".to_owned();
    let (transports, channels, url) = match part {
        "shm" => (vec![shm], vec![basic], shm_url),
        "lease" => (vec![shm, tcp], vec![lease, basic], tcp_url),
        "cma" => (vec![shm, tcp], vec![cma, basic], tcp_url),
        "tcp" => (vec![tcp], vec![basic], tcp_url),
        _ => (vec![shm, tcp], vec![lease, cma, basic], tcp_url),
    };
    let mut context = builder(timeouts).transports(transports).channels(channels);
    if part == "cma" {
        // What it asks of the system is asked of this process, and changes nothing here.
        let _ = CmaChannel::readable_by_all();
        // It pays later by itself.
        context = context.threshold("cma", Threshold::new(Pays::From(LARGE as u64)));
    }
    Ok((context.build().map_err(words)?, url))
}

/// Both ends of a part, in this process.
async fn open(part: &str) -> Result<Opened, String> {
    let mut timeouts = timeouts();
    timeouts.handshake = seconds("TEST_HANDSHAKE").unwrap_or(timeouts.handshake);
    let (context, url) = context(part, timeouts)?;
    if part == "call" {
        let server = Server::builder().context(&context);
        let server = server.service(EchoService::new(Echoes)).listen(url).await;
        let server = server.map_err(words)?;
        let url = server.url().to_string();
        let connection = Connection::builder().context(&context).connect(url);
        let connection = connection.await.map_err(words)?;
        let client = EchoClient::on(&connection).await.map_err(words)?;
        return Ok(Opened::Call(server, client));
    }
    let listener = context.listen([url]).await.map_err(words)?;
    let (client, server) = {
        let mut connecting = pin!(context.connect(listener.url()));
        let mut accepting = pin!(listener.accept());
        let mut accepted = None;
        // A connector that fails is the one that a user sees: the listener waits for the next.
        let client = loop {
            tokio::select! {
                client = &mut connecting => break client.map_err(words)?,
                server = &mut accepting, if accepted.is_none() => accepted = Some(server),
            }
        };
        let server = match accepted {
            Some(server) => server,
            None => accepting.await,
        };
        (client, server.map_err(words)?)
    };
    Ok(Opened::Pipes(context, listener, client, server))
}

fn words(error: impl Display) -> String {
    error.to_string()
}

pub(crate) fn heap(len: usize) -> Tensor {
    Tensor::from_vec(pattern(len, 1), [len as u64]).unwrap()
}

/// A tensor that can be lent as it is.
pub(crate) fn pooled(context: &Context) -> Result<Tensor, String> {
    pooled_of(context, &pattern(LARGE, 1))
}

pub(crate) fn pooled_of(context: &Context, content: &[u8]) -> Result<Tensor, String> {
    let mut tensor = context
        .pool()
        .tensor(DType::U8, [content.len() as u64])
        .map_err(words)?;
    let bytes = tensor.make_mut::<u8>().map_err(words)?;
    bytes.copy_from_slice(content);
    Ok(tensor)
}

async fn carry(from: &Pipe, to: &Pipe, tensor: Tensor) -> Result<(), String> {
    let len = tensor.byte_len();
    let message = Message::new("a tensor").tensor(tensor);
    let (written, read) = tokio::join!(from.write(message), to.read());
    written.map_err(words)?;
    let read = read.map_err(words)?;
    let bytes = read.tensors[0].tensor.as_bytes().map_err(words)?;
    assert_same(bytes, &pattern(len, 1), "a tensor");
    Ok(())
}

/// The same into memory of the reader's own: a copy, on another thread.
async fn carry_into(from: &Pipe, to: &Pipe, tensor: Tensor) -> Result<(), String> {
    let len = tensor.byte_len();
    let message = Message::new("a tensor").tensor(tensor);
    let read = async {
        let incoming = to.read_descriptor().await?;
        let mut allocation = Allocation::for_descriptor(incoming.descriptor());
        allocation.tensors[0] = Place::Into(BufferMut::from_vec(vec![0_u8; len]));
        incoming
            .read_into(allocation)
            .await
            .map_err(|refused| refused.error)
    };
    let (written, read) = tokio::join!(from.write(message), read);
    written.map_err(words)?;
    let read = read.map_err(words)?;
    let bytes = read.tensors[0].tensor.as_bytes().map_err(words)?;
    assert_same(bytes, &pattern(len, 1), "a tensor");
    Ok(())
}

/// What is moved once both ends are open.
async fn act(part: &str, opened: &Opened) -> Result<(), String> {
    match opened {
        Opened::Pipes(context, _, client, server) => {
            // With huge pages.
            let large = if part == "cma" { 4 * LARGE } else { LARGE };
            carry(client, server, heap(SMALL)).await?;
            carry(server, client, heap(large)).await?;
            if part == "lease" {
                carry(client, server, pooled(context)?).await?;
                carry_into(client, server, pooled(context)?).await?;
            }
            Ok(())
        }
        Opened::Call(_, client) => {
            let answer = client.echo(heap(LARGE)).await.map_err(words)?;
            assert_same(answer.as_bytes().unwrap(), &pattern(LARGE, 1), "the answer");
            Ok(())
        }
    }
}

/// By what tensors came: the transport, and what was not streamed over that.
fn means(opened: &Opened) -> String {
    let (stats, route) = match opened {
        Opened::Pipes(_, _, client, server) => {
            let mut stats = client.stats();
            stats += server.stats();
            (stats, client.route())
        }
        Opened::Call(_, client) => {
            let pipe = client.connection().pipe();
            (pipe.stats(), pipe.route())
        }
    };
    let mut means = route.transport.to_string();
    if stats.bytes_borrowed >= LARGE as u64 {
        means.push_str(", borrowed");
    }
    if stats.bytes_copied >= LARGE as u64 {
        means.push_str(", copied");
    }
    means
}

pub(crate) fn play() {
    let fault = std::env::var("TEST_FAULT").unwrap();
    let when = std::env::var("TEST_WHEN").unwrap();
    let (is_late, is_again) = (when != "start", when == "again");
    // The runtime is the program's own.
    let runtime = runtime();
    runtime.block_on(async {
        let bounded = async |part| match timeout(BOUND, open(part)).await {
            Ok(opened) => opened,
            Err(_) => Err("HANG while it is opened".to_owned()),
        };
        let mut open = Vec::new();
        if is_late {
            for part in PARTS {
                let opened = bounded(part).await;
                // What is made at the first use is there.
                if let Ok(Opened::Pipes(context, _, client, server)) = &opened {
                    for tensor in [Ok(heap(LARGE)), pooled(context)] {
                        carry(client, server, tensor.unwrap()).await.unwrap();
                    }
                }
                open.push(opened);
            }
        }
        if is_again {
            open.clear();
        }
        let counted = impose(&fault);
        if when == "idle" {
            let until = Instant::now() + REST;
            while counted.times() == 0 && Instant::now() < until {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        for (index, part) in PARTS.into_iter().enumerate() {
            let made;
            let opened = match open.get(index) {
                Some(opened) => opened,
                None => {
                    made = bounded(part).await;
                    &made
                }
            };
            let ended = match opened {
                Err(error) => Err(error.clone()),
                Ok(opened) => match timeout(BOUND, act(part, opened)).await {
                    Ok(ended) => ended,
                    Err(_) => Err("HANG while it moves".to_owned()),
                },
            };
            say(part, ended.err().unwrap_or_else(|| "works".to_owned()));
            if let Ok(opened) = opened {
                say(&format!("{part}-by"), means(opened));
            }
        }
        let token = Context::builder().token("t", [7; 16]).build();
        say("token", token.map_or_else(words, |_| "works".to_owned()));
        for words in counted.words() {
            say("counted", words);
        }
        drop(open);
    });
    // Whoever is under way has a moment; a thread of the runtime may have been refused everything.
    runtime.shutdown_timeout(Duration::from_millis(500));
    say("done", "");
}
