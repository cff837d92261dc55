//! Which channel carries a part: the sender's choice, by size and by where the part lies.
//!
//! The table is made of the channels' thresholds once for a pipe; each part then takes a few compares. A route prints the answers of the
//! same [`choose`](ChannelChoice::choose), at every size where they may change: so it shows what happens.

mod words;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, OnceLock};

use super::degraded::Degraded;
use super::requirement::Requirement;
use super::threshold::{Pays, Threshold, effective_threshold};
use crate::device::{Device, MemoryKind};

/// What carries the parts that this side sends over a pipe, by size and by where they lie.
///
/// A part goes in the message's own frame, as far as the reader's [`Limits`](crate::Limits) leave room there, unless a channel [pays](Pays)
/// for its size. If several channels do, the one of the highest priority carries it. A part that fits no frame, and that no channel pays
/// for, goes over the channel that would pay soonest.
///
/// It is printed as `heap: in the frame <= 64 KiB, basic < 4 MiB, cma above`. This is for the only part of a message: several parts share
/// the frame's room, `Limits::eager_message`.
#[derive(Clone)]
pub struct ChannelChoice {
    now: Arc<Table>,
    required: Arc<[Requirement]>,
    /// The choice on another transport, and the reason that is there once the pipe stays on it.
    stayed: Option<(Arc<OnceLock<String>>, Arc<Table>)>,
}

/// Sizes that are carried alike.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Band {
    /// Where the part lies.
    pub source: Device,
    /// In which memory there.
    pub memory: MemoryKind,
    /// Where it goes.
    pub target: Device,
    /// How long it is, in bytes. A part without bytes rides in the frame.
    pub sizes: RangeInclusive<u64>,
    /// What carries it.
    pub carrier: Carrier,
}

/// What carries a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Carrier {
    /// The message's own frame.
    Frame,
    /// The channel of this name.
    Channel(&'static str),
    /// Nothing: a message with it is refused.
    Nothing,
}

/// A channel of a pipe, as the choice sees it.
pub(crate) struct Served<'a> {
    pub(crate) name: &'static str,
    pub(crate) pairs: &'a [(Device, Device)],
    /// Its own entries.
    pub(crate) thresholds: Vec<Threshold>,
    /// Whether it moves the bytes of such memory; otherwise the peer gets the memory itself.
    pub(crate) moves_bytes: Box<dyn Fn(MemoryKind) -> bool + 'a>,
    pub(crate) degraded: Degraded,
}

/// What a frame takes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameRoom {
    /// Of one part.
    pub(crate) part: u64,
    /// Of all parts of a message.
    pub(crate) message: u64,
}

impl FrameRoom {
    /// Of a part that is its message's only one.
    fn alone(self) -> u64 {
        self.part.min(self.message)
    }
}

/// The choice over one transport.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Table {
    rows: Vec<Row>,
    frame: FrameRoom,
}

/// Everything for one place.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    source: Device,
    memory: MemoryKind,
    target: Device,
    /// From main memory to main memory.
    rides: bool,
    /// In the order in which they are asked.
    candidates: Arc<Vec<Candidate>>,
    /// Whether the context requires some of them: then none is a last resort.
    is_strict: bool,
    /// The least size for which any of them is better than the frame.
    pays_from: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Candidate {
    /// Its number on the pipe.
    channel: u8,
    name: &'static str,
    pays: Pays,
    /// No channel of lower priority passes it: it moves no bytes, or an entry names just this memory.
    stays: bool,
    degraded: Degraded,
}

/// What carries a part, from which size on.
type Bands = Vec<(u64, Carrier)>;

/// How a part goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartRoute {
    /// In the message's frame.
    Frame,
    /// By the channel of this number.
    Channel(u8),
}

