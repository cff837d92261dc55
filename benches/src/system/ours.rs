//! What our own systems share: the context that a plan asks for, a tensor that is written anew, and the route in words.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, bail, ensure};
use tensorpipe::channels::{
    BasicChannel, Channel, CmaChannel, LeaseChannel, MptChannel, XthChannel,
};
use tensorpipe::transports::{MemoryTransport, ShmTransport, TcpTransport};
use tensorpipe::{Context, DType, LendableStats, Misuse, Pool, Tensor};

use super::Route;
use crate::pattern;
use crate::plan::{Alloc, Plan, Transport};

/// A context that has the plan's transport alone, so that a row shows what its name says. Over tcp, which stands for a network, the
/// channel is `basic` unless another one is asked for: the bytes stay on the connection. Else they are the channels that a context has
/// by itself, of which it chooses (`default`). `ring` is the copying path through the ring of shm.
///
/// # Errors
/// When there is no such channel, or the transport has no sockets to be paced.
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
        (Transport::Unix, _) => bail!("ours have no transport unix, choose tcp, shm or memory"),
        (other, Some(_)) => bail!(
            "{} cannot be paced, choose --transport tcp or leave out --pace",
            other.name()
        ),
        (Transport::Shm, None) => Arc::new(ShmTransport::new()),
        (Transport::Memory, None) => Arc::new(MemoryTransport::new()),
    })
}

fn wanted_channels(plan: &Plan) -> Result<Vec<Arc<dyn Channel>>> {
    let wanted = match (plan.transport, plan.channel.as_deref()) {
        (Transport::Shm, Some("ring")) | (Transport::Tcp, None) => "basic",
        (_, Some("ring")) => {
            bail!("`ring` is the copying path over shared memory, choose --transport shm")
        }
        // As a context has them by itself.
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

/// Every channel there is, each by itself in a plan that names it: so it carries what it would leave to another one.
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

/// The tensor of a trip that wakes both ends: of the pool, and more than rides in a message's frame.
pub(super) fn small(context: &Context) -> Result<Tensor> {
    Ok(context.pool().tensor(DType::U8, [SMALL])?)
}

/// Writes the pattern of `round` over `tensor`, in place unless a receiver holds it still.
pub(crate) fn fill(tensor: &mut Tensor, round: u64) -> Result<()> {
    pattern::fill(tensor.make_mut::<u8>()?, round);
    Ok(())
}

/// Reads every byte, as whoever receives a tensor does sooner or later.
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

/// No byte is wrong.
pub(super) fn right(wrong: Option<u64>) -> Result<()> {
    match wrong {
        Some(at) => bail!("byte {at} is wrong"),
        None => Ok(()),
    }
}

/// The pool in which a plan's tensors lie.
pub(crate) fn pool(plan: &Plan, context: &Context) -> Option<Pool> {
    (plan.alloc == Alloc::Pool).then(|| context.pool().clone())
}

/// On which pages the memory lies that a pool lends.
fn pages(stats: &LendableStats) -> String {
    let small = stats.mapped_bytes - stats.reserved_bytes - stats.huge_bytes;
    let sorts = [
        ("set aside", stats.reserved_bytes),
        ("huge", stats.huge_bytes),
        ("small", small),
    ];
    let found = sorts.iter().filter(|(_, bytes)| *bytes > 0);
    let mut found: Vec<_> = found.map(|(sort, _)| *sort).collect();
    if stats.fallbacks > 0 {
        found.push("ordinary");
    }
    found.join(" + ")
}

/// The route, for the row: the transport, the channel that is preferred, and the pages of the pool.
pub(crate) fn route(route: &tensorpipe::Route, pool: Option<&Pool>) -> Route {
    let channel = route.channels.first();
    Route {
        transport: route.transport.clone(),
        channel: channel.map_or_else(|| "none".to_owned(), |channel| channel.name.clone()),
        pages: pool.map(|pool| pages(&pool.stats().lendable)),
    }
}

/// Bytes of a tensor that is leased all the same.
const SMALL: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Case;
    use crate::plan::tests::plan;

    #[tokio::test]
    async fn a_route_is_what_was_asked_for() -> Result<()> {
        let mut plan = plan("pipe", Case::Echo, 8);
        for (transport, channel, expected) in [
            (Transport::Tcp, None, ("tcp", "basic")),
            (Transport::Shm, None, ("shm", "basic")),
            (Transport::Memory, None, ("memory", "xth")),
            (Transport::Memory, Some("basic"), ("memory", "basic")),
            (Transport::Shm, Some("ring"), ("shm", "basic")),
            (Transport::Tcp, Some("mpt"), ("tcp", "mpt")),
            // Of several, the most preferred.
            (Transport::Memory, Some("default"), ("memory", "xth")),
        ] {
            plan.transport = transport;
            plan.channel = channel.map(str::to_owned);
            let context = context(&plan)?;
            let listener = context.listen([url(&plan)]).await?;
            let address = listener.url().to_string();
            let (pipe, _accepted) = tokio::try_join!(context.connect(address), listener.accept())?;
            let found = route(pipe.route(), None);
            assert_eq!((&*found.transport, &*found.channel), expected);
        }
        Ok(())
    }

    #[test]
    fn pages_are_named_by_what_the_pool_got() {
        let mut stats = LendableStats::default();
        assert_eq!(pages(&stats), "");
        (stats.mapped_bytes, stats.huge_bytes) = (6, 4);
        assert_eq!(pages(&stats), "huge + small");
        stats.reserved_bytes = 2;
        stats.fallbacks = 1;
        assert_eq!(pages(&stats), "set aside + huge + ordinary");
    }

    #[test]
    fn what_there_is_not_is_said() {
        let refused = |transport, channel: &str, pace| {
            let mut plan = plan("pipe", Case::Echo, 8);
            plan.transport = transport;
            plan.channel = Some(channel.to_owned());
            plan.pace = pace;
            let error = context(&plan).err().map(|error| error.to_string());
            error.unwrap_or_default()
        };
        let error = refused(Transport::Tcp, "smoke", None);
        assert!(error.contains("choose of: xth, lease"), "{error}");
        let error = refused(Transport::Tcp, "ring", None);
        assert!(error.contains("--transport shm"), "{error}");
        let error = refused(Transport::Shm, "basic", Some(1 << 20));
        assert!(error.contains("shm cannot be paced"), "{error}");
        assert_eq!(refused(Transport::Tcp, "mpt", Some(1 << 20)), "");
    }
}
