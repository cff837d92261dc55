//! Releases: an end tells the owner of values which of them it refers to no more.
//!
//! Nobody waits for that. The first release is queued for the pipe's next drive. Those that follow are collected, and leave together: before
//! the next call, which may need their room at the owner, or when the pipe is driven. If the pipe's queue is half full, they wait until it
//! moves. A release may be sent twice: the second changes nothing.

use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use tensorpipe::Incoming;
use tensorpipe::engine::{EnginePipe, When};

use super::Engine;
use crate::codec::REPLY_HEADER;
use crate::header::{Header, Kind};
use crate::lock::lock;
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
        let is_first = {
            let mut later = lock(&self.later);
            let collects = self.collects.swap(true, Ordering::Relaxed);
            if collects {
                later.releases.push_back(release);
                if later.releases.len() > 1 {
                    // Whoever collected the first of them has asked.
                    return;
                }
            }
            !collects
        };
        if !is_first {
            return self.pipe.ask();
        }
        if !self.send_list(&[release], When::NextDrive) {
            let mut later = lock(&self.later);
            later.releases.push_back(release);
            // Another thread may have found the list empty meanwhile.
            self.collects.store(true, Ordering::Relaxed);
            drop(later);
            self.send_later();
        }
    }

    /// Sends the collected releases, as far as the pipe has room. The rest leaves when it has.
    pub(super) fn send_releases(&self, when: When) {
        // Changed under the lock, and true while any wait: whoever knows of one sees it here.
        if self.collects.load(Ordering::Relaxed) && !self.send_collected(when) {
            self.send_later();
        }
    }

    /// Returns `false` if the pipe has no room for all of them.
    pub(super) fn send_collected(&self, when: When) -> bool {
        let room = self.pipe.peer_limits().metadata as usize;
        let most = (room.saturating_sub(REPLY_HEADER) / LEN).clamp(1, MOST);
        loop {
            let (releases, removed) = {
                let later = lock(&self.later);
                let first = later.releases.iter().take(most).copied();
                let first: SmallVec<[Release; MOST]> = first.collect();
                if first.is_empty() {
                    self.collects.store(false, Ordering::Relaxed);
                    return true;
                }
                (first, later.removed)
            };
            // They stay in the list until they are sent, so that no call of another thread overtakes them. That thread may send them, too.
            if !self.send_list(&releases, when) {
                return false;
            }
            let mut later = lock(&self.later);
            let by_others = usize::try_from(later.removed - removed).unwrap_or(usize::MAX);
            let sent = releases.len().saturating_sub(by_others);
            later.removed += sent as u64;
            later.releases.drain(..sent);
            if later.releases.is_empty() {
                later.releases.shrink_to(MOST);
            }
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
