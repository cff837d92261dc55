//! Who has one of an acceptor's places for handshakes, and who loses it where there are not enough.
//!
//! A connection costs an unproven peer nothing, so whoever holds a place and says nothing must not keep others out. Where places are short,
//! the oldest connection goes that has not said what it wants, from the origin that has the most of those. It stays where the newcomer's
//! origin has more places, and more than half of all, or the connection has only just come. Else the oldest of the origin that has the most
//! places goes, if it has had its time, or the newcomer's origin has less.

use std::collections::HashMap;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::address::PeerAddr;
use crate::sync::{Arc, AtomicBool, Ordering};

/// See the module's documentation. Oldest first.
#[derive(Debug)]
pub(super) struct HandshakeSlots {
    most: usize,
    /// How long who has said what it wants keeps its place whoever comes.
    time: Duration,
    taken: Vec<Taken>,
    /// With so many it checks which of them have ended.
    look_at: usize,
}

const FEW: usize = 16;

/// An honest connector may need so long to say what it wants: several round trips with TLS and a token. Chosen.
const MAY_BE_SILENT: Duration = Duration::from_secs(1);

/// A handshake under way.
#[derive(Debug)]
struct Taken {
    /// [`PeerAddr::origin`].
    origin: PeerAddr,
    /// It has said what it wants, and proved what is asked for.
    has_greeted: Arc<AtomicBool>,
    handshake: AbortHandle,
    since: Instant,
}

impl HandshakeSlots {
    pub(super) fn new(most: usize, time: Duration) -> Self {
        Self {
            most,
            time,
            taken: Vec::new(),
            look_at: FEW,
        }
    }

    /// Makes room for one more of `origin`; returns whether there is room.
    pub(super) fn make_room(&mut self, origin: PeerAddr) -> bool {
        // Also before: what is left of one that has ended takes memory.
        if self.taken.len() >= self.most.min(self.look_at) {
            self.taken.retain(|taken| !taken.handshake.is_finished());
            self.look_at = 2 * self.taken.len() + FEW;
        }
        if self.taken.len() < self.most {
            return true;
        }
        let held = self.count(|_| true);
        let own = held.get(&origin).copied().unwrap_or(0);
        let silent = |taken: &Taken| {
            let is_slow = taken.since.elapsed() >= MAY_BE_SILENT;
            !taken.has_greeted.load(Ordering::Relaxed)
                && (held[&taken.origin] >= own || (is_slow && 2 * own <= self.most))
        };
        let (_, at) = match self.first_of_most(silent) {
            Some(silent) => silent,
            None => {
                let more = own + 1;
                match self.first_of_most(|_| true) {
                    Some(found) if found.0 > more => found,
                    Some(found) if self.taken[found.1].since.elapsed() >= self.time => found,
                    _ => return false,
                }
            }
        };
        self.taken.remove(at).handshake.abort();
        true
    }

    /// The system lacks what a further connection needs, a descriptor most likely. Those give theirs back that have said nothing for long, of
    /// the origin that has the most of them.
    pub(super) fn give_way(&mut self) {
        self.taken.retain(|taken| !taken.handshake.is_finished());
        let is_silent = |taken: &Taken| {
            let is_slow = taken.since.elapsed() >= MAY_BE_SILENT;
            is_slow && !taken.has_greeted.load(Ordering::Relaxed)
        };
        let Some((_, at)) = self.first_of_most(is_silent) else {
            return;
        };
        let origin = self.taken[at].origin;
        let silent = |taken: &mut Taken| taken.origin == origin && is_silent(taken);
        for taken in self.taken.extract_if(.., silent) {
            taken.handshake.abort();
        }
    }

    /// How many that are `meant` each origin has.
    fn count(&self, meant: impl Fn(&Taken) -> bool) -> HashMap<PeerAddr, usize> {
        let mut counts = HashMap::new();
        let meant = self.taken.iter().filter(|taken| meant(taken));
        meant.for_each(|taken| *counts.entry(taken.origin).or_default() += 1);
        counts
    }

    /// Of those that are `meant`, the oldest of the origin that has the most of them, and how many it has.
    fn first_of_most(&self, meant: impl Fn(&Taken) -> bool) -> Option<(usize, usize)> {
        let counts = self.count(&meant);
        let all = self.taken.iter().enumerate();
        let meant = all.filter(|(_, taken)| meant(taken));
        let counted = meant.map(|(at, taken)| (counts[&taken.origin], at));
        // The last of several that are as large is the oldest.
        counted.rev().max_by_key(|(count, _)| *count)
    }

