//! Waiting by looking: who looks, and that nobody is waited for who does not.
//!
//! While a pipe is hot, its connection asks nobody to be woken. Invariant: while anybody waits, it is hot only if its
//! spinner, one task, is scheduled to look again; a spinner that leaves, or has looked long enough, cools the pipe or sees
//! to another. A spinner that was forgotten (its future is kept and not polled), or left and was followed by none, is
//! noticed by the background task's tick. `tensorpipe-loom` checks it in every order of the threads' steps.
//!
//! A look costs a few nanoseconds and no system call. Between some looks the task goes to the end of its runtime's queue
//! (`Core::wake_to_look`), so that whatever else is ready runs first: of several busy pipes on one thread each gets its turn,
//! and so do timers and sockets.

use std::task::Waker;
use std::time::Instant;

use super::core::Core;
use super::io::Io;
use super::spin::{LOOKS_IN_A_POLL, Spin};
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, lock};

/// The background task as a spinner; operations are numbered from 1.
pub(in crate::pipe) const BACKGROUND: u64 = u64::MAX;

const NOBODY: u64 = 0;

#[derive(Debug)]
pub(in crate::pipe) struct Hot {
    /// The connection knows how.
    able: bool,
    // These two are changed by exchanges only: the model checker knows their order then, and they cost no more.
    on: AtomicBool,
    spinner: AtomicU64,
    /// Looks so far, and how many there were when the background task last looked after the spinner.
    looks: AtomicU64,
    looks_seen: AtomicU64,
    /// Something is waited for: `spin` wants to hear when it comes.
    waiting: AtomicBool,
    /// A handler takes messages at any time: somebody always waits.
    listens: AtomicBool,
    /// A look is a system call: messages that come and go together cost less.
    costly: bool,
    /// Messages that came together last: none, where a look has found none since.
    together: AtomicU32,
    /// The same where some came, until somebody asks.
    some_together: AtomicU32,
    /// The spinner's last looks have seen bytes, and let more come together with them.
    some_seen: AtomicBool,
    spin: Mutex<Spin>,
}

/// What a look has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pipe) enum Seen {
    Nothing,
    /// Something that waits for more, for a short while.
    Some,
    /// Something to be done now.
    Enough,
}

/// Operations or messages at once from which on costly looks do not pay: each would find one message, where a sleeper is
/// woken for many. (64 calls in flight over tcp took 7.7 µs each by looking, 1.7 by sleeping.)
const CROWD: u32 = 4;

/// Operations from which on several messages are waited for, to be read together: who looks finds less for each.
const MANY: usize = 16;

impl Hot {
    pub(in crate::pipe) fn new(able: bool) -> Self {
        Self {
            able,
            on: AtomicBool::new(false),
            spinner: AtomicU64::new(NOBODY),
            looks: AtomicU64::new(0),
            looks_seen: AtomicU64::new(0),
            waiting: AtomicBool::new(false),
            listens: AtomicBool::new(false),
            costly: false,
            together: AtomicU32::new(0),
            some_together: AtomicU32::new(0),
            some_seen: AtomicBool::new(false),
            spin: Mutex::default(),
        }
    }

    pub(in crate::pipe) fn is_on(&self) -> bool {
        self.on.load(Ordering::SeqCst)
    }

    /// Whether a handler takes messages at any time.
    pub(in crate::pipe) fn listens(&self) -> bool {
        self.listens.load(Ordering::Relaxed)
    }

    /// Each look is a system call, or not.
    pub(in crate::pipe) fn costly(mut self, costly: bool) -> Self {
        self.costly = costly;
        self
    }

    /// Whether moving bytes is a system call.
    pub(in crate::pipe) fn is_costly(&self) -> bool {
        self.costly
    }

