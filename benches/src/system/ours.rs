//! Code that our own systems share: the plan's context, tensors to send, and the route in words.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, bail, ensure};
use tensorpipe::channels::{
    BasicChannel, Channel, CmaChannel, LeaseChannel, MptChannel, XthChannel,
};
use tensorpipe::transports::{
    MemoryTransport, Pem, ShmTransport, TcpTransport, TlsConfig, TlsTransport,
};
use tensorpipe::{
    Context, DType, Device, Misuse, Pool, Tensor,
    device::{LendableStats, MemoryKind},
    route::Carrier,
};

use super::Route;
use crate::pattern;
use crate::plan::{Alloc, Plan, Transport, name};

/// A context with only the plan's transport, so that a row measures what its name says. Over tcp and tls, which stand for a network, the
/// channel is `basic` unless the plan names another one, so the bytes stay on the connection. Over other transports the context
/// chooses among its default channels (`default`). `ring` is the copying path through the ring of shm.
pub(crate) fn context(plan: &Plan) -> Result<Context> {
    Ok(Context::builder()
        .transports([transport(plan)?])
        .channels(wanted_channels(plan)?)
        .build()?)
}

fn transport(plan: &Plan) -> Result<Arc<dyn tensorpipe::transports::Transport>> {
    Ok(match (plan.transport, plan.pace) {
        (Transport::Tcp, None) => Arc::new(TcpTransport::new()),
        (Transport::Tcp, pace) => Arc::new(TcpTransport::paced(move |_| pace)),
        (Transport::Tls, None) => Arc::new(tls(plan)?),
        (Transport::Unix, _) => bail!("ours have no transport unix, choose tcp, shm or memory"),
        (other, Some(_)) => bail!(
            "{} cannot be paced, choose --transport tcp or leave out --pace",
            name(other)
        ),
        (Transport::Shm, None) => Arc::new(ShmTransport::new()),
        (Transport::Memory, None) => Arc::new(MemoryTransport::new()),
    })
}

/// Both ends have the certificate, and the connector trusts no other.
fn tls(plan: &Plan) -> Result<TlsTransport> {
    let own = plan.own.as_ref().context("there is no certificate")?;
    let pem = |text: &String| Pem::bytes(text.as_str());
    let config = TlsConfig::new().trust(pem(&own.certificate));
    let config = config.certificate(pem(&own.certificate), pem(&own.key));
    Ok(TlsTransport::new(config)?)
}

fn wanted_channels(plan: &Plan) -> Result<Vec<Arc<dyn Channel>>> {
    let wanted = match (plan.transport, plan.channel.as_deref()) {
        (Transport::Shm, Some("ring")) | (Transport::Tcp | Transport::Tls, None) => "basic",
        (_, Some("ring")) => {
            bail!("`ring` is the copying path over shared memory, choose --transport shm")
        }
        // The default channels of a context.
        (_, None | Some("default")) => {
            let mut usual = channels(MptChannel::new());
            usual.retain(|channel| channel.name() != "mpt");
            return Ok(usual);
        }
        (_, Some(wanted)) => wanted,
    };
    let mpt = match plan.lanes {
        Some(lanes) => MptChannel::new().connections(lanes)?,
        None => MptChannel::new(),
    };
    let mut channels = channels(mpt);
    let names: Vec<_> = channels.iter().map(|channel| channel.name()).collect();
    channels.retain(|channel| channel.name() == wanted);
    if channels.is_empty() {
        let names = names.join(", ");
        bail!("there is no channel `{wanted}`, choose of: {names}");
    }
    Ok(channels)
}

/// Every channel. A plan that names one uses it alone, so that channel also carries tensors that it would leave to others.
pub(crate) fn channels(mpt: MptChannel) -> Vec<Arc<dyn Channel>> {
    vec![
        Arc::new(XthChannel::new()),
        Arc::new(LeaseChannel::new()),
        Arc::new(CmaChannel::new()),
        Arc::new(mpt),
        Arc::new(BasicChannel::new()),
    ]
}

/// Where a server of the plan listens.
pub(crate) fn url(plan: &Plan) -> String {
    static NAMES: AtomicU64 = AtomicU64::new(0);
    let name = || {
        let number = NAMES.fetch_add(1, Ordering::Relaxed);
        format!("bench-{}-{number}", std::process::id())
    };
    match plan.transport {
        // Unix is refused where the context is made.
        Transport::Tcp | Transport::Unix => "tcp://127.0.0.1:0".to_owned(),
        Transport::Tls => "tls://127.0.0.1:0".to_owned(),
        Transport::Shm => format!("shm://{}", name()),
        Transport::Memory => format!("memory://{}", name()),
    }
}