    /// There was [room](Self::make_room) for this one.
    pub(super) fn take(
        &mut self,
        origin: PeerAddr,
        has_greeted: Arc<AtomicBool>,
        handshake: AbortHandle,
    ) {
        self.taken.push(Taken {
            origin,
            has_greeted,
            handshake,
            since: Instant::now(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A handshake that ends when it loses its place.
    struct Handshake(tokio::task::JoinHandle<()>, Arc<AtomicBool>);

    impl Handshake {
        fn greets(&self) {
            self.1.store(true, Ordering::Relaxed);
        }

        async fn has_lost_its_place(self) {
            assert!(self.0.await.unwrap_err().is_cancelled());
        }
    }

    const LONG: Duration = Duration::from_secs(3600);

    fn comes(places: &mut HandshakeSlots, uid: u32) -> Option<Handshake> {
        let origin = PeerAddr::Process { pid: None, uid };
        places.make_room(origin).then(|| {
            let handshake = tokio::spawn(std::future::pending());
            let has_greeted = Arc::<AtomicBool>::default();
            let abort = handshake.abort_handle();
            places.take(origin, has_greeted.clone(), abort);
            Handshake(handshake, has_greeted)
        })
    }

    #[tokio::test]
    async fn the_oldest_that_says_nothing_goes_first() {
        let mut places = HandshakeSlots::new(3, LONG);
        let [first, second, third] = [(); 3].map(|()| comes(&mut places, 1).unwrap());
        first.greets();
        let fourth = comes(&mut places, 1).unwrap();
        second.has_lost_its_place().await;
        let fifth = comes(&mut places, 1).unwrap();
        third.has_lost_its_place().await;
        fourth.greets();
        fifth.greets();
        assert!(
            comes(&mut places, 1).is_none(),
            "all have said who they are"
        );
        first.0.abort();
        assert!(first.0.await.is_err());
        assert!(comes(&mut places, 1).is_some(), "one is done");
    }

    #[tokio::test]
    async fn one_origin_does_not_keep_another_out() {
        let mut places = HandshakeSlots::new(4, LONG);
        let patient = comes(&mut places, 2).unwrap();
        let [first, second, _third] = [(); 3].map(|()| comes(&mut places, 1).unwrap());
        // Older, but alone.
        let _fourth = comes(&mut places, 2).unwrap();
        first.has_lost_its_place().await;
        for taken in &places.taken {
            taken.has_greeted.store(true, Ordering::Relaxed);
        }
        let unproven = comes(&mut places, 3).unwrap();
        // Two of each user: the oldest of them.
        patient.has_lost_its_place().await;
        unproven.greets();
        // Each would have as many as the one that lost a place for it.
        assert!(comes(&mut places, 1).is_none());
        assert!(comes(&mut places, 2).is_none());
        comes(&mut places, 4).unwrap();
        second.has_lost_its_place().await;
    }

    /// Else who comes again and again would drive out whoever is slow to prove who it is.
    #[tokio::test]
    async fn a_silent_one_does_not_go_for_an_origin_that_has_more() {
        let mut places = HandshakeSlots::new(4, LONG);
        let many = [(); 3].map(|()| comes(&mut places, 1).unwrap());
        many.iter().for_each(Handshake::greets);
        let slow = comes(&mut places, 2).unwrap();
        assert!(comes(&mut places, 1).is_none());
        // For one who has as few it goes.
        comes(&mut places, 3).unwrap();
        slow.has_lost_its_place().await;
    }

    /// Unproven peers of many origins, each of which has one place. Who has just come may be honest.
    #[tokio::test(start_paused = true)]
    async fn who_has_a_few_still_takes_the_place_of_a_silent_one() {
        let mut places = HandshakeSlots::new(5, LONG);
        let [first, ..] = [1, 2, 3].map(|uid| comes(&mut places, uid).unwrap());
        let own = [(); 2].map(|()| comes(&mut places, 4).unwrap());
        own.iter().for_each(Handshake::greets);
        assert!(comes(&mut places, 4).is_none());
        tokio::time::sleep(MAY_BE_SILENT).await;
        comes(&mut places, 4).unwrap();
        first.has_lost_its_place().await;
    }

    /// However many places its origin has.
    #[tokio::test(start_paused = true)]
    async fn one_that_has_just_come_does_not_keep_the_places_of_others() {
        let mut places = HandshakeSlots::new(6, LONG);
        let slow = comes(&mut places, 1).unwrap();
        tokio::time::sleep(MAY_BE_SILENT).await;
        let _fresh = [(); 2].map(|()| comes(&mut places, 2).unwrap());
        let own = [(); 3].map(|()| comes(&mut places, 3).unwrap());
        own.iter().for_each(Handshake::greets);
        comes(&mut places, 3).unwrap();
        slow.has_lost_its_place().await;
    }

    /// Else who connects and says nothing keeps everybody out as soon as there are fewer descriptors than places.
    #[tokio::test(start_paused = true)]
    async fn where_descriptors_are_short_those_give_way_that_have_said_nothing_for_long() {
        let mut places = HandshakeSlots::new(100, LONG);
        let [first, second, greeted] = [(); 3].map(|()| comes(&mut places, 1).unwrap());
        greeted.greets();
        let _other = comes(&mut places, 2).unwrap();
        places.give_way();
        assert_eq!(places.taken.len(), 4, "they have only just come");
        tokio::time::sleep(MAY_BE_SILENT).await;
        let _fresh = comes(&mut places, 1).unwrap();
        places.give_way();
        first.has_lost_its_place().await;
        second.has_lost_its_place().await;
        assert_eq!(places.taken.len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_had_its_time_makes_room_for_its_own_origin() {
        let mut places = HandshakeSlots::new(1, LONG);
        let first = comes(&mut places, 1).unwrap();
        first.greets();
        assert!(comes(&mut places, 1).is_none());
        tokio::time::sleep(LONG).await;
        comes(&mut places, 1).unwrap();
        first.has_lost_its_place().await;
    }
}