    /// How many messages came in one go last, if nobody has asked since.
    pub(in crate::pipe) fn came_together(&self) -> u32 {
        // A look is cheaper than an exchange.
        match self.some_together.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.some_together.swap(0, Ordering::Relaxed),
        }
    }

    /// So many messages came in one go.
    pub(in crate::pipe) fn came(&self, messages: u32) {
        self.together.store(messages, Ordering::Relaxed);
        if messages > 0 {
            self.some_together.store(messages, Ordering::Relaxed);
        }
    }

    pub(in crate::pipe) fn has_spinner(&self) -> bool {
        self.spinner.load(Ordering::SeqCst) != NOBODY
    }

    /// `who` is the spinner no more, if it was.
    fn resign(&self, who: u64) {
        let _ = (self.spinner).compare_exchange(who, NOBODY, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Bytes have come.
    pub(in crate::pipe) fn found(&self) {
        if self.waiting.load(Ordering::Relaxed) {
            self.waiting.store(false, Ordering::Relaxed);
            lock(&self.spin).found(Instant::now);
        }
    }

    /// The background task looks whether the spinner does. Returns `true` if it was forgotten.
    pub(in crate::pipe) fn is_forgotten(&self) -> bool {
        let looks = self.looks.load(Ordering::Relaxed);
        let seen = self.looks_seen.swap(looks, Ordering::Relaxed);
        self.is_on() && (looks == seen || !self.has_spinner())
    }
}

impl Core {
    /// A wait is about to begin: from the next look on the connection does not ask to be woken, if looking pays.
    pub(in crate::pipe) fn heat(&self) {
        let hot = &self.hot;
        if hot.able && !hot.is_on() && !self.is_crowded() && lock(&hot.spin).pays() {
            hot.on.swap(true, Ordering::SeqCst);
            self.poller.keep_ticking();
        }
    }

    fn is_crowded(&self) -> bool {
        self.hot.costly
            && (self.hot.together.load(Ordering::Relaxed) > CROWD
                || self.poller.waiting() > CROWD as usize)
    }

    /// From now on messages are taken at any time.
    pub(in crate::pipe) fn listen(&self) {
        self.hot.listens.store(true, Ordering::SeqCst);
        // The pipe may have been left hot.
        self.poller.wake_background();
    }

    /// Whether something can be done now: looks a few times. For an operation that is the spinner, between two polls.
    pub(in crate::pipe) fn look(&self) -> bool {
        let many = self.poller.waiting() > MANY;
        // What is to be sent then leaves without it: the background task was told.
        self.look_for(many, !many)
    }

    /// The same; whoever `sends` comes for what was left behind, too.
    fn look_for(&self, many: bool, sends: bool) -> bool {
        let mut some = false;
        let found = self.io.look(LOOKS_IN_A_POLL, |io: &mut Io| {
            let seen = io.look(many, sends);
            some |= seen == Seen::Some;
            seen == Seen::Enough
        });
        if some && !found {
            self.hot.some_seen.store(true, Ordering::Relaxed);
        }
        found
    }

    /// `who` has found nothing and waits. Returns whether it is the spinner, and scheduled to look again; `spins` says
    /// whether it was already. If not, the connection wakes whom it should, or somebody else spins.
    pub(in crate::pipe) fn look_again(
        self: &Arc<Self>,
        who: u64,
        spins: &mut bool,
        waker: &Waker,
    ) -> bool {
        let hot = &self.hot;
        if !hot.able {
            return false;
        }
        hot.waiting.store(true, Ordering::Relaxed);
        if !hot.is_on() {
            if std::mem::take(spins) {
                // Cooled by another in between, which may not have seen it.
                hot.resign(who);
            }
            lock(&hot.spin).sleeps(Instant::now);
            return false;
        }
        let spinner = hot.spinner.load(Ordering::SeqCst);
        if !*spins && spinner != NOBODY && !hot.costly && self.poller.waiting() > CROWD as usize {
            // One looks for all: that each of them did once would cost more than it finds. (64 calls in flight over shm: 1.17
            // instead of 1.26 µs each.)
            return false;
        }
        // Nobody spins where the pipe was cooled in between, and made hot again.
        if !std::mem::replace(spins, true) || spinner == NOBODY {
            hot.spinner.swap(who, Ordering::SeqCst);
        } else if spinner != who {
            // Another, which has begun to wait since, has taken over.
            *spins = false;
            return false;
        }
        hot.looks.fetch_add(1, Ordering::Relaxed);
        // That bytes are there, and wait for more, is not in vain: they are read soon, and tell how long it took.
        let some_seen =
            hot.some_seen.load(Ordering::Relaxed) && hot.some_seen.swap(false, Ordering::Relaxed);
        let looks_on = || some_seen || lock(&hot.spin).in_vain(LOOKS_IN_A_POLL, Instant::now);
        if !self.is_crowded() && looks_on() {
            self.wake_to_look(waker);
            return true;
        }
        *spins = false;
        self.cool();
        false
    }

    /// `who` waits no more. For others that still wait the background task looks, until one of them does.
    ///
    /// Where nobody waits for anything, the pipe stays hot: most likely the next operation is about to begin, and cooling
    /// and heating would cost more than it does. If none comes, the background task's tick cools it; until then what
    /// the peer says of its own accord (a ping, a goodbye) lies there.
    pub(in crate::pipe) fn stop_looking(self: &Arc<Self>, who: u64, spins: &mut bool) {
        let hot = &self.hot;
        if !hot.able {
            return;
        }
        if std::mem::take(spins) {
            hot.resign(who);
        }
        // Also where it never looked: it may have made the pipe hot, and found what it waits for at once.
        if !hot.is_on() || hot.has_spinner() {
            return;
        }
        if self.poller.has_waiting() {
            self.poller.wake_background();
        } else if hot.listens.load(Ordering::SeqCst) {
            self.cool();
        }
    }

    /// From now on the connection asks to be woken.
    pub(in crate::pipe) fn cool(self: &Arc<Self>) {
        self.hot.spinner.swap(NOBODY, Ordering::SeqCst);
        if self.hot.on.swap(false, Ordering::SeqCst) {
            self.drive();
        }
    }

    /// The background task drives. Returns whether it is the spinner, and scheduled to look again.
    pub(in crate::pipe) fn drive_in_background(
        self: &Arc<Self>,
        spins: &mut bool,
        waker: &Waker,
    ) -> bool {
        let many = self.poller.waiting() > MANY;
        if *spins && !self.look_for(many, true) && self.look_again(BACKGROUND, spins, waker) {
            return true;
        }
        self.poller.set_background(waker);
        // Operations that are awaited look for themselves, unless the one that did has just ended.
        let looks = self.hot.is_on() || !self.poller.has_waiting();
        if looks {
            self.heat();
        }
        self.drive();
        let looks = looks && (*spins || !self.hot.has_spinner());
        looks && self.look_again(BACKGROUND, spins, waker)
    }

    /// The background task looks after forgotten futures.
    pub(in crate::pipe) fn tick(self: &Arc<Self>) {
        if self.hot.is_forgotten() {
            self.cool();
        }
        if self.hot.is_on() {
            self.poller.keep_ticking();
        }
        if self.poller.tick() {
            self.drive();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transports::ShmTransport;
    use crate::{Context, Message, Pipe};

    /// A hot pipe on which many wait, and both its ends; nothing but the test drives it.
    async fn many_wait(name: &str) -> (Arc<Core>, Vec<Option<u64>>, [Pipe; 2]) {
        let context = Context::builder()
            .transports([Arc::new(ShmTransport::new()) as _])
            .build()
            .unwrap();
        let url = format!("shm://{name} {}", std::process::id());
        let listener = context.listen([url]).await.unwrap();
        let (client, server) = tokio::join!(context.connect(listener.url()), listener.accept());
        let (client, server) = (client.unwrap(), server.unwrap());
        let core = client.core().clone();
        let mut slots = vec![None; MANY + 1];
        for slot in &mut slots {
            core.poller.register(slot, Waker::noop());
        }
        core.heat();
        core.drive();
        assert!(core.hot.is_on());
        (core, slots, [client, server])
    }

    #[tokio::test]
    async fn the_background_task_sends_what_it_was_told_of_while_it_looks_for_many() {
        let (core, _slots, _ends) = many_wait("told while it looks").await;
        let mut spins = false;
        assert!(core.look_again(BACKGROUND, &mut spins, Waker::noop()) && spins);
        let before = core.counters.snapshot().bytes_out;
        {
            let mut io = core.io.hold().unwrap();
            let frames = io.frames_with_room().unwrap();
            let id = lock(&core.shared).state.write_bare(b"told", frames);
            assert!(id.is_some());
            io.push_frames(8 + 12 + 4);
            io.owe_send();
        }
        core.drive_in_background(&mut spins, Waker::noop());
        assert_eq!(core.counters.snapshot().bytes_out, before + 24);
    }

    #[tokio::test]
    async fn looks_that_see_a_message_and_let_others_come_with_it_are_not_in_vain() {
        let (core, slots, [_client, server]) = many_wait("some in sight").await;
        let who = slots[MANY].unwrap();
        let mut spins = false;
        assert!(core.look_again(who, &mut spins, Waker::noop()) && spins);
        let spin = || format!("{:?}", lock(&core.hot.spin));
        let before = spin();
        server.send(Message::new("one of many")).unwrap();
        assert!(!core.look(), "it does not wait for others");
        assert!(core.look_again(who, &mut spins, Waker::noop()) && spins);
        assert_eq!(spin(), before);
        // One that sees nothing is.
        assert!(core.look_again(who, &mut spins, Waker::noop()) && spins);
        assert_ne!(spin(), before);
    }
}
