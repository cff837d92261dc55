//! The end of a ring that writes.
//!
//! It keeps its own counter to itself and only looks at the other's, so a peer that writes nonsense there is a [`Fault`],
//! never a wild access; a peer that dies at any instruction leaves a ring that is as valid as before it.

use super::control::{DONE, Fault, Place, REFUSED, asleep_on, place_of, wake_sleeper};
use crate::sync::{Ordering, fence};

/// The end that writes.
#[derive(Debug)]
pub(crate) struct Producer<P> {
    /// Where bytes are written now.
    pub(super) place: P,
    written: u64,
    /// The consumer's counter when it was last looked at.
    read: u64,
    /// Where the last turn was. Bytes before it are in another place than those behind it.
    turned_at: u64,
    news: u64,
}

/// What became of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The consumer has not seen it yet.
    None,
    /// The producer may turn to it.
    Taken,
    /// It cannot be taken.
    Refused,
}

impl<P: Place> Producer<P> {
    /// Of a ring that has just been made.
    pub(crate) fn new(place: P) -> Self {
        Self {
            place,
            written: 0,
            read: 0,
            turned_at: 0,
            news: 0,
        }
    }

    fn room(&self) -> usize {
        // What is unread and lies in front of the turn takes no room here.
        self.place.capacity() - (self.written - self.read.max(self.turned_at)) as usize
    }

    /// Looks how far the consumer is.
    pub(super) fn look(&mut self) -> Result<(), Fault> {
        let read = self.place.control().read.0.count.load(Ordering::Acquire);
        if read & DONE != 0 {
            return Err(Fault::NoReader);
        }
        if read < self.read || read > self.written {
            return Err(Fault::Counter);
        }
        self.read = read;
        Ok(())
    }

    /// Whether there is room now.
    pub(crate) fn is_ready(&mut self) -> bool {
        self.room() > 0 || self.look().is_err() || self.room() > 0
    }

    /// Writes what there is room for; 0 if there is none. Calls `wake` when the consumer sleeps.
    pub(crate) fn write<'a>(
        &mut self,
        pieces: impl IntoIterator<Item = &'a [u8]>,
        mut wake: impl FnMut(),
    ) -> Result<usize, Fault> {
        let begun = self.written;
        let (mut published, mut woken) = (begun, begun);
        'all: for mut piece in pieces {
            while !piece.is_empty() {
                if self.room() < piece.len().min(P::STRIDE) {
                    self.look()?;
                    if self.room() == 0 {
                        break 'all;
                    }
                }
                let at = self.place.offset(self.written);
                let len = piece
                    .len()
                    .min(self.room())
                    .min(self.place.capacity() - at)
                    .min(P::STRIDE);
                let (now, later) = piece.split_at(len);
                self.place.put(at, now);
                self.written += len as u64;
                piece = later;
                if self.written - published >= P::STRIDE as u64 {
                    published = self.written;
                    self.publish();
                }
                if published - woken >= P::WAKE as u64 && self.is_apart() {
                    woken = published;
                    self.wake(&mut wake);
                }
            }
        }
        if self.written != published {
            self.publish();
        }
        if self.written != woken {
            self.wake(&mut wake);
        }
        Ok((self.written - begun) as usize)
    }

    fn publish(&self) {
        let ours = &self.place.control().written.0;
        ours.count.store(self.written, Ordering::Release);
    }

    /// Whether the consumer, if it sleeps, is likely to run on another processor.
    fn is_apart(&self) -> bool {
        let sleeps = &self.place.control().consumer_sleeps.0;
        match sleeps.load(Ordering::Relaxed) {
            0 => !P::SHARED,
            there => self
                .place
                .processor()
                .is_none_or(|here| there != asleep_on(Some(here))),
        }
    }

    /// If the consumer sleeps; after what was published last.
    fn wake(&self, wake: &mut impl FnMut()) {
        wake_sleeper::<P>(&self.place.control().consumer_sleeps.0, wake);
    }

    /// Says that no more bytes will follow.
    pub(crate) fn finish(&self, mut wake: impl FnMut()) {
        let control = self.place.control();
        control
            .written
            .0
            .count
            .store(self.written | DONE, Ordering::Release);
        wake_sleeper::<P>(&control.consumer_sleeps.0, &mut wake);
    }

    /// Announces sleep until there is room. Returns whether to sleep: `false` if there is something to do.
    pub(crate) fn sleep(&mut self) -> bool {
        let sleeps = &self.place.control().producer_sleeps.0;
        sleeps.swap(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.look().is_err() || self.room() > 0 {
            self.place
                .control()
                .producer_sleeps
                .0
                .swap(0, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Whether the consumer has read all that was written; looks. `false` where it breaks the rules, or is gone.
    pub(crate) fn is_drained(&mut self) -> bool {
        self.look().is_ok() && self.read == self.written
    }

    /// Bytes written so far.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Who reads, as the consumer says.
    pub(crate) fn reader(&self) -> Option<[u64; 2]> {
        let reader = &self.place.control().read.0.reader;
        let words = reader.each_ref().map(|word| word.load(Ordering::Relaxed));
        // A word that has not come yet is 0.
        (!words.contains(&0)).then_some(words)
    }

    /// How far the consumer was when it was last looked at.
    pub(crate) fn read(&self) -> u64 {
        self.read
    }

    /// Whether the consumer is behind the last turn, and touches nothing in front of it any more; looks.
    pub(crate) fn has_turned(&mut self) -> bool {
        self.look().is_ok() && self.read >= self.turned_at
    }

    /// Offers places by their number, which is larger than those before it; what was offered before counts no more.
    pub(crate) fn offer(&mut self, number: u64) {
        let ours = &self.place.control().written.0;
        // After the turns so far, which the consumer may not have heard of.
        ours.kept.store(number, Ordering::Release);
        self.tell();
    }

    /// The consumer need not keep what was offered last. Not while the ring is there. Calls `wake` when the
    /// consumer sleeps, which would keep it until there are bytes.
    pub(crate) fn withdraw(&mut self, mut wake: impl FnMut()) {
        self.offer(0);
        wake_sleeper::<P>(&self.place.control().consumer_sleeps.0, &mut wake);
    }

    /// What became of an offer.
    pub(crate) fn answer(&self, number: u64) -> Answer {
        let taken = self.place.control().read.0.taken.load(Ordering::Acquire);
        match taken {
            taken if taken == number => Answer::Taken,
            taken if taken == number | REFUSED => Answer::Refused,
            _ => Answer::None,
        }
    }

    /// Whether the last turn is over, so that there can be another one: then nothing is unread in front of it, either.
    pub(crate) fn can_turn(&self) -> bool {
        self.read > self.turned_at || self.read == self.written
    }

    /// From here on bytes go to `place`, which was taken under this number, or is the ring's own: number 0. Only where it
    /// [can](Self::can_turn), and to another place than they go now; those taken under one number differ in size.
    pub(crate) fn turn(&mut self, number: u64, place: P) {
        debug_assert!(
            self.can_turn(),
            "the consumer may not have seen the last turn"
        );
        let to = match number {
            0 => 0,
            _ => place_of(number, place.capacity()),
        };
        self.place = place;
        self.turned_at = self.written;
        let ours = &self.place.control().written.0;
        ours.turn_at.store(self.written, Ordering::Relaxed);
        // After its place: whoever reads while another word is news sees both, or goes on as before.
        ours.turn_to.store(to, Ordering::Release);
        self.tell();
    }

    fn tell(&mut self) {
        self.news += 1;
        let ours = &self.place.control().written.0;
        ours.news.store(self.news, Ordering::Release);
    }
}
