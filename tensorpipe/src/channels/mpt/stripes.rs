//! What a pipe's lane shares with the tasks of its connections.
//!
//! Lock order: the pipe's lock, which is held while the lane's methods run, comes before this one. So a task must release this lock before
//! it reports to the pipe.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::Notify;

use super::arriving::Arriving;
use super::frame::ControlMessage;
use super::line::{Line, RttEstimate};
use super::sending::{Chunk, Sending};
use super::{Degraded, LaneHandle, OpId};
use crate::device::BufferMut;
use crate::error::{Error, SystemError};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, lock};

pub(super) struct Stripes {
    pub(super) handle: LaneHandle,
    state: Mutex<State>,
    /// Notified when there may be chunks to pull.
    pub(super) work: Notify,
    sent: Arc<Vec<AtomicU64>>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Told when there are no connections any more.
    degraded: Degraded,
    pub(super) sending: Sending,
    pub(super) arriving: HashMap<OpId, Arc<Arriving>>,
    pub(super) connection_state: ConnectionState,
    /// How many are open.
    connections: usize,
    /// How many more may still come, within [`OPEN_WITHIN`](super::lane::OPEN_WITHIN).
    pub(super) coming: usize,
    /// Chunk times of the connection that was confirmed last.
    rtt: Option<RttEstimate>,
}

/// Whether there are connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ConnectionState {
    /// Nobody has needed any.
    #[default]
    Unused,
    Opening,
    Open,
    /// There are none, and no more will be opened.
    Closed,
}

impl Stripes {
    pub(super) fn new(handle: LaneHandle, degraded: Degraded, sent: Arc<Vec<AtomicU64>>) -> Self {
        let state = State {
            degraded,
            ..State::default()
        };
        Self {
            handle,
            state: Mutex::new(state),
            work: Notify::new(),
            sent,
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// A connection is there.
    pub(super) fn opened(&self) {
        {
            let mut state = self.state();
            state.connections += 1;
            state.coming = state.coming.saturating_sub(1);
            state.connection_state = ConnectionState::Open;
            state.sending.stripe();
        }
        self.work.notify_waiters();
    }

    pub(super) fn pull(&self) -> Option<Chunk> {
        self.state().sending.pull()
    }

    pub(super) fn count_sent(&self, connection: usize) {
        if let Some(sent) = self.sent.get(connection) {
            sent.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The tensor that a chunk belongs to. `None`: nobody waits for it any more.
    pub(super) fn arriving(&self, op: OpId) -> Option<Arc<Arriving>> {
        self.state().arriving.get(&op).cloned()
    }

    /// A chunk of `op` makes so many bytes resident. If there is no room for them, `op` fails.
    pub(super) fn count(&self, op: OpId, cost: Result<u64, SystemError>) {
        match cost {
            Ok(0) => {}
            Ok(cost) => self.handle.count(op, cost),
            Err(error) => {
                let (bytes, reason) = (0, error.to_string().into());
                self.handle.failed(op, Error::OutOfMemory { bytes, reason });
            }
        }
    }

    /// All chunks of `op` are in place.
    pub(super) fn arrived(&self, op: OpId, memory: BufferMut) {
        self.state().arriving.remove(&op);
        self.handle.streamed(op, memory.len() as u64);
        self.handle
            .received_and_tell(op, memory.freeze(), ControlMessage::Done.encode());
    }

    /// The peer has confirmed chunks of a connection.
    pub(super) fn confirmed(&self, line: &Line) {
        self.state().rtt = line.rtt();
    }

    /// Lets another connection, if there is one, carry what is late on this one.
    pub(super) fn send_late_again(&self, line: &Line) {
        let mut state = self.state();
        if state.connections > 1 {
            let late = line.take_late(state.rtt);
            if !late.is_empty() {
                state.sending.send_again(late);
                drop(state);
                self.work.notify_waiters();
            }
        }
    }

    /// A connection has ended, and the others carry its chunks, those that are still coming too.
    pub(super) fn closed(&self, line: &Line) {
        let says = {
            let mut state = self.state();
            state.connections -= 1;
            state.sending.send_again(line.unconfirmed());
            if state.connections == 0 {
                state.connection_state = ConnectionState::Opening;
            }
            state.fall_back_to_pipe("its connections have ended")
        };
        self.work.notify_waiters();
        self.say(says);
    }

    /// Whether a tensor is partly sent and no connection is there to carry the rest; with it, whether one may still come.
    pub(super) fn torn(&self) -> Option<bool> {
        let state = self.state();
        let is_partly_sent = || {
            state.sending.is_partly_sent()
                || state.arriving.values().any(|arriving| arriving.has_begun())
        };
        (state.connections == 0 && is_partly_sent()).then_some(state.coming > 0)
    }

    /// A connection could not be made.
    pub(super) fn not_joined(&self) {
        let says = {
            let mut state = self.state();
            state.coming = state.coming.saturating_sub(1);
            state.fall_back_to_pipe("its connections could not be made")
        };
        self.say(says);
    }

    /// Connections that are not open yet are no longer waited for.
    pub(super) fn give_up(&self) {
        let says = self.state().give_up("no connection came in time");
        self.say(says);
    }

    fn say(&self, says: Vec<(OpId, ControlMessage)>) {
        for (op, say) in says {
            self.handle.control(op, say.encode());
        }
    }
}

impl State {
    /// No more connections come, for this reason.
    pub(super) fn give_up(&mut self, reason: &str) -> Vec<(OpId, ControlMessage)> {
        self.coming = 0;
        self.fall_back_to_pipe(reason)
    }

    /// If there are no connections, and none are coming: from now on, tensors go on the pipe's own, for this reason. Returns what to tell the peer: about
    /// each tensor once, however often this is called. The lane tells of those that it expects later.
    pub(super) fn fall_back_to_pipe(&mut self, reason: &str) -> Vec<(OpId, ControlMessage)> {
        if self.connections + self.coming > 0 {
            return Vec::new();
        }
        let before = std::mem::replace(&mut self.connection_state, ConnectionState::Closed);
        self.degraded.cannot_send(reason);
        let whole = self
            .sending
            .ask()
            .into_iter()
            .map(|op| (op, ControlMessage::NotStriped));
        let alone = self
            .arriving
            .keys()
            .filter(|_| before != ConnectionState::Closed)
            .map(|op| (*op, ControlMessage::CannotJoin));
        whole.chain(alone).collect()
    }

    /// Lets go of everything.
    pub(super) fn clear(&mut self) {
        self.sending.clear();
        for (_, arriving) in self.arriving.drain() {
            arriving.let_go();
        }
    }
}
