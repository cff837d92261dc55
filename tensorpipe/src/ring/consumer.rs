//! The end of a ring that reads.
//!
//! As [`Producer`](super::Producer): what the other end says is checked before anything is done with it. A turn is made
//! when the last byte in front of it has been read.

use std::cmp::Ordering::{Equal, Greater, Less};

use super::control::{DONE, Fault, Place, REFUSED, asleep_on, number_of, place_of, wake_sleeper};
use crate::sync::{Ordering, fence};

/// The end that reads.
#[derive(Debug)]
pub(crate) struct Consumer<P> {
    /// The ring's own place, number 0.
    pub(super) place: P,
    /// The others that it has taken: the one where it is, the one where the producer is, and the one offered last.
    taken: Vec<(u64, P)>,
    /// The place where bytes are read now.
    number: u64,
    read: u64,
    /// The producer's counter when it was last looked at, as far as the next turn.
    written: u64,
    done: bool,
    /// What the producer said last.
    news: u64,
    turn_at: u64,
    turn_to: u64,
    kept: u64,
    /// The last offer that was answered.
    answered: u64,
}

impl<P: Place> Consumer<P> {
    /// Of a ring that has just been made.
    pub(crate) fn new(place: P) -> Self {
        Self {
            place,
            taken: Vec::new(),
            number: 0,
            read: 0,
            written: 0,
            done: false,
            news: 0,
            turn_at: 0,
            turn_to: 0,
            kept: 0,
            answered: 0,
        }
    }

    /// Says who reads: an id of two words, none of them 0.
    pub(crate) fn introduce(&self, reader: [u64; 2]) {
        let ours = &self.place.control().read.0.reader;
        for (word, said) in ours.iter().zip(reader) {
            word.store(said, Ordering::Relaxed);
        }
    }

    /// Looks how far the producer is.
    pub(super) fn look(&mut self) -> Result<(), Fault> {
        let theirs = &self.place.control().written.0;
        let seen = theirs.count.load(Ordering::Acquire);
        let news = theirs.news.load(Ordering::Acquire);
        let (mut written, mut done) = (seen & !DONE, seen & DONE != 0);
        if news != self.news {
            self.hear(news);
        }
        if written < self.written {
            return Err(Fault::Counter);
        }
        let mut number = self.number;
        if self.turn_to != number {
            let is_there = || written > self.turn_at || self.at(self.turn_to).is_some();
            match self.turn_at.cmp(&self.read) {
                Less => return Err(Fault::Counter),
                // Also where no byte is behind it yet: there is nothing more to come where it was.
                Equal if is_there() => number = self.turn_to,
                Greater if written > self.turn_at => (written, done) = (self.turn_at, false),
                Equal | Greater => {}
            }
        }
        let capacity = self.at(number).ok_or(Fault::Place)?.capacity();
        if written - self.read > capacity as u64 {
            return Err(Fault::Counter);
        }
        (self.written, self.done) = (written, done);
        if number != self.number {
            self.number = number;
            self.forget();
        }
        Ok(())
    }

    /// Reads what the producer says rarely.
    fn hear(&mut self, news: u64) {
        let theirs = &self.place.control().written.0;
        self.news = news;
        // In this order: it may be older news that is heard while the producer says the next thing. What it offers or
        // takes back comes with its turns so far, a new place with where it begins.
        self.kept = theirs.kept.load(Ordering::Acquire);
        self.turn_to = theirs.turn_to.load(Ordering::Acquire);
        self.turn_at = theirs.turn_at.load(Ordering::Relaxed);
        self.forget();
    }

    /// Lets go of places where no bytes are, nor will be: the producer has turned away from them, or was never there.
    fn forget(&mut self) {
        let used = [self.number, self.turn_to, self.kept].map(number_of);
        self.taken
            .retain(|(taken, _)| used.contains(&number_of(*taken)));
    }

    fn at(&self, place: u64) -> Option<&P> {
        if place == 0 {
            return Some(&self.place);
        }
        let taken = self.taken.iter().find(|(taken, _)| *taken == place);
        taken.map(|(_, place)| place)
    }

    /// Whether it holds a place taken under this number.
    #[cfg(test)]
    pub(crate) fn has_taken(&self, number: u64) -> bool {
        let mut taken = self.taken.iter();
        taken.any(|(taken, _)| number_of(*taken) == number)
    }

