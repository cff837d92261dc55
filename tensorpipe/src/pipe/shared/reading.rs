//! A read under way: which parts are there, and where they go.

use std::collections::BTreeMap;
use std::mem;

use smallvec::SmallVec;

use super::Arrival;

use crate::device::{Buffer, BufferMut, Device};
use crate::error::Error;
use crate::message::{Message, MessageTensor, Payload};
use crate::pipe::budget::{Announced, Held, Reservation, out_of_memory};
use crate::pipe::stats::MessageStats;
use crate::proto::{Carriage, Head, OpId};
use crate::sys::copy;
use crate::tensor::{Shape, Tensor};

/// See the module's documentation.
#[derive(Debug)]
pub(in crate::pipe) struct Reading {
    /// `None` while parts come ahead of the application's read, and once it is complete.
    head: Option<Head>,
    /// Who gets the message.
    pub(in crate::pipe) reader: Recipient,
    /// How many parts have bytes and are wanted; counted once, since there may be thousands. Until the message has a reader: how many parts
    /// come ahead.
    wanted: usize,
    ahead: Ahead,
    /// The parts that come ahead, in their order.
    credited: SmallVec<[u16; 4]>,
    /// Parts that are there, by number.
    parts: Vec<(u16, Buffer)>,
    /// The application's memory for parts that come ahead into pooled memory, from where they are copied.
    places: Vec<(u16, BufferMut)>,
    /// Parts that were not wanted.
    skipped: Vec<u16>,
    /// Parts that the reader wants on another device than the writer named: which, from where, to where.
    redirected: Vec<(u16, Device, Device)>,
    /// The budget of parts in pooled memory, until the application has them.
    reservation: Reservation,
    /// Address space announced for its parts, likewise.
    announced: Vec<Announced>,
    /// Both for pieces of parts, until their channel needs the pieces no more.
    pieces: BTreeMap<OpId, (Reservation, Vec<Announced>)>,
    /// How its parts came.
    pub(in crate::pipe) stats: MessageStats,
    /// How the read ended, until its reader takes that.
    result: Option<Result<Message, Error>>,
}

/// Who gets a message once it is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pipe) enum Recipient {
    /// Parts come ahead of the application's read.
    None,
    /// A task that called read, and waits.
    Waits,
    /// The handler, which has accepted it.
    Handler,
    /// Nobody any more: what still comes is thrown away.
    Gone,
}

/// Whether parts of a message come before it has a reader. Their credit bounds them, so the budget does not count them until a handler
/// keeps them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ahead {
    No,
    Some,
    All,
}

impl Reading {
    /// Parts may come before anybody has asked for them.
    pub(in crate::pipe) fn new(reservation: Reservation) -> Self {
        Self {
            head: None,
            reader: Recipient::None,
            wanted: 0,
            ahead: Ahead::No,
            credited: SmallVec::new(),
            parts: Vec::new(),
            places: Vec::new(),
            skipped: Vec::new(),
            redirected: Vec::new(),
            reservation,
            announced: Vec::new(),
            pieces: BTreeMap::new(),
            stats: MessageStats::default(),
            result: None,
        }
    }

    /// These parts, in their order, come ahead of the application's read; `all`: every part that is not in the frame is among them.
    pub(in crate::pipe) fn comes_ahead(&mut self, parts: SmallVec<[u16; 4]>, all: bool) {
        self.wanted = parts.len();
        self.credited = parts;
        self.ahead = if all { Ahead::All } else { Ahead::Some };
    }

    pub(in crate::pipe) fn is_ahead(&self) -> bool {
        self.ahead != Ahead::No
    }

    /// Whether all of the message is here, and nobody has read it.
    pub(in crate::pipe) fn has_come(&self) -> bool {
        let all = self.ahead == Ahead::All && self.parts.len() == self.wanted;
        all && self.reader == Recipient::None && self.result.is_none()
    }

    /// Why a message that nobody has read yet cannot be received any more.
    pub(in crate::pipe) fn failed(&self) -> Option<&Error> {
        let result = self.result.as_ref();
        let unread = result.filter(|_| self.reader == Recipient::None);
        unread.and_then(|result| result.as_ref().err())
    }

    /// The parts of an unread message, in order, and how they came.
    pub(in crate::pipe) fn into_come(mut self) -> (Vec<(u16, Buffer)>, MessageStats) {
        self.parts.sort_unstable_by_key(|(part, _)| *part);
        (self.parts, self.stats)
    }

    /// Bytes of all parts of a message that has a reader.
    pub(in crate::pipe) fn byte_len(&self) -> u64 {
        self.head.as_ref().map_or(0, Head::byte_len)
    }

