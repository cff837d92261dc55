//! The thread of an exchange: one `poll` waits for everything.
//!
//! The broker serves *clients*, which are processes that borrow from this one, and has *calls* open to processes that lend. It blocks only
//! in that `poll`, and every answer that it waits for has a deadline. The kernel identifies a client by its socket: the broker turns away
//! other users, and learns from a client's pidfd when its process has ended.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::eventfd::EventFd;

use super::borrower::Borrower;
use super::call::Call;
use super::client::{Client, Stays, Watched};
use super::copies::IDLE;
use super::{Command, Exchange};
use crate::sync::Arc;
use crate::sys::unix_fds::PacketSocket;
use crate::sys::waiting::poll_all;
use crate::sys::workers::panics;
use crate::sys::{drop_thread, machine, peer};

/// Connections of borrowers at once.
const CLIENTS: usize = 1024;

/// The most of one process. It needs one, and has another while that is replaced. Each takes two descriptors.
const OF_ONE: usize = 32;

/// The most connections that have not identified themselves. An honest peer does so at once, so this many are never slow at the same time.
const UNIDENTIFIED: usize = 32;

/// The most retired segments, and an answer, that a client was not told of because it does not read: beyond that its connection is closed. It
/// maps no more segments than this.
pub(super) const UNTOLD: usize = super::lender::SEGMENTS;

/// How long an answer may take.
pub(in crate::channels) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the broker stops accepting when no file descriptors are left, and how long it sleeps if `poll` itself fails.
const PAUSE: Duration = Duration::from_millis(100);

/// Packets that the broker handles for one peer before it turns to the others.
pub(super) const BURST: usize = 16;

/// See the module's documentation.
pub(super) struct Broker {
    exchange: Arc<Exchange>,
    listener: Arc<PacketSocket>,
    eventfd: Arc<EventFd>,
    /// A descriptor in reserve: when no others are left, the broker closes it so that it can accept the next client and turn it away.
    spare: Option<OwnedFd>,
    clients: Vec<Client>,
    /// Processes that still hold loans although the broker has closed their connection. Each is listed once.
    watched: Vec<Watched>,
    calls: Vec<Call>,
    paused_until: Option<Instant>,
    /// When to look for copies that nobody uses.
    tidy_at: Option<Instant>,
    /// It has logged once that `poll` fails.
    has_warned: bool,
}

impl Broker {
    /// # Errors
    /// If no descriptor is left: the broker could not answer anybody.
    pub(super) fn new(
        exchange: Arc<Exchange>,
        listener: Arc<PacketSocket>,
        eventfd: Arc<EventFd>,
    ) -> std::io::Result<Self> {
        Ok(Self {
            exchange,
            listener,
            spare: Some(eventfd.as_fd().try_clone_to_owned()?),
            eventfd,
            clients: Vec::new(),
            watched: Vec::new(),
            calls: Vec::new(),
            paused_until: None,
            tidy_at: None,
            has_warned: false,
        })
    }