impl Table {
    /// `served`: the channels by priority. `own`: the context's thresholds, by channel name. `required`: the channels that the context
    /// requires.
    pub(crate) fn new(
        served: &[Served<'_>],
        own: &[(String, Threshold)],
        required: &[Requirement],
        transport: &str,
        frame: FrameRoom,
    ) -> Self {
        let main = MemoryKind::MAIN.map(|memory| Row::new(Device::CPU, memory, Device::CPU));
        let mut rows = Vec::from(main);
        // The peer may name hundreds of devices, so rows are not searched one by one.
        let place = |(at, row): (usize, &Row)| ((row.source, row.memory, row.target), at);
        let mut places: HashMap<_, _> = rows.iter().enumerate().map(place).collect();
        for (channel, served) in served.iter().enumerate() {
            for (source, target) in served.pairs {
                let about = required.iter().filter(|one| one.is_about(*source, *target));
                let about: Vec<_> = about.collect();
                if about.iter().any(|one| !one.allows(served.name)) {
                    continue;
                }
                let device = [MemoryKind::Device(source.kind)];
                let kinds = if source.is_cpu() {
                    &MemoryKind::MAIN[..]
                } else {
                    &device
                };
                for memory in kinds {
                    let own = own.iter().filter(|(name, _)| name == served.name);
                    let own = own.map(|(_, threshold)| threshold);
                    let Some(counts) =
                        effective_threshold(&served.thresholds, own, transport, *memory)
                    else {
                        continue;
                    };
                    let at = *places
                        .entry((*source, *memory, *target))
                        .or_insert_with(|| {
                            rows.push(Row::new(*source, *memory, *target));
                            rows.len() - 1
                        });
                    let mut known = rows[at].candidates.iter();
                    if known.any(|known| usize::from(known.channel) == channel) {
                        // The peer names a device twice.
                        continue;
                    }
                    let moves_bytes = (served.moves_bytes)(*memory);
                    let candidate = Candidate {
                        channel: channel as u8,
                        name: served.name,
                        pays: counts.pays,
                        stays: counts.is_specific || !moves_bytes,
                        degraded: served.degraded.clone(),
                    };
                    rows[at].is_strict = !about.is_empty();
                    rows[at].add(candidate, moves_bytes);
                }
            }
        }
        share_candidates(&mut rows);
        rows.shrink_to_fit();
        Self { rows, frame }
    }

    fn row(&self, source: Device, memory: MemoryKind, target: Device) -> Option<&Row> {
        let mut rows = self.rows.iter();
        rows.find(|row| row.is(source, memory, target))
    }
}

/// Rows of the same candidates share them: a peer that names hundreds of devices of one sort must not cost as many lists.
fn share_candidates(rows: &mut [Row]) {
    for at in 1..rows.len() {
        let (before, rest) = rows.split_at_mut(at);
        // Of one source and target there is a row for each kind of memory.
        let mut near = before.iter().rev().take(MemoryKind::MAIN.len());
        if let Some(same) = near.find(|row| row.candidates == rest[0].candidates) {
            rest[0].candidates = same.candidates.clone();
        }
    }
}

impl Row {
    fn new(source: Device, memory: MemoryKind, target: Device) -> Self {
        Self {
            source,
            memory,
            target,
            rides: source.is_cpu() && target.is_cpu(),
            candidates: Arc::default(),
            is_strict: false,
            pays_from: u64::MAX,
        }
    }

    /// The next by priority. One that moves no bytes passes those that do.
    fn add(&mut self, candidate: Candidate, moves_bytes: bool) {
        if let Pays::From(bytes) = candidate.pays {
            self.pays_from = self.pays_from.min(bytes);
        }
        let passes = |before: &&Candidate| !moves_bytes && !before.stays;
        let passed = self.candidates.iter().rev().take_while(passes).count();
        let at = self.candidates.len() - passed;
        Arc::make_mut(&mut self.candidates).insert(at, candidate);
    }

    fn is(&self, source: Device, memory: MemoryKind, target: Device) -> bool {
        self.memory == memory && self.target == target && self.source == source
    }

    /// `room`: what a frame takes of a part.
    fn choose(&self, room: u64, len: u64, carries: impl Fn(u8) -> bool) -> Option<PartRoute> {
        let rides = len == 0 || self.rides && len <= room;
        // The case of most parts: no channel need be checked.
        if rides && len < self.pays_from {
            return Some(PartRoute::Frame);
        }
        let mut soonest: Option<(u64, u8)> = None;
        for candidate in &*self.candidates {
            let (channel, pays) = (candidate.channel, candidate.pays());
            let is_out = self.is_strict && candidate.degraded.sending().is_some();
            if is_out || !carries(channel) {
                continue;
            }
            let misses_by = pays.misses_by(len);
            if len > 0 && pays.beats_frame(len) || !rides && misses_by == 0 {
                return Some(PartRoute::Channel(channel));
            }
            if soonest.is_none_or(|(least, _)| misses_by < least) {
                soonest = Some((misses_by, channel));
            }
        }
        match rides {
            true => Some(PartRoute::Frame),
            false => soonest.map(|(_, channel)| PartRoute::Channel(channel)),
        }
    }

    /// Sizes at which the answer may change, without the first.
    fn borders(&self, frame: FrameRoom) -> BTreeSet<u64> {
        let of_channels = self.candidates.iter().filter_map(|candidate| {
            let Pays::From(bytes) = candidate.pays else {
                return None;
            };
            Some(bytes)
        });
        let of_frame = frame.alone().checked_add(1);
        of_channels.chain(of_frame).collect()
    }

