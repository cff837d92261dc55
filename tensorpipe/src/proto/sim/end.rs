//! One end: a pipe, and an application that keeps a diary of what it is told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{CHANNELS, Msg, hello};
use crate::error::{PeerFault, ResetCode};
use crate::proto::handshake::{ClientHandshake, ServerHandshake};
use crate::proto::wire::frame::Kind;
use crate::proto::wire::hello::{Brochure, WireLimits};
use crate::proto::{KeepAlive, Mark, OpId, PipeState, Room, Segment, Written};

pub(crate) type Source = Arc<[u8]>;
/// What comes in goes into memory that grows with it: a peer that announces much costs nothing yet.
pub(crate) type Pipe = PipeState<Source, Vec<u8>>;

/// A message as the application gets it.
#[derive(Clone, Debug)]
pub(crate) struct Delivered {
    pub(crate) message: u64,
    pub(crate) metadata: Vec<u8>,
    /// `None`: not here yet, skipped, or lost.
    pub(crate) parts: Vec<Option<Vec<u8>>>,
    /// Bulk parts that are to come.
    pub(super) missing: BTreeSet<u16>,
    pub(super) is_read: bool,
}

#[derive(Debug)]
pub(super) enum Out {
    Bytes(Vec<u8>),
    Mark(Mark),
}

#[derive(Debug)]
pub(super) enum Phase {
    Connecting(ClientHandshake),
    Listening(ServerHandshake),
    Open,
}

/// Bytes of a part, or of nobody, that are coming in past the protocol.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) dest: Option<Vec<u8>>,
    pub(super) left: u64,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) pipe: Pipe,
    pub(super) ours: WireLimits,
    pub(super) phase: Phase,
    pub(crate) input: Vec<u8>,
    /// The protocol has asked for so many bytes.
    pub(super) need: usize,
    pub(super) chunk: Option<Chunk>,
    pub(super) backlog: VecDeque<Out>,
    /// At most so many bytes come in at once.
    pub(crate) split: usize,
    pub(super) app: Application,
}

/// How an end's application behaves, and its diary: what it was told, in order.
#[derive(Debug, Default)]
pub(crate) struct Application {
    /// A message with nothing before it leaves without being queued.
    pub(crate) through: bool,
    /// It reads only what it is told to, not whatever is offered.
    pub(crate) lazy: bool,
    /// It has no memory for what comes ahead.
    pub(crate) is_full: bool,
    /// A channel's frame about a part does not complete the part.
    pub(crate) lanes_wait: bool,
    /// Channel 1 has connections of its own.
    pub(super) own_lanes: bool,
    /// Written as soon as the handshake is done.
    pub(crate) on_open: Vec<Msg>,
    /// Closes once these are written.
    pub(crate) close_after: bool,

    /// Offered and not yet decided on.
    pub(crate) ready: Vec<u64>,
    /// The last one offered.
    pub(crate) offered: Option<u64>,
    pub(crate) delivered: Vec<Delivered>,
    pub(crate) written: Vec<u64>,
    pub(crate) refused: Vec<(u64, ResetCode)>,
    pub(crate) resets: Vec<(u64, ResetCode)>,
    pub(crate) flushed: Vec<u64>,
    pub(crate) started: Vec<OpId>,
    pub(crate) cancelled: Vec<OpId>,
    pub(crate) goaway: Vec<u64>,
    pub(crate) fin: bool,
    pub(crate) fin_ack: bool,
    pub(crate) fault: Option<PeerFault>,
    pub(crate) silent: Option<(Duration, Instant)>,
    /// All frames sent.
    pub(crate) record: Vec<u8>,
    /// Their kinds and lengths.
    pub(crate) frames: Vec<(Kind, usize)>,
    /// Messages that were here whole with their channel's frame.
    pub(crate) adopted: Vec<u64>,
    /// Pieces of parts that have come, and the content of channel frames while [`lanes_wait`](Self::lanes_wait).
    pub(crate) pieces: Vec<(OpId, Vec<u8>)>,

    /// Messages from their head until all of them is here and read, or they are given up.
    pub(super) in_hand: BTreeMap<u64, Delivered>,
    /// Parts that leave on connections of channel 1's own; below, parts that have come there and nobody has read yet.
    pub(super) lane_out: Vec<(OpId, Vec<u8>)>,
    pub(crate) lane_in: BTreeMap<OpId, Vec<u8>>,
}

impl Deref for End {
    type Target = Application;

    fn deref(&self) -> &Application {
        &self.app
    }
}

impl DerefMut for End {
    fn deref_mut(&mut self) -> &mut Application {
        &mut self.app
    }
}

impl Application {
    /// Forgets a message that is given up.
    pub(super) fn drop_message(&mut self, message: u64) {
        self.ready.retain(|ready| *ready != message);
        self.in_hand.remove(&message);
    }

    /// What is wrong with what the peer has sent; empty if nothing is.
    pub(crate) fn complaint(&self) -> String {
        let fault = self.fault.as_ref();
        fault.map(PeerFault::to_string).unwrap_or_default()
    }

    /// Messages that it has begun to read.
    pub(crate) fn under_way(&self) -> Vec<u64> {
        let read = self.in_hand.iter().filter(|(_, in_hand)| in_hand.is_read);
        read.map(|(message, _)| *message).collect()
    }

