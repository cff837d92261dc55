//! A way (a transport and a channel) and the tasks that talk over it. Each end of a pipe writes and reads at the same time, until the pipe
//! has ended or the end is asked to stop.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Result, ensure};
use fastrand::Rng;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde::Serialize;
use tensorpipe::channels::{BasicChannel, Channel, CmaChannel, LeaseChannel, MptChannel};
use tensorpipe::transports::{MemoryTransport, ShmTransport, TcpTransport, Transport};
use tensorpipe::{
    Buffer, ConnectPolicy, Context, DType, Error, Message, Misuse, Payload, Pipe, Route, Tensor,
    channels::{Pays, Threshold},
};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::pattern;
use crate::soak::parcel::{check, length};
use crate::system::ours;

/// A transport and a channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    transport: &'static str,
    /// `None`: what the negotiation chooses, on any transport.
    pub(super) channel: Option<&'static str>,
}

/// Each channel over each transport between processes, the ways within one process, and a context with every default.
pub(super) fn ways() -> Vec<Way> {
    let mut ways = vec![Way {
        transport: "tcp",
        channel: None,
    }];
    for transport in ["shm", "tcp", "memory"] {
        for channel in ours::channels(MptChannel::new()) {
            // Channel `xth` hands memory over within a process.
            if channel.name() != "xth" || transport == "memory" {
                let channel = Some(channel.name());
                ways.push(Way { transport, channel });
            }
        }
    }
    ways
}

impl Way {
    /// For people: `shm + basic`.
    pub(super) fn name(self) -> String {
        match self.channel {
            Some(channel) => format!("{} + {channel}", self.transport),
            None => "default".to_owned(),
        }
    }

    /// Whether both ends are in one process.
    pub(super) fn is_within(self) -> bool {
        self.transport == "memory"
    }

    /// A context with only this way, and `basic` for parts that the channel does not carry.
    fn context(self) -> Result<Context> {
        let builder = Context::builder().connect_policy(ConnectPolicy::once());
        let Some(wanted) = self.channel else {
            return Ok(builder.build()?);
        };
        let transport: Arc<dyn Transport> = match self.transport {
            "shm" => Arc::new(ShmTransport::new()),
            "memory" => Arc::new(MemoryTransport::new()),
            _ => Arc::new(TcpTransport::new()),
        };
        let mut channels = ours::channels(MptChannel::new());
        channels.retain(|channel| [wanted, "basic"].contains(&channel.name()));
        // Within one process, also allows channels that are meant for two.
        let within: Option<Arc<dyn Channel>> = match wanted {
            "cma" => Some(Arc::new(CmaChannel::also_within_process())),
            "lease" => Some(Arc::new(LeaseChannel::also_within_process())),
            _ => None,
        };
        if let Some(within) = within.filter(|_| self.is_within()) {
            channels = vec![within, Arc::new(BasicChannel::new())];
        }
        let mut builder = builder.transports([transport]).channels(channels);
        if ["cma", "mpt"].contains(&wanted) {
            // Uses the channel for any length and transport, not only where it pays.
            builder = builder.threshold(wanted, Threshold::new(Pays::BeyondFrame));
        }
        Ok(builder.build()?)
    }

    fn url(self) -> String {
        let (process, channel) = (std::process::id(), self.channel.unwrap_or("any"));
        match self.transport {
            "tcp" => "tcp://127.0.0.1:0".to_owned(),
            other => format!("{other}://soak-{process}-{channel}"),
        }
    }
}

/// Counts of carried data, of outcomes, and of faults.
#[derive(Debug, Default)]
pub(super) struct Book(Mutex<Entries>);

#[derive(Debug, Default)]
pub(super) struct Entries {
    pub(super) ways: BTreeMap<String, Carried>,
    pub(super) endings: BTreeMap<&'static str, u64>,
    faults: Vec<String>,
}

/// What one way has carried to this process.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Carried {
    pub(super) pipes: u64,
    pub(super) messages: u64,
    pub(super) bytes: u64,
    /// Tensors and payloads that this process gave to the way's own channel.
    pub(super) given: u64,
    /// Why this machine does not support the channel.
    pub(super) refused: Option<String>,
}

impl Book {
    pub(super) fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn no_faults(&self) -> Result<()> {
        let faults = &self.lock().faults;
        ensure!(faults.is_empty(), "{}", faults.join("; "));
        Ok(())
    }
}

/// A way on which this process listens and connects.
pub(super) struct Stage {
    pub(super) way: Way,
    pub(super) context: Context,
    pub(super) url: String,
    /// Set to true, it tells the talks to write no more and to close in good order.
    pub(super) stop: watch::Sender<bool>,
    book: Arc<Book>,
    largest: u64,
    talks: TaskTracker,
    /// Every sent buffer of ordinary memory holds a clone of this until its last handle is dropped.
    held: Arc<()>,
}

