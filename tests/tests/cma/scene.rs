//! What every test here has: a parent that listens, and a child that connects and does what messages tell it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tensorpipe::channels::{BasicChannel, Channel, CmaChannel};
use tensorpipe::conformance::{assert_same, pattern};
use tensorpipe::transports::{TcpTransport, Transport};
use tensorpipe::{Context, Message, MessageTensor, Pipe, Setback, Tensor};
use tensorpipe_tests::Child;

use super::denied::forbid_reading;

/// A bound on each step, on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Runs a test while no other one of this binary runs.
pub(crate) fn alone(test: impl AsyncFnOnce()) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    runtime().block_on(async {
        tokio::time::timeout(Duration::from_secs(100), test())
            .await
            .expect("a test of cma hangs");
    });
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}

pub(crate) async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    let result = tokio::time::timeout(SOON, work).await;
    result.unwrap_or_else(|_| panic!("{what}: nothing for {SOON:?}"))
}

pub(crate) async fn eventually(what: &str, mut reached: impl FnMut() -> bool) {
    let wait = async {
        while !reached() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(what, wait).await;
}

/// Of cma, before basic, over tcp.
pub(crate) fn context(name: &str) -> Context {
    with_channels(
        name,
        vec![
            Arc::new(CmaChannel::new().pays_from(1 << 20)),
            Arc::new(BasicChannel::new()),
        ],
    )
}

pub(crate) fn with_channels(name: &str, channels: Vec<Arc<dyn Channel>>) -> Context {
    let tcp: Arc<dyn Transport> = Arc::new(TcpTransport::new());
    let builder = Context::builder().name(name).transports([tcp]);
    builder.channels(channels).build().unwrap()
}

/// In ordinary memory.
pub(crate) fn made(len: usize, seed: u64) -> Tensor {
    Tensor::from_vec(pattern(len, seed), [len as u64]).unwrap()
}

/// These cost nothing to make.
pub(crate) fn zeros(len: usize) -> Tensor {
    Tensor::from_vec(vec![0u8; len], [len as u64]).unwrap()
}

#[track_caller]
pub(crate) fn check(tensor: &Tensor, seed: u64) {
    let bytes = tensor.as_bytes().unwrap();
    assert_same(bytes, &pattern(bytes.len(), seed), "a tensor");
}

/// Why cma does not carry what it was chosen for.
pub(crate) fn setback(pipe: &Pipe) -> Setback {
    let mut channels = pipe.route().channels.iter();
    let cma = channels.find(|channel| channel.name == "cma");
    cma.unwrap_or_else(|| panic!("{}", pipe.route()))
        .setback
        .clone()
}

/// A child process, and the pipe to it.
pub(crate) struct Peer {
    pub(crate) child: Child,
    pub(crate) pipe: Pipe,
}

impl Peer {
    pub(crate) async fn start(context: &Context, variables: &[(&str, &str)]) -> Self {
        let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        let url = listener.url().to_string();
        let variables = [variables, &[("TEST_URL", &url)]].concat();
        let child = Child::start("peer", &variables);
        let pipe = soon("a child", listener.accept()).await.unwrap();
        Self { child, pipe }
    }

    /// Has it do something; what it answers.
    pub(crate) async fn told(&self, what: &str) -> String {
        self.pipe.send(Message::new(what.to_owned())).unwrap();
        self.answer(what).await
    }

    pub(crate) async fn answer(&self, what: &str) -> String {
        let answer = soon(what, self.pipe.read()).await.unwrap();
        String::from_utf8(answer.metadata.to_vec()).unwrap()
    }

    /// Has it take a tensor and compare it; how many bytes its lanes have copied in all.
    pub(crate) async fn takes(&self, len: usize, seed: u64) -> u64 {
        let tensor = MessageTensor::from(made(len, seed));
        let message = Message::new(format!("take {seed}")).tensor(tensor);
        soon("a write", self.pipe.write(message)).await.unwrap();
        self.answer("take").await.parse().unwrap()
    }

    /// Has it make a tensor and send it.
    pub(crate) async fn gives(&self, len: usize, seed: u64) -> Tensor {
        let ask = Message::new(format!("give {len} {seed}"));
        self.pipe.send(ask).unwrap();
        let mut message = soon("a tensor", self.pipe.read()).await.unwrap();
        let tensor = message.tensors.remove(0).tensor;
        assert_eq!(tensor.shape(), [len as u64]);
        check(&tensor, seed);
        tensor
    }
}

/// The child: connects, and does what it is told.
pub(crate) fn play() {
    if std::env::var("TEST_FORBIDDEN").is_ok() {
        forbid_reading();
    }
    runtime().block_on(async {
        let context = context("child");
        let url = std::env::var("TEST_URL").unwrap();
        let pipe = context.connect(&url).await.unwrap();
        let mut others = Vec::new();
        while let Ok(message) = pipe.read().await {
            let text = String::from_utf8(message.metadata.to_vec()).unwrap();
            let words: Vec<&str> = text.split(' ').collect();
            let answer = match words[..] {
                ["take", seed] => {
                    check(&message.tensors[0].tensor, seed.parse().unwrap());
                    pipe.stats().bytes_copied.to_string()
                }
                ["give", len, seed] => {
                    let tensor = made(len.parse().unwrap(), seed.parse().unwrap());
                    pipe.send(Message::new("given").tensor(tensor)).unwrap();
                    continue;
                }
                ["give", len] => {
                    let tensor = zeros(len.parse().unwrap());
                    pipe.send(Message::new("given").tensor(tensor)).unwrap();
                    continue;
                }
                ["to", "another", len] => {
                    let url = std::env::var("TEST_OTHER").unwrap();
                    let other = context.connect(&url).await.unwrap();
                    let tensor = zeros(len.parse().unwrap());
                    other.send(Message::new("given").tensor(tensor)).unwrap();
                    others.push(other);
                    continue;
                }
                ["forbid"] => {
                    forbid_reading();
                    "forbidden".to_owned()
                }
                ["route"] => pipe.route().to_string(),
                _ => panic!("told `{text}`"),
            };
            pipe.send(Message::new(answer)).unwrap();
        }
    });
}
