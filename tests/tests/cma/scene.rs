//! Setup of every test here: a parent that listens, and a child that connects and obeys messages.

use std::sync::Arc;

use tensorpipe::channels::{BasicChannel, Channel, CmaChannel};
use tensorpipe::conformance::pattern;
use tensorpipe::transports::{TcpTransport, Transport};
use tensorpipe::{
    Context, ContextBuilder, Limits, Message, MessageTensor, Pipe, Tensor,
    channels::{Pays, Threshold},
    route::Degraded,
};
use tensorpipe_tests::{Fate, forbid};
pub(crate) use tensorpipe_tests::{Peer, alone, check, eventually, runtime, soon};

use super::denied::{end_main_thread, forbid_asking, forbid_reading};

/// Of cma, before basic, over tcp.
pub(crate) fn context(name: &str) -> Context {
    bounded(name, Limits::default())
}

/// The same, within these limits.
pub(crate) fn bounded(name: &str, limits: Limits) -> Context {
    builder(
        name,
        vec![Arc::new(CmaChannel::new()), Arc::new(BasicChannel::new())],
    )
    .limits(limits)
    .build()
    .unwrap()
}

pub(crate) fn with_channels(name: &str, channels: Vec<Arc<dyn Channel>>) -> Context {
    builder(name, channels).build().unwrap()
}

pub(crate) fn builder(name: &str, channels: Vec<Arc<dyn Channel>>) -> ContextBuilder {
    let tcp: Arc<dyn Transport> = Arc::new(TcpTransport::new());
    let builder = Context::builder().name(name).transports([tcp]);
    let pays = Threshold::new(Pays::From(1 << 20));
    builder.channels(channels).threshold("cma", pays)
}

/// In ordinary memory.
pub(crate) fn made(len: usize, seed: u64) -> Tensor {
    Tensor::from_vec(pattern(len, seed), [len as u64]).unwrap()
}

/// These cost nothing to make.
pub(crate) fn zeros(len: usize) -> Tensor {
    Tensor::from_vec(vec![0u8; len], [len as u64]).unwrap()
}

/// Why cma does not carry what it was chosen for.
pub(crate) fn degraded(pipe: &Pipe) -> Degraded {
    let mut channels = pipe.route().channels.iter();
    let cma = channels.find(|channel| channel.name == "cma");
    cma.unwrap_or_else(|| panic!("{}", pipe.route()))
        .degraded
        .clone()
}

/// What only these children do.
pub(crate) trait Takes {
    /// Has it take a tensor and compare it; how many bytes its lanes have copied in all.
    async fn takes(&self, len: usize, seed: u64) -> u64;
}

impl Takes for Peer {
    async fn takes(&self, len: usize, seed: u64) -> u64 {
        let tensor = MessageTensor::from(made(len, seed));
        let message = Message::new(format!("take {seed}")).tensor(tensor);
        soon("a write", self.pipe.write(message)).await.unwrap();
        self.answer("take").await.parse().unwrap()
    }
}

/// The child: connects, and does what it is told.
pub(crate) fn play() {
    if std::env::var("TEST_FORBIDDEN").is_ok() {
        forbid_reading();
    }
    if std::env::var("TEST_UNASKED").is_ok() {
        forbid_asking();
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
                ["random"] => {
                    forbid(libc::SYS_getrandom, None, Fate::Fails(libc::EACCES));
                    "forbidden".to_owned()
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
                ["end", "main"] => {
                    end_main_thread();
                    "ended".to_owned()
                }
                ["route"] => pipe.route().to_string(),
                ["descriptor"] => {
                    let descriptor = CmaChannel::new().devices().remove(0).1;
                    descriptor
                        .iter()
                        .map(|byte| format!("{byte:02x}"))
                        .collect()
                }
                _ => panic!("told `{text}`"),
            };
            pipe.send(Message::new(answer)).unwrap();
        }
    });
}