/// The tensor of a sender: `len` bytes where the plan wants them.
pub(crate) fn tensor(plan: &Plan, len: usize, context: &Context) -> Result<Tensor> {
    Ok(match plan.alloc {
        Alloc::Heap => Tensor::from_vec(vec![0u8; len], [len as u64])?,
        Alloc::Pool => context.pool().tensor(DType::U8, [len as u64])?,
    })
}

/// The tensor of a trip that wakes both ends: from the pool, and too large for a message's own frame. A client that makes no such
/// trip has none, because it would cost two megabytes for each of a thousand clients.
#[derive(Debug)]
pub(super) struct Small {
    context: Context,
    tensor: Option<Tensor>,
}

impl Small {
    pub(super) fn new(context: Context) -> Self {
        let tensor = None;
        Self { context, tensor }
    }

    pub(super) fn tensor(&mut self) -> Result<&Tensor> {
        let tensor = match self.tensor.take() {
            Some(tensor) => tensor,
            None => self.context.pool().tensor(DType::U8, [SMALL])?,
        };
        Ok(self.tensor.insert(tensor))
    }
}

/// Writes the pattern of `round` over `tensor`, in place unless a receiver still holds it.
pub(crate) fn fill(tensor: &mut Tensor, round: u64) -> Result<()> {
    pattern::fill(tensor.make_mut::<u8>()?, round);
    Ok(())
}

/// Reads every byte, as the receiver of a tensor does sooner or later.
pub(super) fn read_all(tensor: &Tensor) -> Result<(), Misuse> {
    std::hint::black_box(pattern::sum(tensor.as_bytes()?));
    Ok(())
}

/// Compares every byte.
pub(crate) fn check(tensor: &Tensor, len: u64, round: u64) -> Result<()> {
    let bytes = tensor.as_bytes()?;
    ensure!(bytes.len() as u64 == len, "{} bytes came", bytes.len());
    right(pattern::mismatch(bytes, round))
}

/// Fails if a byte is wrong.
pub(super) fn right(wrong: Option<u64>) -> Result<()> {
    match wrong {
        Some(at) => bail!("byte {at} is wrong"),
        None => Ok(()),
    }
}

/// The kind of pages of a pool's lendable memory.
fn pages(stats: &LendableStats) -> String {
    let small = stats.mapped_bytes - stats.reserved_bytes - stats.huge_bytes;
    let sorts = [
        ("set aside", stats.reserved_bytes),
        ("huge", stats.huge_bytes),
        ("small", small),
        ("ordinary", stats.fallbacks),
    ];
    let found = sorts.iter().filter(|(_, some)| *some > 0);
    let found: Vec<_> = found.map(|(sort, _)| *sort).collect();
    found.join(" + ")
}

/// The facts from which a client describes its route: the tensor's size, and its pool.
pub(crate) struct Routing {
    bytes: u64,
    /// The pool, if tensors are in it.
    pool: Option<Pool>,
}

impl Routing {
    pub(crate) fn new(plan: &Plan, context: &Context) -> Self {
        let pool = (plan.alloc == Alloc::Pool).then(|| context.pool().clone());
        let bytes = plan.bytes;
        Self { bytes, pool }
    }

    /// The route, for the row. If there is no tensor, or it fits into its message, this names the preferred channel.
    pub(crate) fn route(&self, route: &tensorpipe::Route) -> Route {
        let memory = match self.pool {
            Some(_) => MemoryKind::Pool,
            None => MemoryKind::Heap,
        };
        let choice = &route.choice;
        let channel = match choice.carrier(Device::CPU, memory, Device::CPU, self.bytes) {
            Carrier::Channel(name) => Some(name.to_owned()),
            _ => route.channels.first().map(|channel| channel.name.clone()),
        };
        Route {
            transport: route.transport.clone(),
            channel: channel.unwrap_or_else(|| "none".to_owned()),
            pages: self.pool.as_ref().map(|pool| pages(&pool.stats().lendable)),
        }
    }
}

/// Bytes of a small tensor that is still leased.
const SMALL: u64 = 64 << 10;