    /// What was delivered, each message once, in the order in which they were written.
    pub(crate) fn in_order(&self) -> Vec<Delivered> {
        let mut all = self.delivered.clone();
        all.sort_by_key(|delivered| delivered.message);
        assert!(all.windows(2).all(|two| two[0].message < two[1].message));
        all
    }

    /// The parts of each delivered message, in the order in which the messages were written.
    pub(crate) fn contents(&self) -> Vec<Vec<Option<Vec<u8>>>> {
        let all = self.in_order().into_iter();
        all.map(|delivered| delivered.parts).collect()
    }

    /// Kinds of the frames sent, but for the first `from`.
    pub(crate) fn kinds(&self, from: usize) -> Vec<Kind> {
        let kinds = self.frames[from..].iter().map(|(kind, _)| *kind);
        kinds.collect()
    }

    /// How many frames of this kind were sent.
    pub(crate) fn sent(&self, kind: Kind) -> usize {
        self.kinds(0).iter().filter(|sent| **sent == kind).count()
    }

    /// The numbers of the parts that channels were given.
    pub(crate) fn parts_started(&self) -> Vec<u16> {
        self.started.iter().map(|op| op.part).collect()
    }
}

impl End {
    pub(crate) fn open(
        ours: WireLimits,
        peer: WireLimits,
        silence: Option<Duration>,
        now: Instant,
    ) -> Self {
        Self {
            pipe: PipeState::new(ours, peer, CHANNELS, KeepAlive::new(silence, now)),
            ours,
            phase: Phase::Open,
            input: Vec::new(),
            need: 0,
            chunk: None,
            backlog: VecDeque::new(),
            split: usize::MAX,
            app: Application::default(),
        }
    }

    pub(super) fn connect(&mut self) {
        let hello = hello("a", self.ours, Brochure::default());
        self.phase = Phase::Connecting(ClientHandshake::default());
        self.backlog.push_back(Out::Bytes(hello));
    }

    pub(super) fn listen(&mut self) {
        self.phase = Phase::Listening(ServerHandshake::default());
    }

    pub(crate) fn write(&mut self, message: &Msg) -> u64 {
        let waits = |out: &Out| matches!(out, Out::Mark(_));
        let leaves = self.through && !self.backlog.iter().any(waits);
        let (mut out, mut segments) = (Vec::new(), Vec::new());
        let room = leaves.then_some(Room {
            out: &mut out,
            segments: &mut segments,
        });
        let mut parts = message.outgoing(self.pipe.peer_limits());
        let written = self.pipe.write(&message.metadata, &mut parts, room);
        let Written {
            number,
            sent,
            pending,
        } = written.unwrap_or_else(|misuse| panic!("{misuse}"));
        if sent {
            segments.insert(0, Segment::Control(out.len()));
            // The link may take all of it at once, or not.
            if number % 2 == 0 {
                self.pipe.sent_in_part(number);
                segments.push(Segment::Mark(Mark::Message(number)));
            } else if !pending {
                self.written.push(number);
            }
            self.leave(&out, segments);
        }
        number
    }

    /// Writes a message so many times.
    pub(crate) fn write_times(&mut self, times: u32, message: &Msg) {
        for _ in 0..times {
            self.write(message);
        }
    }

    pub(crate) fn read(&mut self, message: u64) {
        self.read_but(message, &[]);
    }

    /// Reads a message but for some parts.
    pub(crate) fn read_but(&mut self, message: u64, skip: &[u16]) {
        let Some(at) = self.ready.iter().position(|ready| *ready == message) else {
            return;
        };
        self.ready.remove(at);
        let in_hand = self.app.in_hand.get_mut(&message).unwrap();
        let granted = self.pipe.grant(message, skip);
        assert!(granted, "message {message} was ready");
        in_hand.is_read = true;
        for (part, place) in (0..).zip(&mut in_hand.parts) {
            let Some((channel, ahead)) = self.pipe.bulk_channel(message, part) else {
                continue;
            };
            let skipped = skip.contains(&part);
            if skipped {
                *place = None;
            }
            // What comes ahead still comes.
            if skipped && !ahead {
                in_hand.missing.remove(&part);
            } else if !ahead && channel == 0 {
                let op = OpId::incoming(message, part);
                let len = self.pipe.part_len(op).unwrap();
                assert!(self.pipe.expect(op, Vec::new(), len));
            }
        }
        self.check_read(message);
        self.take_lane();
    }

    /// Does not want a message, or no more of it.
    pub(crate) fn refuse(&mut self, message: u64, code: ResetCode) {
        self.drop_message(message);
        self.pipe.refuse(message, code, "no");
        self.events();
    }

    pub(crate) fn reset(&mut self, message: u64) {
        self.pipe.reset(message, ResetCode::Cancelled, "enough");
        self.events();
    }

    /// The application drops what it was reading.
    pub(crate) fn forget(&mut self, message: u64) {
        self.drop_message(message);
        self.pipe.finish(message);
        self.events();
    }

    pub(super) fn check_read(&mut self, message: u64) {
        let in_hand = self.in_hand.get(&message);
        if in_hand.is_some_and(|in_hand| in_hand.is_read && in_hand.missing.is_empty()) {
            let read = self.in_hand.remove(&message).unwrap();
            self.delivered.push(read);
            self.pipe.finish(message);
        }
    }
}