    /// The application reads the message.
    pub(in crate::pipe) fn start(
        &mut self,
        arrival: Arrival,
        places: Vec<(u16, BufferMut)>,
        skipped: Vec<u16>,
        redirected: Vec<(u16, Device, Device)>,
        reader: Recipient,
    ) {
        let (head, here, came) = arrival.into_parts();
        let wanted = (0..head.carriages().len())
            .filter(|part| head.part_len(*part) > 0 && !skipped.contains(&(*part as u16)));
        self.wanted = wanted.count();
        self.head = Some(head);
        self.reader = reader;
        self.stats += came;
        self.parts.extend(here);
        self.parts.retain(|(part, _)| !skipped.contains(part));
        self.places = places;
        self.skipped = skipped;
        self.redirected = redirected;
    }

    /// Keeps the budget that a part, or a piece of one, has taken.
    pub(in crate::pipe) fn keep(
        &mut self,
        op: OpId,
        announced: Announced,
        taken: Option<Reservation>,
    ) {
        let (reservation, kept) = self.taken_by(op);
        kept.push(announced);
        if let Some(taken) = taken {
            reservation.absorb(taken);
        }
    }

    /// Takes budget for `bytes` of memory that `op` is about to fill.
    pub(in crate::pipe) fn grow(&mut self, op: OpId, bytes: u64) -> Result<(), Error> {
        let grown = self.taken_by(op).0.grow(bytes);
        grown.map_err(|reason| {
            let whole = self.head.as_ref();
            out_of_memory(whole.map_or(bytes, Head::byte_len), reason)
        })
    }

    /// Gives back budget of `op`, whose memory is free again.
    pub(in crate::pipe) fn shrink(&mut self, op: OpId, bytes: u64) {
        self.taken_by(op).0.shrink(bytes);
    }

    fn taken_by(&mut self, op: OpId) -> (&mut Reservation, &mut Vec<Announced>) {
        if op.number().is_none() {
            return (&mut self.reservation, &mut self.announced);
        }
        let fresh = || (self.reservation.another(), Vec::new());
        let (reservation, announced) = self.pieces.entry(op).or_insert_with(fresh);
        (reservation, announced)
    }

    /// Gives back the budget of a piece, whose memory is free or about to be.
    pub(in crate::pipe) fn release(&mut self, piece: OpId) {
        self.pieces.remove(&piece);
    }

    /// All of a part has come. If it is in main memory, the budget of its pieces becomes the message's; otherwise it is free again.
    fn end_pieces(&mut self, op: OpId, memory: &Buffer) {
        let all = op.whole()..=op.last();
        while let Some((&piece, _)) = self.pieces.range(all.clone()).next() {
            if let Some((reservation, announced)) = self.pieces.remove(&piece)
                && memory.device().is_cpu()
            {
                self.reservation.absorb(reservation);
                self.announced.extend(announced);
            }
        }
    }

    /// Bytes that came ahead, or in the frame of a message of which some did, and that the handler may keep: the budget counts them once the
    /// message is complete. It counted all other parts as they came.
    pub(in crate::pipe) fn to_hold(&self) -> u64 {
        let Some(head) = &self.head else { return 0 };
        if !self.is_ahead() || self.reader != Recipient::Handler {
            return 0;
        }
        let placed = |part: u16| self.places.iter().any(|(place, _)| *place == part);
        let is_in_frame =
            |part: u16| head.carriages().get(usize::from(part)) == Some(&Carriage::Eager);
        let is_uncounted = |part| self.credited.binary_search(&part).is_ok() || is_in_frame(part);
        let own = self.parts.iter().filter(|(part, memory)| {
            memory.memory().is_private() && is_uncounted(*part) && !placed(*part)
        });
        own.map(|(_, memory)| memory.len() as u64).sum()
    }

    /// Bytes of a message that has come whole and that nobody has read.
    pub(in crate::pipe) fn bytes_come(&self) -> u64 {
        let come = self.parts.iter().filter(|_| self.has_come());
        come.map(|(_, memory)| memory.len() as u64).sum()
    }

    /// The budget that the message takes for as long as its handler keeps it.
    pub(in crate::pipe) fn into_held(self) -> Held {
        self.reservation.into()
    }

    pub(in crate::pipe) fn received(&mut self, op: OpId, memory: Buffer) {
        let part = op.part;
        if !self.pieces.is_empty() {
            self.end_pieces(op, &memory);
        }
        // A failed message keeps no parts: their memory goes back to its owner.
        if !self.skipped.contains(&part) && self.result.is_none() {
            self.parts.push((part, memory));
        }
    }

    /// Bytes that are copied from pooled memory into the application's when it is complete.
    pub(in crate::pipe) fn bytes_to_place(&self) -> u64 {
        self.places
            .iter()
            .map(|(_, place)| place.len() as u64)
            .sum()
    }