    fn carrier(&self, frame: FrameRoom, len: u64) -> Carrier {
        match self.choose(frame.alone(), len, |_| true) {
            None => Carrier::Nothing,
            Some(PartRoute::Frame) => Carrier::Frame,
            Some(PartRoute::Channel(channel)) => {
                let mut candidates = self.candidates.iter();
                let chosen = candidates.find(|candidate| candidate.channel == channel);
                chosen.map_or(Carrier::Nothing, |chosen| Carrier::Channel(chosen.name))
            }
        }
    }

    /// What carries a part, from which size on; the first size is 1 byte.
    fn bands(&self, frame: FrameRoom) -> Bands {
        let mut bands = vec![(1, self.carrier(frame, 1))];
        for from in self.borders(frame).range(2..) {
            let carrier = self.carrier(frame, *from);
            if bands.last().is_none_or(|(_, last)| *last != carrier) {
                bands.push((*from, carrier));
            }
        }
        bands
    }
}

impl Candidate {
    /// When it pays, or, if it is degraded, as a last resort.
    fn pays(&self) -> Pays {
        match self.degraded.sending() {
            None => self.pays,
            Some(_) => Pays::LastResort,
        }
    }
}

impl ChannelChoice {
    /// `stayed`: the choice on another transport, which counts once the reason is there.
    pub(crate) fn new(
        now: Table,
        stayed: Option<(Arc<OnceLock<String>>, Table)>,
        required: &[Requirement],
    ) -> Self {
        Self {
            now: Arc::new(now),
            required: required.into(),
            stayed: stayed.map(|(because, table)| (because, Arc::new(table))),
        }
    }

    fn table(&self) -> &Table {
        match &self.stayed {
            Some((because, table)) if because.get().is_some() => table,
            _ => &self.now,
        }
    }

    /// How a part goes, if earlier parts of its message take up `riding` bytes of the frame. `carries`: whether a channel can carry this
    /// very part.
    pub(crate) fn choose(
        &self,
        source: Device,
        memory: MemoryKind,
        target: Device,
        len: u64,
        riding: u64,
        carries: impl Fn(u8) -> bool,
    ) -> Option<PartRoute> {
        let table = self.table();
        let row = table.row(source, memory, target)?;
        let left = table.frame.message.saturating_sub(riding);
        row.choose(table.frame.part.min(left), len, carries)
    }

    /// Another device than main memory where such a part can go, and by which channel.
    pub(crate) fn alternative_target(
        &self,
        source: Device,
        memory: MemoryKind,
        len: u64,
        carries: impl Fn(u8) -> bool,
    ) -> Option<(PartRoute, Device)> {
        let rows = self.table().rows.iter();
        let mut rows = rows.filter(|row| row.source == source && row.memory == memory);
        rows.find_map(|row| Some((row.choose(0, len, &carries)?, row.target)))
    }

    /// What its context requires of parts between these devices, if anything.
    pub(crate) fn required(&self, source: Device, target: Device) -> Option<&Requirement> {
        self.required
            .iter()
            .find(|one| one.is_about(source, target))
    }

    /// What carries a part that is its message's only one. `Nothing` also where no channel serves these devices.
    pub fn carrier(&self, source: Device, memory: MemoryKind, target: Device, len: u64) -> Carrier {
        let table = self.table();
        let row = table.row(source, memory, target);
        row.map_or(Carrier::Nothing, |row| row.carrier(table.frame, len))
    }

    /// The same for every place and size, place by place, smaller sizes first.
    pub fn bands(&self) -> Vec<Band> {
        let table = self.table();
        let mut all = Vec::new();
        for row in &table.rows {
            let bands = row.bands(table.frame);
            let ends = bands.iter().skip(1).map(|(from, _)| from - 1);
            let ends = ends.chain([u64::MAX]);
            all.extend(bands.iter().zip(ends).map(|((from, carrier), end)| Band {
                source: row.source,
                memory: row.memory,
                target: row.target,
                sizes: *from..=end,
                carrier: *carrier,
            }));
        }
        all
    }
}

impl PartialEq for ChannelChoice {
    fn eq(&self, other: &Self) -> bool {
        self.table() == other.table()
    }
}

impl Eq for ChannelChoice {}

impl fmt::Debug for ChannelChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ChannelChoice").field(self.table()).finish()
    }
}

#[cfg(test)]
mod tests;
