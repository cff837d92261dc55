//! The other end of a pipe: in this process, or in a child process that messages control.
//!
//! A message's metadata carries a command in words, and the next message carries the answer. Each test binary defines its commands.

use std::sync::Arc;

use tensorpipe::channels::BasicChannel;
use tensorpipe::conformance::{assert_same, pattern};
use tensorpipe::transports::Transport;
use tensorpipe::{Context, ContextBuilder, Message, Pipe, Tensor};

use crate::{Child, soon};

/// A context over these transports, and no channel but `basic`.
pub fn over(transports: Vec<Arc<dyn Transport>>) -> ContextBuilder {
    let builder = Context::builder().transports(transports);
    builder.channels([Arc::new(BasicChannel::new()) as _])
}

/// The two ends of a pipe: first the end that connects, then the end that listens at `url` and accepts.
///
/// # Panics
/// When the pipe is not there soon.
pub async fn pair(connects: &Context, listens: &Context, url: &str) -> (Pipe, Pipe) {
    let listener = listens.listen([url]).await.unwrap();
    let pipes = async { tokio::join!(connects.connect(listener.url()), listener.accept()) };
    let (client, server) = soon("a pipe", pipes).await;
    (client.unwrap(), server.unwrap())
}

/// A child process.
#[derive(Debug)]
pub struct Peer {
    /// The process, in the role `peer`.
    pub child: Child,
    /// The pipe to it.
    pub pipe: Pipe,
}

impl Peer {
    /// Listens, and starts a child that connects to `TEST_URL`.
    ///
    /// # Panics
    /// When the child does not connect in time. All methods here panic like this.
    pub async fn start(context: &Context, variables: &[(&str, &str)]) -> Self {
        Self::start_by(&[], context, variables).await
    }

    /// Like [`start`](Self::start), but through the launcher `by`, e.g. `setpriv`.
    ///
    /// # Panics
    /// As above.
    pub async fn start_by(by: &[&str], context: &Context, variables: &[(&str, &str)]) -> Self {
        let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        let url = listener.url().to_string();
        let variables = [variables, &[("TEST_URL", &url)]].concat();
        let child = Child::start_by(by, "peer", &variables);
        let pipe = soon("a child", listener.accept()).await.unwrap();
        Self { child, pipe }
    }

    /// Sends a command to the child and returns its answer.
    pub async fn told(&self, what: &str) -> String {
        self.pipe.send(Message::new(what.to_owned())).unwrap();
        self.answer(what).await
    }

    /// Waits for the child's answer to the command `what`.
    pub async fn answer(&self, what: &str) -> String {
        let answer = soon(what, self.pipe.read()).await.unwrap();
        String::from_utf8(answer.metadata.to_vec()).unwrap()
    }

    /// Lets the child make a tensor of [`pattern`]`(len, seed)` and send it.
    pub async fn gives(&self, len: usize, seed: u64) -> Tensor {
        let ask = Message::new(format!("give {len} {seed}"));
        self.pipe.send(ask).unwrap();
        let mut message = soon("a tensor", self.pipe.read()).await.unwrap();
        assert_eq!(&message.metadata[..], b"given");
        let tensor = message.tensors.remove(0).tensor;
        assert_eq!(tensor.shape(), [len as u64]);
        check(&tensor, seed);
        tensor
    }
}

/// Compares a tensor with [`pattern`] of its length and this seed.
///
/// # Panics
/// Where they differ.
#[track_caller]
pub fn check(tensor: &Tensor, seed: u64) {
    let bytes = tensor.as_bytes().unwrap();
    assert_same(bytes, &pattern(bytes.len(), seed), "a tensor");
}