    /// Whether its last part is there.
    pub(in crate::pipe) fn has_all(&self) -> bool {
        self.parts.len() >= self.wanted
    }

    /// The message, if its last part is there.
    pub(in crate::pipe) fn take_complete(&mut self) -> Option<Result<Message, Error>> {
        if !self.has_all() {
            return None;
        }
        let head = self.head.take()?;
        let mut parts = mem::take(&mut self.parts);
        let mut places = mem::take(&mut self.places);
        parts.sort_unstable_by_key(|(part, _)| *part);
        places.sort_unstable_by_key(|(part, _)| *part);
        Some(build(head, parts, places, &self.redirected))
    }

    pub(in crate::pipe) fn finish(&mut self, result: Result<Message, Error>) {
        self.reservation.clear();
        self.announced.clear();
        self.pieces.clear();
        if self.result.is_none() {
            self.parts.clear();
            self.places.clear();
            self.result = Some(result);
        }
    }

    pub(in crate::pipe) fn take_result(&mut self) -> Option<Result<Message, Error>> {
        self.result.take()
    }

    pub(in crate::pipe) fn is_finished(&self) -> bool {
        self.result.is_some()
    }
}

/// Parts that are there, by number and in order.
pub(in crate::pipe) type Eager = SmallVec<[(u16, Buffer); 2]>;

/// Puts a message together, of parts and places in their order. Parts that are missing were empty or skipped, and become empty,
/// on the device where they should be.
fn build(
    head: Head,
    parts: impl IntoIterator<Item = (u16, Buffer)>,
    places: Vec<(u16, BufferMut)>,
    redirected: &[(u16, Device, Device)],
) -> Result<Message, Error> {
    let mut parts = parts.into_iter().peekable();
    let mut places = places.into_iter().peekable();
    assemble(head, |part, target| {
        let found = parts.next_if(|(i, _)| *i == part).map(|(_, buffer)| buffer);
        let place = places
            .next_if(|(i, _)| *i == part)
            .map(|(_, buffer)| buffer);
        let device = redirected.iter().find(|(i, ..)| *i == part);
        let device = device.map_or(target, |(.., device)| *device);
        match (found, place) {
            (Some(source), Some(mut dest)) => {
                if let (Some(from), Some(to)) = (source.as_bytes(), dest.as_bytes_mut()) {
                    copy::copy(from, to);
                }
                dest.freeze()
            }
            (Some(source), None) => source,
            (None, Some(dest)) => dest.freeze(),
            (None, None) => Buffer::empty(device),
        }
    })
}