    /// How many places it holds beside the ring's own, and how many bytes it takes to be in one of them.
    #[cfg(test)]
    pub(super) fn holds(&self) -> (usize, u64) {
        (self.taken.len(), self.written - self.read)
    }

    /// The number of an offer that was not answered.
    pub(crate) fn offer(&self) -> Option<u64> {
        (self.kept != self.answered && self.kept != 0).then_some(self.kept)
    }

    /// Answers an offer: with its places, each of another size, or, with none, that it cannot be taken.
    pub(crate) fn answer(&mut self, number: u64, places: impl IntoIterator<Item = P>) {
        self.answered = number;
        self.forget();
        self.taken
            .retain(|(taken, _)| number_of(*taken) != number_of(number));
        let others = self.taken.len();
        let places = places.into_iter();
        self.taken
            .extend(places.map(|place| (place_of(number, place.capacity()), place)));
        let answer = if self.taken.len() > others {
            number
        } else {
            number | REFUSED
        };
        let ours = &self.place.control().read.0;
        ours.taken.store(answer, Ordering::Release);
    }

    /// Whether there are bytes now, or the end.
    pub(crate) fn is_ready(&mut self) -> bool {
        let has_something = |this: &Self| this.written != this.read || this.done;
        has_something(self) || self.look().is_err() || has_something(self)
    }

    /// Whether there are so many bytes now, half a place full of them, all that is in front of a turn, the end, or a
    /// fault.
    pub(crate) fn has(&mut self, bytes: usize) -> bool {
        let enough = |this: &Self| {
            let half = this.at(this.number).map_or(0, P::capacity) / 2;
            let turns = this.turn_to != this.number && this.written == this.turn_at;
            let there = this.written - this.read;
            there >= bytes.min(half) as u64 || this.done || (turns && there > 0)
        };
        enough(self) || self.look().is_err() || enough(self)
    }

    /// Reads what is there, as far as `bytes` has room; 0 if there is nothing. Calls `wake` when the producer sleeps and
    /// has room again.
    pub(crate) fn read(
        &mut self,
        bytes: &mut [u8],
        mut wake: impl FnMut(),
    ) -> Result<usize, Fault> {
        let mut filled = 0;
        while filled < bytes.len() {
            if self.written == self.read {
                self.look()?;
                if self.written == self.read {
                    break;
                }
            }
            let place = self.at(self.number).ok_or(Fault::Place)?;
            let capacity = place.capacity();
            let at = place.offset(self.read);
            let len = (bytes.len() - filled)
                .min((self.written - self.read) as usize)
                .min(capacity - at)
                .min(P::STRIDE);
            place.take(at, &mut bytes[filled..filled + len]);
            self.read += len as u64;
            filled += len;
            let control = self.place.control();
            control.read.0.count.store(self.read, Ordering::Release);
            // A producer that waits for room wants more than a few bytes of it. The ring is read empty before its
            // consumer sleeps, so this comes in any case.
            if (self.written - self.read) as usize <= capacity / 2 {
                wake_sleeper::<P>(&control.producer_sleeps.0, &mut wake);
            }
        }
        Ok(filled)
    }

    /// Whether everything was read and nothing will follow.
    pub(crate) fn is_finished(&self) -> bool {
        self.done && self.written == self.read
    }

    /// Announces sleep until there are bytes. Returns whether to sleep: `false` if there is something to do.
    pub(crate) fn sleep(&mut self) -> bool {
        let sleeps = &self.place.control().consumer_sleeps.0;
        sleeps.swap(asleep_on(self.place.processor()), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.is_ready() {
            self.stay_awake();
            return false;
        }
        true
    }

    /// Takes the announcement back: the producer need not wake it.
    pub(crate) fn stay_awake(&self) {
        let sleeps = &self.place.control().consumer_sleeps.0;
        if sleeps.load(Ordering::Relaxed) != 0 {
            sleeps.swap(0, Ordering::Relaxed);
        }
    }

    /// Says that nobody reads any more.
    pub(crate) fn close(&self, mut wake: impl FnMut()) {
        let control = self.place.control();
        control
            .read
            .0
            .count
            .store(self.read | DONE, Ordering::Release);
        wake_sleeper::<P>(&control.producer_sleeps.0, &mut wake);
    }
}
