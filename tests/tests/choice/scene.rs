//! Two ends over a transport, and what each channel was given to carry.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tensorpipe::channels::{BasicChannel, Channel, CmaChannel, LeaseChannel, XthChannel};
use tensorpipe::conformance::pattern;
use tensorpipe::transports::{MemoryTransport, ShmTransport, TcpTransport, Transport};
use tensorpipe::{
    Context, ContextBuilder, DType, Limits, Listener, Message, Pipe, Tensor,
    channels::{Pays, Threshold},
    device::MemoryKind,
    route::Carrier,
};
pub(crate) use tensorpipe_tests::{check, soon};

/// The longest tensor that is sent.
pub(crate) const LONGEST: u64 = 17 << 20;

pub(crate) fn transport(name: &str) -> Arc<dyn Transport> {
    match name {
        "memory" => Arc::new(MemoryTransport::new()),
        "shm" => Arc::new(ShmTransport::new()),
        _ => Arc::new(TcpTransport::new()),
    }
}

/// Where to listen: nobody else of this machine does.
pub(crate) fn url(transport: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    match transport {
        "tcp" => "tcp://127.0.0.1:0".to_owned(),
        other => {
            let (process, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            format!("{other}://choice-{process}-{next}")
        }
    }
}

/// Channels between two processes, here within one.
pub(crate) fn between_processes() -> Vec<Arc<dyn Channel>> {
    vec![
        Arc::new(LeaseChannel::also_within_process()),
        Arc::new(CmaChannel::also_within_process()),
        Arc::new(BasicChannel::new()),
    ]
}

/// Whose ordinary memory is not copied to be lent: it is left to the other channels.
pub(crate) fn lends_no_copies(builder: ContextBuilder) -> ContextBuilder {
    let none = Threshold::new(Pays::LastResort).of(MemoryKind::Heap);
    builder.threshold("lease", none)
}

/// Within one process.
pub(crate) fn within_process() -> Vec<Arc<dyn Channel>> {
    vec![Arc::new(XthChannel::new()), Arc::new(BasicChannel::new())]
}

pub(crate) fn basic_alone() -> Vec<Arc<dyn Channel>> {
    vec![Arc::new(BasicChannel::new())]
}

/// A pipe from this process to itself, and what its writer's context is made of.
pub(crate) struct Scene {
    pub(crate) client: Pipe,
    pub(crate) server: Pipe,
    context: Context,
    /// Channels open connections of their own to it.
    _listener: Listener,
}

impl Scene {
    pub(crate) async fn over(name: &str, channels: impl Fn() -> Vec<Arc<dyn Channel>>) -> Self {
        Self::with(name, channels, Limits::default(), |builder| builder).await
    }

    /// `limits` are the reader's; `wishes` are what the writer has.
    pub(crate) async fn with(
        name: &str,
        channels: impl Fn() -> Vec<Arc<dyn Channel>>,
        limits: Limits,
        wishes: impl FnOnce(ContextBuilder) -> ContextBuilder,
    ) -> Self {
        let builder = || {
            let builder = Context::builder().transports([transport(name)]);
            builder.channels(channels())
        };
        let context = wishes(builder()).build().unwrap();
        let reader = builder().limits(limits).build().unwrap();
        let listener = soon("listen", reader.listen([url(name)])).await.unwrap();
        let url = listener.url().to_string();
        let pipes = async { tokio::join!(context.connect(&url), listener.accept()) };
        let (client, server) = soon("a pipe", pipes).await;
        let (client, server) = (client.unwrap(), server.unwrap());
        assert_eq!(client.route().transport, name);
        Self {
            client,
            server,
            context,
            _listener: listener,
        }
    }

    /// A tensor in such memory of the client's process.
    pub(crate) fn tensor(&self, memory: MemoryKind, len: u64) -> Tensor {
        let bytes = pattern(len as usize, len);
        let tensor = match memory {
            MemoryKind::Heap => Tensor::from_vec(bytes, [len]).unwrap(),
            _ => {
                // A short one would not be lendable: a part of a longer one is.
                let all = self.context.pool().tensor(DType::U8, [len.max(1 << 20)]);
                let mut all = all.unwrap();
                let filled = &mut all.make_mut::<u8>().unwrap()[..len as usize];
                filled.copy_from_slice(&bytes);
                all.rows(0..len).unwrap()
            }
        };
        assert_eq!(tensor.buffer().memory().kind(), memory);
        tensor
    }

    /// Sends a tensor to the server; what carried it.
    pub(crate) async fn sends(&self, memory: MemoryKind, len: u64) -> Carrier {
        let tensor = self.tensor(memory, len);
        sends(&self.client, &self.server, tensor, len).await.0
    }
}

/// Sends a tensor of the pattern of this seed; what carried it, and what arrived.
pub(crate) async fn sends(from: &Pipe, to: &Pipe, tensor: Tensor, seed: u64) -> (Carrier, Tensor) {
    let len = tensor.byte_len() as u64;
    let counts = || -> Vec<(u64, u64)> {
        let channels = from.route().channels.iter();
        let counts = channels.map(|channel| (channel.carried.parts(), channel.carried.bytes()));
        counts.collect()
    };
    let (before, bytes_out) = (counts(), from.stats().bytes_out);
    let message = async { tokio::join!(from.write(Message::new("").tensor(tensor)), to.read()) };
    let (written, read) = soon("a tensor", message).await;
    written.unwrap();
    let came = read.unwrap().tensors.remove(0).tensor;
    check(&came, seed);
    let mut carriers = Vec::new();
    for (at, (after, before)) in counts().into_iter().zip(before).enumerate() {
        if after != before {
            assert_eq!(after, (before.0 + 1, before.1 + len), "one, and whole");
            let name = from.route().channels[at].name.as_str();
            carriers.push(known(name));
        }
    }
    assert!(carriers.len() <= 1, "{carriers:?}");
    let carrier = carriers.pop().unwrap_or(Carrier::Frame);
    // The counters of the connection say the same.
    let beside = matches!(carrier, Carrier::Channel("xth" | "lease" | "cma" | "mpt"));
    let bytes_out = from.stats().bytes_out - bytes_out;
    assert_eq!(bytes_out >= len, !beside || len < 100, "{carrier:?}");
    (carrier, came)
}

fn known(name: &str) -> Carrier {
    let names = ["xth", "lease", "cma", "mpt", "basic", "own"];
    let name = names.into_iter().find(|known| *known == name);
    Carrier::Channel(name.expect("a channel of these tests"))
}