/// Makes a message of a head and its parts. `buffer` is asked for each in order, by its number and the device where it should be.
pub(in crate::pipe) fn assemble(
    mut head: Head,
    mut buffer: impl FnMut(u16, Device) -> Buffer,
) -> Result<Message, Error> {
    let mut part = 0;
    let mut next = |target: Option<Device>| {
        part += 1;
        buffer(part - 1, target.unwrap_or(Device::CPU))
    };
    let mut message = Message::new(mem::take(&mut head.metadata));
    let (payloads, tensors) = head.parts_mut();
    message.payloads.reserve_exact(payloads.len());
    message.tensors.reserve_exact(tensors.len());
    for payload in payloads {
        message.payloads.push(Payload {
            metadata: mem::take(&mut payload.metadata),
            data: next(None),
        });
    }
    for tensor in tensors {
        let buffer = next(tensor.target);
        let shape = match buffer.is_empty() && tensor.byte_len() > 0 {
            true => Shape::from([0]),
            false => mem::take(&mut tensor.shape),
        };
        message.tensors.push(MessageTensor {
            tensor: Tensor::from_buffer(buffer, tensor.dtype, shape)?,
            metadata: mem::take(&mut tensor.metadata),
            target: tensor.target,
        });
    }
    Ok(message)
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::error::ResetCode;
    use crate::pipe::budget::{Announcements, Budget};
    use crate::proto::sim::frames::{bulk, payloads};
    use crate::sync::Arc;

    const LIMIT: u64 = 100;

    fn announcements() -> Announcements {
        Announcements::new(&Budget::new(LIMIT))
    }

    fn memory(len: usize) -> Buffer {
        BufferMut::zeroed(len).freeze()
    }

    fn comes(reading: &mut Reading, part: u16, len: usize) {
        reading.received(OpId::incoming(0, part), memory(len));
    }

    /// Of payloads of these lengths.
    fn head(lens: &[u64]) -> Head {
        let ahead = |len: &u64| (*len, bulk(0, true));
        payloads(&lens.iter().map(ahead).collect::<Vec<_>>())
    }

    fn error() -> Error {
        Error::Reset {
            code: ResetCode::Cancelled,
            reason: "enough".into(),
        }
    }

    #[test]
    fn a_message_has_come_when_all_that_comes_ahead_is_here_and_nobody_reads_it() {
        let announcements = announcements();
        let ahead = |all| {
            let mut reading = Reading::new(announcements.reservation());
            assert!(!reading.is_ahead() && !reading.has_come());
            reading.comes_ahead(smallvec![0, 1], all);
            comes(&mut reading, 1, 5);
            assert!(reading.is_ahead() && !reading.has_come());
            assert_eq!(reading.bytes_come(), 0);
            comes(&mut reading, 0, 3);
            reading
        };
        let some = ahead(false);
        assert!(!some.has_come(), "the rest waits for a go-ahead");
        let all = ahead(true);
        assert!(all.has_come() && all.failed().is_none() && !all.is_finished());
        assert_eq!(all.bytes_come(), 8);
        let parts = all.into_come().0.into_iter();
        let parts: Vec<_> = parts.map(|(part, memory)| (part, memory.len())).collect();
        assert_eq!(parts, [(0, 3), (1, 5)]);
        let mut failed = ahead(true);
        failed.finish(Err(error()));
        let home: Arc<[u8]> = Arc::new([7; 3]);
        let late = Buffer::from_owner(home.clone());
        failed.received(OpId::incoming(0, 0), late);
        assert!(!failed.has_come() && failed.failed().is_some());
        assert_eq!(Arc::strong_count(&home), 1, "nobody keeps it");
        assert!(failed.is_finished() && failed.take_result().is_some());
        let mut read = ahead(true);
        start(&mut read, &[3, 5], Vec::new(), Recipient::Waits);
        assert!(!read.has_come() && read.failed().is_none());
        let message = read.take_complete().unwrap().unwrap();
        assert_eq!(message.payloads[1].data.len(), 5);
        read.finish(Err(error()));
        assert!(read.failed().is_none(), "its reader has heard");
    }

    fn start(
        reading: &mut Reading,
        lens: &[u64],
        places: Vec<(u16, BufferMut)>,
        reader: Recipient,
    ) {
        let arrival = Arrival::new(0, head(lens), false);
        reading.start(arrival, places, Vec::new(), Vec::new(), reader);
    }

    /// What its credit bounded counts once a handler may keep it: but not what goes into the reader's own memory, or belongs to
    /// somebody else.
    #[test]
    fn a_handler_holds_what_came_ahead_into_memory_of_this_side() {
        let announcements = announcements();
        let to_hold = |ahead: &[u16], reader, placed: &[u16]| {
            let mut reading = Reading::new(announcements.reservation());
            if !ahead.is_empty() {
                reading.comes_ahead(ahead.into(), ahead.len() == 3);
            }
            let places = placed.iter().map(|part| (*part, BufferMut::zeroed(5)));
            start(&mut reading, &[3, 5, 7], places.collect(), reader);
            comes(&mut reading, 0, 3);
            comes(&mut reading, 1, 5);
            let borrowed = Buffer::from_owner([7u8; 7]);
            reading.received(OpId::incoming(0, 2), borrowed);
            reading.to_hold()
        };
        let all = &[0, 1, 2];
        assert_eq!(to_hold(all, Recipient::Handler, &[]), 8);
        assert_eq!(to_hold(all, Recipient::Handler, &[1]), 3);
        assert_eq!(to_hold(all, Recipient::Waits, &[]), 0);
        assert_eq!(to_hold(&[], Recipient::Handler, &[]), 0);
        assert_eq!(
            to_hold(&[0], Recipient::Handler, &[]),
            3,
            "the other was counted as it came"
        );
    }

    /// What pieces of a part have taken is what the part takes, in main memory; else it is free when the part is there.
    #[test]
    fn pieces_of_a_part_count_until_it_is_there_and_as_the_part_then() {
        let announcements = announcements();
        let piece = |number| OpId::incoming(0, 0).piece(std::num::NonZeroU16::new(number).unwrap());
        let mut reading = Reading::new(announcements.reservation());
        start(&mut reading, &[90], Vec::new(), Recipient::Waits);
        reading.grow(piece(1), 40).unwrap();
        reading.grow(piece(2), 50).unwrap();
        reading.grow(piece(3), 11).unwrap_err();
        reading.release(piece(2));
        reading.grow(piece(3), 60).unwrap();
        comes(&mut reading, 0, 90);
        reading.release(piece(1));
        let mut other = announcements.reservation();
        other.grow(1).unwrap_err();
        reading.finish(Err(error()));
        other.grow(LIMIT).unwrap();
    }
}