impl Stage {
    pub(super) async fn open(
        way: Way,
        book: &Arc<Book>,
        largest: u64,
        mut rng: Rng,
    ) -> Result<Arc<Self>> {
        let context = way.context()?;
        let listener = context.listen([way.url()]).await?;
        let stage = Arc::new(Self {
            way,
            url: listener.url().to_string(),
            context,
            stop: watch::Sender::new(false),
            book: book.clone(),
            largest,
            talks: TaskTracker::new(),
            held: Arc::default(),
        });
        // The accepting task ends when its context is closed.
        let accepting = stage.clone();
        tokio::spawn(async move {
            while let Ok(pipe) = listener.accept().await {
                let (stage, rng) = (accepting.clone(), rng.fork());
                accepting
                    .talks
                    .spawn(async move { stage.talk(&pipe, rng).await });
            }
        });
        Ok(stage)
    }

    /// Connects, and talks.
    pub(super) fn connect(self: &Arc<Self>, url: String, rng: Rng) {
        let stage = self.clone();
        self.talks.spawn(async move {
            match stage.context.connect(&url).await {
                Ok(pipe) => stage.talk(&pipe, rng).await,
                Err(error) => stage.ended("connect", &error),
            }
        });
    }

    /// Waits until nobody talks.
    pub(super) async fn silence(&self) {
        self.talks.close();
        self.talks.wait().await;
        self.talks.reopen();
    }

    /// Payloads and tensors of ordinary memory that somebody still holds.
    pub(super) fn parts_held(&self) -> u64 {
        Arc::strong_count(&self.held) as u64 - 1
    }

    async fn talk(&self, pipe: &Pipe, mut rng: Rng) {
        self.carried(|carried| carried.pipes += 1);
        let (speaking, hearing) = (rng.fork(), rng.fork());
        tokio::join!(self.speak(pipe, speaking), self.hear(pipe, hearing));
        if let Some(channel) = self.way.channel {
            self.went(channel, pipe.route());
        }
    }

    async fn speak(&self, pipe: &Pipe, mut rng: Rng) {
        let mut under_way = FuturesUnordered::new();
        // One tensor of each kind of memory, too large for the message's own frame, so that every channel carries something.
        let mut parts = vec![(Part::Heap, FIRST), (Part::Pool, FIRST)];
        let mut chance = u64::MAX;
        while !*self.stop.borrow() && !pipe.has_ended() {
            match self.message(&mut rng, &parts) {
                // The write is cancelled at once, or awaited with a few others.
                Ok(message) if chance == 0 => pipe.write(message).cancel(),
                Ok(message) => under_way.push(pipe.write(message)),
                Err(misuse) => self.fault(&misuse),
            }
            if under_way.len() >= UNDER_WAY
                && let Some(Err(error)) = under_way.next().await
            {
                self.ended("write", &error);
            }
            let count = rng.u64(..4);
            let mut draw = |_| {
                (
                    Part::draw(&mut rng),
                    length(&mut rng, self.largest) as usize,
                )
            };
            parts = (0..count).map(&mut draw).collect();
            chance = rng.u64(..24);
            tokio::task::yield_now().await;
        }
        while let Some(written) = under_way.next().await {
            if let Err(error) = written {
                self.ended("write", &error);
            }
        }
        if *self.stop.borrow()
            && let Err(error) = pipe.close().await
        {
            self.ended("close", &error);
        }
    }

    async fn hear(&self, pipe: &Pipe, mut rng: Rng) {
        // The first message is read.
        let mut chance = u64::MAX;
        loop {
            let incoming = match pipe.read_descriptor().await {
                Ok(incoming) => incoming,
                Err(error) => return self.ended("read_descriptor", &error),
            };
            match chance {
                0 => incoming.skip(),
                1 => incoming.refuse("not today"),
                // The read is cancelled while it is in flight.
                2 => drop(incoming.read()),
                _ => match incoming.read().await {
                    Ok(message) => self.heard(&message),
                    Err(error) => self.ended("read", &error),
                },
            }
            chance = rng.u64(..32);
        }
    }

    /// Makes a message of these parts, payloads first. The metadata has the seed and the length of each part.
    fn message(&self, rng: &mut Rng, parts: &[(Part, usize)]) -> Result<Message, Misuse> {
        let mut message = Message::new(Vec::new());
        let (mut payloads, mut tensors) = (Vec::new(), Vec::new());
        for &(part, len) in parts {
            let number = rng.u64(..);
            let owned = || Lent::new(number, len, &self.held);
            match part {
                Part::Payload => message.payloads.push(Payload::new(owned())),
                Part::Heap => {
                    let tensor = Tensor::from_bytes(Buffer::from_owner(owned()));
                    message.tensors.push(tensor.into());
                }
                Part::Pool => {
                    let mut tensor = self.context.pool().tensor(DType::U8, [len as u64])?;
                    pattern::fill(tensor.make_mut::<u8>()?, number);
                    message.tensors.push(tensor.into());
                }
            }
            match part {
                Part::Payload => payloads.push([number, len as u64]),
                Part::Heap | Part::Pool => tensors.push([number, len as u64]),
            }
        }
        payloads.extend(tensors);
        let words = payloads
            .iter()
            .flatten()
            .flat_map(|word| word.to_le_bytes());
        message.metadata = words.collect::<Vec<_>>().into();
        Ok(message)
    }

