//! Releases: an end tells the owner of values which of them it refers to no more.
//!
//! Nobody waits for that. The first release is queued for the pipe's next drive. Those that follow are collected, and leave together: before
//! the next call, which may need their room at the owner, or when the pipe is driven. If the pipe's queue is half full, they wait until it
//! moves. A release may be sent twice: the second changes nothing.

use smallvec::SmallVec;
use tensorpipe::Incoming;
use tensorpipe::engine::{EnginePipe, When};

use super::Engine;
use super::collected::Added;
use crate::codec::REPLY_HEADER;
use crate::header::{Header, Kind};
use crate::remote::Release;
use crate::scratch;

/// The most releases in a message.
const MOST: usize = 64;

/// A release in a message: the call, then the index or [`ALL`], little-endian.
const LEN: usize = size_of::<u64>() + size_of::<u32>();

/// All values of a reply: no value has this index.
const ALL: u32 = u32::MAX;

impl Engine {
    /// This end no longer refers to what the reply to `call` brought, or will bring: reference `index`, or all of them.
    pub(crate) fn release(&self, call: u64, index: Option<u32>) {
        if self.is_inherited() {
            return;
        }
        if let Some(slot) = self.calls.find(call)
            && slot.is_orphan()
        {
            // The call was under way for this reference alone.
            self.cancel(&slot);
        }
        let release = Release { call, index };
        let send = || self.at_once(|| self.send_list(&[release], When::NextDrive));
        match self.releases.add(release) {
            Added::SendNow if send() => {}
            Added::SendNow => {
                self.releases.keep(release);
                self.send_later();
            }
            Added::Ask => self.pipe.ask(),
            Added::Asked => {}
        }
    }

    /// Sends the collected releases, as far as the pipe has room. The rest leaves when it has.
    pub(super) fn send_releases(&self, when: When) {
        if self.releases.has_some() && !self.send_collected(when) {
            self.send_later();
        }
    }

    /// Returns `false` if the pipe has no room for all of them.
    pub(super) fn send_collected(&self, when: When) -> bool {
        let room = self.pipe.peer_limits().metadata as usize;
        let most = (room.saturating_sub(REPLY_HEADER) / LEN).clamp(1, MOST);
        loop {
            let mut first = SmallVec::<[Release; MOST]>::new();
            let removed = self.releases.first(most, &mut first);
            if first.is_empty() {
                return true;
            }
            if !self.send_list(&first, when) {
                return false;
            }
            self.releases.remove(first.len(), removed);
        }
    }

    /// Sends a message of releases, at least one. Returns `false` if the pipe has no room for it.
    fn send_list(&self, releases: &[Release], when: When) -> bool {
        // Half of the queue is left to calls.
        if self.pipe.unwritten() >= self.pipe.queued_writes().div_ceil(2) {
            return false;
        }
        let mut metadata = Header::plain(Kind::Release, releases[0].call).to_vec();
        for Release { call, index } in releases {
            metadata.extend_from_slice(&call.to_le_bytes());
            metadata.extend_from_slice(&index.unwrap_or(ALL).to_le_bytes());
        }
        let sent = self.send_control_now(&metadata, when);
        scratch::keep(metadata);
        sent
    }

    /// The peer refers to some values no more.
    pub(super) fn release_arrives(&self, header: Header, incoming: Incoming) {
        let body = incoming.metadata().get(header.body_at..).unwrap_or(&[]);
        let (releases, rest) = body.as_chunks::<LEN>();
        if releases.is_empty() || releases.len() > MOST || !rest.is_empty() {
            return incoming.refuse("a message of releases has one to 64 of them");
        }
        self.owned.release(releases.iter().map(decode));
        let _ = incoming.accept();
    }
}

fn decode(bytes: &[u8; LEN]) -> Release {
    let [a, b, c, d, e, f, g, h, index @ ..] = *bytes;
    let call = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    let index = u32::from_le_bytes(index);
    let index = (index != ALL).then_some(index);
    Release { call, index }
}
