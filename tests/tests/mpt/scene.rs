//! Two ends that have `mpt` before the other channels, and tensors to be compared.

use std::sync::Arc;

use tensorpipe::channels::{BasicChannel, Channel, MptChannel};
use tensorpipe::transports::{TcpTransport, Transport};
use tensorpipe::{Context, ContextBuilder, Listener, Message, Pipe, Tensor};
pub(crate) use tensorpipe_tests::soon;

pub(crate) fn context(name: &str, channel: Arc<dyn Channel>, transport: TcpTransport) -> Context {
    builder(name, channel, transport).build().unwrap()
}

pub(crate) fn builder(
    name: &str,
    channel: Arc<dyn Channel>,
    transport: TcpTransport,
) -> ContextBuilder {
    let transport: Arc<dyn Transport> = Arc::new(transport);
    let builder = Context::builder().name(name).transports([transport]);
    let basic: Arc<dyn Channel> = Arc::new(BasicChannel::new());
    builder.channels([channel, basic])
}

/// What both ends have, and the pipe between them.
pub(crate) struct Pair {
    pub(crate) channels: [Arc<MptChannel>; 2],
    pub(crate) client: Pipe,
    pub(crate) server: Pipe,
    pub(crate) listener: Option<Listener>,
}

/// A pipe with `connections`; the client's are made by `transport`, to what `way` makes of the listener's port.
pub(crate) async fn pair<W: Future<Output = u16>>(
    connections: u8,
    transport: TcpTransport,
    way: impl FnOnce(u16) -> W,
) -> Pair {
    let channel = || Arc::new(MptChannel::new().connections(connections).unwrap());
    let channels = [channel(), channel()];
    let server = context("server", channels[1].clone(), TcpTransport::new());
    let client = context("client", channels[0].clone(), transport);
    let listener = server.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let (_, port) = listener.url().address().rsplit_once(':').unwrap();
    let port = way(port.parse().unwrap()).await;
    let (client, server) = soon("a pipe", async {
        tokio::join!(
            client.connect(format!("tcp://127.0.0.1:{port}")),
            listener.accept()
        )
    })
    .await;
    Pair {
        channels,
        client: client.unwrap(),
        server: server.unwrap(),
        listener: Some(listener),
    }
}

impl Pair {
    /// How many chunks the client has sent by each connection.
    pub(crate) fn sent(&self) -> Vec<u64> {
        self.channels[0].chunks_sent()
    }
}

/// Different in every chunk.
pub(crate) fn numbers(bytes: usize) -> Vec<u64> {
    (0..bytes as u64 / 8).collect()
}

/// Moves a tensor of that many bytes and compares it.
pub(crate) async fn carry(from: &Pipe, to: &Pipe, bytes: usize) {
    let message = Message::new("").tensor(Tensor::from(numbers(bytes)));
    let (written, read) = soon("a tensor", async {
        tokio::join!(from.write(message), to.read())
    })
    .await;
    written.unwrap();
    let message = read.unwrap();
    let found = message.tensors[0].tensor.as_slice::<u64>().unwrap();
    assert!(found == numbers(bytes), "{bytes} bytes arrived otherwise");
}
