//! Test doubles for channels and transports: they forward to a real one, except where a test overrides it. Tests build hostile peers and
//! failing backends from them.

use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use tensorpipe::channels::{
    Channel, ChannelFault, DeviceOffer, Lane, LaneIo, Link, OpId, Pays, PieceEvent, Threshold, Want,
};
use tensorpipe::device::MemoryKind;
use tensorpipe::transports::{Acceptor, BoxFuture, Connection, Transport};
use tensorpipe::{Buffer, BufferMut, Device, Error};

type Reaches = dyn Fn(DeviceOffer<'_>, DeviceOffer<'_>) -> Result<(), String> + Send + Sync;
type Opens = dyn Fn(Link) -> Result<Box<dyn Lane>, Error> + Send + Sync;

/// A test double for a channel.
pub struct Double {
    honest: Arc<dyn Channel>,
    name: &'static str,
    devices: Vec<(Device, Vec<u8>)>,
    /// Whether the double claims to carry every tensor, wherever its peer is.
    is_liar: bool,
    thresholds: Option<Vec<Threshold>>,
    connections: u8,
    reaches: Option<Box<Reaches>>,
    opens: Option<Box<Opens>>,
}

impl Double {
    /// A double that behaves like `honest`.
    pub fn of(honest: Arc<dyn Channel>) -> Self {
        Self {
            name: honest.name(),
            devices: honest.devices(),
            is_liar: false,
            thresholds: None,
            connections: honest.connections(),
            reaches: None,
            opens: None,
            honest,
        }
    }

    /// A hostile channel under a name that the other end knows. It claims to reach every device and to carry every tensor; its lanes are
    /// the test's.
    pub fn liar<L: Says + 'static>(
        honest: impl Channel,
        lane: impl Fn(Link) -> L + Send + Sync + 'static,
    ) -> Self {
        let mut liar = Self::of(Arc::new(honest)).with_lanes(lane);
        (liar.is_liar, liar.connections) = (true, 0);
        liar.thresholds = Some(vec![Threshold::new(Pays::From(1))]);
        liar.reaching(|_, _| Ok(()))
    }

    /// Sets another name.
    pub fn named(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }

    /// Sets the descriptor that it offers for main memory.
    pub fn at(mut self, descriptor: Vec<u8>) -> Self {
        self.devices = vec![(Device::CPU, descriptor)];
        self
    }

    /// Sets which peers it reaches.
    pub fn reaching(
        mut self,
        reaches: impl Fn(DeviceOffer<'_>, DeviceOffer<'_>) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.reaches = Some(Box::new(reaches));
        self
    }

    /// Sets the length from which the channel pays.
    pub fn with_threshold(mut self, threshold: Threshold) -> Self {
        self.thresholds = Some(vec![threshold]);
        self
    }

    /// Sets the number of the channel's own connections.
    pub fn with_connections(mut self, connections: u8) -> Self {
        self.connections = connections;
        self
    }

    /// Replaces the lanes.
    pub fn with_lanes<L: Says + 'static>(
        self,
        lane: impl Fn(Link) -> L + Send + Sync + 'static,
    ) -> Self {
        self.opening(move |link| Ok(Box::new(Spoken(lane(link)))))
    }

    /// Replaces `open`, which may fail or return any kind of lane.
    pub fn opening(
        mut self,
        opens: impl Fn(Link) -> Result<Box<dyn Lane>, Error> + Send + Sync + 'static,
    ) -> Self {
        self.opens = Some(Box::new(opens));
        self
    }

    /// For [`tensorpipe::ContextBuilder::channels`].
    pub fn channel(self) -> Arc<dyn Channel> {
        Arc::new(self)
    }
}

impl std::fmt::Debug for Double {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct(self.name).finish_non_exhaustive()
    }
}

impl Channel for Double {
    fn name(&self) -> &'static str {
        self.name
    }

    fn devices(&self) -> Vec<(Device, Vec<u8>)> {
        self.devices.clone()
    }

    fn reaches(&self, ours: DeviceOffer<'_>, theirs: DeviceOffer<'_>) -> Result<(), String> {
        match &self.reaches {
            Some(reaches) => reaches(ours, theirs),
            None => self.honest.reaches(ours, theirs),
        }
    }

    fn in_process(&self) -> bool {
        !self.is_liar && self.honest.in_process()
    }

    fn connections(&self) -> u8 {
        self.connections
    }

    fn thresholds(&self, peer: &[(Device, Vec<u8>)]) -> Vec<Threshold> {
        let own = self.thresholds.clone();
        own.unwrap_or_else(|| self.honest.thresholds(peer))
    }

    fn moves_bytes(&self, memory: MemoryKind) -> bool {
        self.is_liar || self.honest.moves_bytes(memory)
    }

    fn borrows(&self) -> bool {
        self.is_liar || self.honest.borrows()
    }

    fn sends_at_once(&self) -> bool {
        self.honest.sends_at_once()
    }

    fn open(&self, link: Link) -> Result<Box<dyn Lane>, Error> {
        match &self.opens {
            Some(opens) => opens(link),
            None => self.honest.open(link),
        }
    }
}

/// A lane of a test. Methods that it does not implement forward to the honest lane, if there is one.
pub trait Says: Send {
    /// The honest lane.
    fn honest(&mut self) -> Option<&mut dyn Lane> {
        None
    }