    fn heard(&self, message: &Message) {
        match checked(message) {
            Ok(bytes) => self.carried(|carried| {
                carried.messages += 1;
                carried.bytes += bytes;
            }),
            Err(wrong) => self.fault(&wrong),
        }
    }

    /// Records what a pipe of the way carried; `channel` should have carried it.
    fn went(&self, channel: &str, route: &Route) {
        let used = route.channels.iter().find(|used| used.name == channel);
        let candidate = format!("channel {channel}");
        let mut refused = route.refused.iter();
        let refused = refused.find(|refusal| refusal.candidate == candidate);
        self.carried(|carried| {
            carried.given += used.map_or(0, |used| used.carried.parts());
            carried.refused = refused.map(|refusal| refusal.reason.to_string());
        });
    }

    /// Records an error. It is a fault unless the kill of a peer explains it.
    fn ended(&self, what: &str, error: &Error) {
        let (kind, is_expected) = judge(error);
        *self.book.lock().endings.entry(kind).or_default() += 1;
        if !is_expected {
            self.fault(&format!("{what}: {error}"));
        }
    }

    fn fault(&self, what: &impl ToString) {
        let fault = format!("{}: {}", self.way.name(), what.to_string());
        self.book.lock().faults.push(fault);
    }

    fn carried(&self, change: impl FnOnce(&mut Carried)) {
        change(self.book.lock().ways.entry(self.way.name()).or_default());
    }
}

#[derive(Clone, Copy)]
enum Part {
    Payload,
    /// A tensor of ordinary memory.
    Heap,
    /// A tensor of the context's pool.
    Pool,
}

impl Part {
    fn draw(rng: &mut Rng) -> Self {
        match rng.u64(..8) {
            0 | 1 => Self::Payload,
            2..=4 => Self::Heap,
            _ => Self::Pool,
        }
    }
}

/// Memory that counts as held as long as a handle on it exists.
struct Lent {
    bytes: Vec<u8>,
    _held: Arc<()>,
}

impl Lent {
    fn new(number: u64, len: usize, held: &Arc<()>) -> Self {
        let mut bytes = vec![0; len];
        pattern::fill(&mut bytes, number);
        Self {
            bytes,
            _held: held.clone(),
        }
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Checks every byte of a message that [`Stage::message`] made. Returns the number of bytes.
fn checked(message: &Message) -> Result<u64> {
    let (words, rest) = message.metadata.as_chunks::<8>();
    let words: Vec<_> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let mut parts: Vec<_> = message.payloads.iter().map(Payload::as_bytes).collect();
    for tensor in &message.tensors {
        parts.push(tensor.tensor.as_bytes()?);
    }
    let (words, came) = (words.as_chunks::<2>().0, parts.len());
    ensure!(
        rest.is_empty() && words.len() == came,
        "{came} parts came for {}",
        words.len()
    );
    for (part, [number, len]) in parts.iter().zip(words) {
        let found = part.len() as u64;
        ensure!(found == *len, "a part has {found} bytes of {len}");
        check(part, *number)?;
    }
    Ok(parts.iter().map(|part| part.len() as u64).sum())
}

/// The kind of an error, in a word, and whether the kill of a peer explains it.
fn judge(error: &Error) -> (&'static str, bool) {
    match error {
        Error::Lost { .. } => ("lost", true),
        Error::Closed { .. } => ("closed", true),
        Error::Reset { .. } => ("reset", true),
        Error::Refused { .. } => ("refused", true),
        Error::GoingAway { .. } => ("going away", true),
        // A channel may see the end of the peer's process before the connection does.
        Error::Channel { .. } => ("channel", true),
        Error::Unsent { source, .. } => judge(source),
        Error::Connect { source, .. } => match **source {
            Error::Lost { .. } => ("connect: lost", true),
            Error::Closed { .. } => ("connect: closed", true),
            Error::System(_) => ("connect: system", true),
            Error::Rejected { .. } => ("connect: rejected", true),
            _ => ("connect", false),
        },
        _ => ("fault", false),
    }
}

/// Bytes of the first tensors: more than fits into a message's own frame.
const FIRST: usize = 200 << 10;
/// Writes of one end that are under way at once.
const UNDER_WAY: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_made_checks_and_is_counted_until_it_is_dropped() -> Result<()> {
        let (way, book) = (ways()[0], Arc::default());
        let stage = Stage::open(way, &book, 1 << 20, Rng::with_seed(1)).await?;
        let parts = [(Part::Heap, 1000), (Part::Payload, 7), (Part::Pool, 0)];
        let message = stage.message(&mut Rng::with_seed(2), &parts)?;
        assert_eq!((checked(&message)?, stage.parts_held()), (1007, 2));
        let mut other = message.clone();
        other.tensors[0] = Tensor::from(vec![0; 1000]).into();
        assert!(checked(&other).is_err());
        other.tensors.pop();
        assert!(checked(&other).is_err());
        drop((message, other));
        assert_eq!(stage.parts_held(), 0);
        Ok(())
    }
}