    /// Runs until the process ends. What logs may panic: that costs the peer concerned its connection, and nobody else anything.
    pub(super) fn work(mut self) {
        loop {
            if panics(|| self.round()) {
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn round(&mut self) {
        for command in self.exchange.take_commands() {
            panics(|| self.carry_out(command));
        }
        let mut ready = self.wait().into_iter();
        let mut next = || ready.next().unwrap_or(false);
        if next() {
            let _ = self.eventfd.read();
        }
        let accept = next();
        let exchange = self.exchange.clone();
        let (mut watched, mut left) = (Vec::new(), Vec::new());
        // The same order in which `wait` lists them.
        self.clients.retain_mut(|client| {
            let (said, ended) = (next(), next());
            let mut stays = Stays::Watched;
            panics(|| stays = client.attend(&exchange, said, ended));
            match stays {
                Stays::Here => true,
                Stays::Watched => {
                    watched.extend(client.watch());
                    false
                }
                Stays::Left => {
                    let borrower = client.borrower.as_ref();
                    match borrower.is_some_and(|borrower| borrower.was_cut_off()) {
                        true => watched.extend(client.watch()),
                        false => left.extend(client.borrower.take()),
                    }
                    false
                }
                Stays::Gone => false,
            }
        });
        self.watched.retain(|watched| {
            let ended = next();
            if ended {
                watched.borrower.ended();
            }
            !ended && watched.borrower.has_loans()
        });
        self.calls.retain_mut(|call| {
            let said = next();
            let mut stays = false;
            panics(|| stays = (!said || call.listen().is_ok()) && call.expire(Instant::now()));
            stays
        });
        watched.extend(self.turn_away_extra());
        watched
            .into_iter()
            .for_each(|client| self.keep_watch(client));
        left.iter().for_each(|borrower| self.left(borrower));
        self.tidy();
        if accept {
            self.accept();
        }
    }

    /// Waits until something happens. Returns what is ready, in this order: the eventfd, the listener, the clients (two entries
    /// each), the watched processes, the calls.
    fn wait(&mut self) -> Vec<bool> {
        let now = Instant::now();
        self.paused_until = self.paused_until.filter(|until| *until > now);
        let accepts = self.paused_until.is_none() && self.clients.len() < CLIENTS;
        let unidentified = self
            .clients
            .iter()
            .filter(|client| client.is_unidentified());
        let deadlines = unidentified.map(|client| client.arrived + ANSWER_TIMEOUT);
        let deadlines = deadlines.chain(self.calls.iter().filter_map(Call::deadline));
        let deadline = deadlines.chain(self.paused_until).chain(self.tidy_at).min();
        // Rounded up, so that the deadline has passed when `poll` returns.
        let timeout = deadline.map_or(PollTimeout::NONE, |deadline| {
            let millis = deadline.saturating_duration_since(now).as_millis() + 1;
            PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
        });
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let listens = if accepts {
            PollFlags::POLLIN
        } else {
            PollFlags::empty()
        };
        let mut fds = vec![
            readable(self.eventfd.as_fd()),
            PollFd::new(self.listener.as_fd(), listens),
        ];
        for client in &self.clients {
            fds.push(PollFd::new(client.socket.as_fd(), client.awaits()));
            fds.push(readable(client.process.as_fd()));
        }
        let watched = self.watched.iter();
        fds.extend(watched.map(|watched| readable(watched.process.as_fd())));
        fds.extend(self.calls.iter().map(|call| readable(call.socket())));
        match poll_all(&mut fds, timeout) {
            Ok(()) | Err(Errno::EINTR) => {}
            // The system has no memory, or the process may open no descriptor at all: this may get better.
            Err(errno) => {
                if !std::mem::replace(&mut self.has_warned, true) {
                    tracing::warn!(%errno, "what is lent between processes is late");
                }
                std::thread::sleep(PAUSE);
            }
        }
        let happened = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        fds.iter().map(happened).collect()
    }

    /// Frees copies that nobody uses, when it is time.
    fn tidy(&mut self) {
        if self.tidy_at.is_none_or(|at| at > Instant::now()) {
            return;
        }
        let clients = self
            .clients
            .iter()
            .filter_map(|client| client.borrower.as_ref());
        let borrowers = clients.chain(self.watched.iter().map(|watched| &watched.borrower));
        // `tidy` runs for every one of them: `count` does not stop early.
        let used = borrowers.filter(|borrower| borrower.tidy()).count();
        self.tidy_at = (used > 0).then(|| Instant::now() + IDLE);
    }

    /// A process has closed a connection. If it has loans and no other one, its program is gone.
    fn left(&self, borrower: &Arc<Borrower>) {
        let clients = self.clients.iter();
        let clients = clients.filter_map(|client| client.borrower.as_ref());
        let mut known = clients.chain(self.watched.iter().map(|watched| &watched.borrower));
        if borrower.has_loans() && !known.any(|known| Arc::ptr_eq(known, borrower)) {
            borrower.ended();
        }
    }

    /// A process that comes again and again loses its oldest connections: it must not take the places of others.
    fn turn_away_extra(&mut self) -> Vec<Watched> {
        let mut extra = Vec::new();
        if self.clients.len() <= OF_ONE {
            return extra;
        }
        let mut counts = HashMap::<_, usize>::new();
        for client in self.clients.iter().filter(|one| !one.is_unidentified()) {
            *counts.entry(client.who).or_default() += 1;
        }
        // Oldest first.
        self.clients.retain_mut(|client| {
            let count = counts.get_mut(&client.who);
            let Some(count) = count.filter(|count| **count > OF_ONE && !client.is_unidentified())
            else {
                return true;
            };
            *count -= 1;
            extra.extend(client.watch());
            false
        });
        extra
    }

    /// A process that connects and is turned away repeatedly still takes only one descriptor.
    fn keep_watch(&mut self, client: Watched) {
        let is_same = |known: &Watched| {
            known.who == client.who && Arc::ptr_eq(&known.borrower, &client.borrower)
        };
        if client.borrower.has_loans() && !self.watched.iter().any(is_same) {
            self.watched.push(client);
        }
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Fetch {
                lender,
                invitation,
                segment,
                tell,
            } => {
                let known = self.calls.iter_mut().find(|call| call.is_to(&lender));
                match known {
                    Some(call) => call.fetch(invitation, segment, tell),
                    None => match Call::begin(&lender) {
                        Ok(mut call) => {
                            call.fetch(invitation, segment, tell);
                            self.calls.push(call);
                        }
                        Err(reason) => {
                            lender.failed();
                            let _ = tell.send(Err(reason));
                        }
                    },
                }
            }
            Command::Retire { borrower, segment } => {
                let theirs = |client: &&mut Client| {
                    let known = client.borrower.as_ref();
                    known.is_some_and(|known| Arc::ptr_eq(known, &borrower))
                };
                for client in self.clients.iter_mut().filter(theirs) {
                    client.retire(segment);
                }
            }
            Command::Tidy => {
                self.tidy_at.get_or_insert_with(|| Instant::now() + IDLE);
            }
            Command::Leave(lender) => self.calls.retain(|call| call.lender() != lender),
        }
    }

    fn accept(&mut self) {
        for _ in 0..BURST {
            if drop_thread::is_kept_from_closing() {
                self.paused_until = Some(Instant::now() + PAUSE);
                return;
            }
            match self.listener.accept() {
                Ok(socket) => match Client::new(socket) {
                    Ok(client) => self.admit(client),
                    Err(reason) => tracing::debug!(reason, "a borrower is turned away"),
                },
                Err(Errno::EMFILE | Errno::ENFILE) if self.turn_away() => {}
                Err(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM) => {
                    self.paused_until = Some(Instant::now() + PAUSE);
                    return;
                }
                Err(_) => return,
            }
        }
    }

    /// When too many clients have not identified themselves, removes the oldest: it had its chance to speak and said nothing.
    fn admit(&mut self, client: Client) {
        let clients = self.clients.iter().enumerate();
        let mut unidentified = clients.filter(|(_, client)| client.is_unidentified());
        let first = unidentified.next().map(|(at, _)| at);
        let others = unidentified.count();
        let first = first.filter(|_| others + 1 >= UNIDENTIFIED);
        let removed = first.map(|first| self.clients.remove(first));
        self.clients.push(client);
        if removed.is_some() {
            tracing::debug!("one who does not say who it is is turned away: there are too many");
        }
    }

    /// Accepts the next connection and closes it, so that the client does not wait for an answer in vain. `false`: there was no
    /// descriptor in reserve.
    fn turn_away(&mut self) -> bool {
        let has_one = self.spare.take().is_some();
        if has_one {
            // Its descriptor is needed at once; only another user's may take long to close.
            match self.listener.accept() {
                Ok(socket)
                    if peer::of_socket(&socket).is_ok_and(|who| who.user == machine::user()) => {}
                Ok(socket) => drop_thread::close_later(socket),
                Err(_) => {}
            }
        }
        self.spare = self.eventfd.as_fd().try_clone_to_owned().ok();
        if has_one {
            tracing::debug!("a borrower is turned away: too many files are open");
        }
        has_one
    }
}

#[cfg(test)]
mod tests;