    /// As [`Lane::send`].
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        if let Some(honest) = self.honest() {
            honest.send(op, source, io);
        }
    }

    /// As [`Lane::recv`].
    fn recv(&mut self, op: OpId, want: Want, io: &mut LaneIo<'_>) {
        if let Some(honest) = self.honest() {
            honest.recv(op, want, io);
        }
    }

    /// As [`Lane::control`].
    ///
    /// # Errors
    /// As there.
    fn control(&mut self, op: OpId, body: &[u8], io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        let honest = self.honest();
        honest.map_or(Ok(()), |honest| honest.control(op, body, io))
    }

    /// As [`Lane::streamed`].
    fn streamed(&mut self, op: OpId, dest: Option<BufferMut>, io: &mut LaneIo<'_>) {
        match (self.honest(), dest) {
            (Some(honest), dest) => honest.streamed(op, dest, io),
            (None, Some(dest)) => io.received(op, dest.freeze()),
            (None, None) => io.sent(op),
        }
    }

    /// As [`Lane::resume`].
    ///
    /// # Errors
    /// As there.
    fn resume(&mut self, op: OpId, io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        let honest = self.honest();
        honest.map_or(Ok(()), |honest| honest.resume(op, io))
    }
}

struct Spoken<L>(L);

impl<L: Says> Lane for Spoken<L> {
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        self.0.send(op, source, io);
    }

    fn recv(&mut self, op: OpId, want: Want, io: &mut LaneIo<'_>) {
        self.0.recv(op, want, io);
    }

    fn control(&mut self, op: OpId, body: &[u8], io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        self.0.control(op, body, io)
    }

    fn streamed(&mut self, op: OpId, dest: Option<BufferMut>, io: &mut LaneIo<'_>) {
        self.0.streamed(op, dest, io);
    }

    fn resume(&mut self, op: OpId, io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        self.0.resume(op, io)
    }

    fn inner(
        &mut self,
        piece: OpId,
        event: PieceEvent<'_>,
        io: &mut LaneIo<'_>,
    ) -> Result<(), ChannelFault> {
        let none = || ChannelFault("nothing is carried in pieces".to_owned());
        self.0.honest().ok_or_else(none)?.inner(piece, event, io)
    }

    fn cancel(&mut self, op: OpId, io: &mut LaneIo<'_>) {
        if let Some(honest) = self.0.honest() {
            honest.cancel(op, io);
        }
    }
}

type Wraps = dyn Fn(Box<dyn Connection>) -> Box<dyn Connection> + Send + Sync;

/// A test double for a transport, with another name or other connections.
#[derive(Clone)]
pub struct Over {
    inner: Arc<dyn Transport>,
    name: &'static str,
    domain: Vec<u8>,
    side: Option<&'static str>,
    connects: Arc<Wraps>,
    accepts: Arc<Wraps>,
}

impl Over {
    /// A double that behaves like `inner` and is called `name`.
    pub fn new(name: &'static str, inner: impl Transport) -> Self {
        Self {
            domain: inner.domain(),
            inner: Arc::new(inner),
            name,
            side: None,
            connects: Arc::new(|connection| connection),
            accepts: Arc::new(|connection| connection),
        }
    }

    /// Offers a side address, so that pipes upgrade to this transport. The transport's name is its domain.
    pub fn at_side(mut self, address: &'static str) -> Self {
        (self.side, self.domain) = (Some(address), self.name.as_bytes().to_vec());
        self
    }

    /// Replaces the connections of the end that connects.
    pub fn connecting(
        mut self,
        wraps: impl Fn(Box<dyn Connection>) -> Box<dyn Connection> + Send + Sync + 'static,
    ) -> Self {
        self.connects = Arc::new(wraps);
        self
    }

    /// Replaces the connections of both ends.
    pub fn wrapping(
        mut self,
        wraps: impl Fn(Box<dyn Connection>) -> Box<dyn Connection> + Send + Sync + 'static,
    ) -> Self {
        self.connects = Arc::new(wraps);
        self.accepts = self.connects.clone();
        self
    }
}

impl std::fmt::Debug for Over {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct(self.name).finish_non_exhaustive()
    }
}

impl Transport for Over {
    fn name(&self) -> &'static str {
        self.name
    }

    fn domain(&self) -> Vec<u8> {
        self.domain.clone()
    }

    fn connect<'a>(
        &'a self,
        address: &'a str,
    ) -> BoxFuture<'a, Result<Box<dyn Connection>, Error>> {
        Box::pin(async move { Ok((self.connects)(self.inner.connect(address).await?)) })
    }

    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Box<dyn Acceptor>, Error>> {
        Box::pin(async move {
            let (inner, wraps) = (self.inner.listen(address).await?, self.accepts.clone());
            Ok(Box::new(OverAcceptor { inner, wraps }) as Box<dyn Acceptor>)
        })
    }

    fn upgrade_address(&self) -> Option<String> {
        self.side.map(str::to_owned)
    }
}

struct OverAcceptor {
    inner: Box<dyn Acceptor>,
    wraps: Arc<Wraps>,
}

impl Acceptor for OverAcceptor {
    fn address(&self) -> String {
        self.inner.address()
    }

    fn poll_accept(
        &mut self,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Result<Box<dyn Connection>, Error>> {
        let accepted = self.inner.poll_accept(cx);
        accepted.map_ok(|inner| (self.wraps)(inner))
    }
}
