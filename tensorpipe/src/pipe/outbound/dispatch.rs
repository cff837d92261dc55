//! What happens to a message in the send buffer. It leaves at once, or when the pipe is driven next. If the handler writes it and more
//! calls of the handler follow, it leaves together with their answers.
//!
//! Invariant: a thread that leaves bytes behind has another one come for them: the background task, or the thread that calls the handler.
//! `tensorpipe-loom` checks it in every order of the threads' steps.

use crate::pipe::core::Core;
use crate::pipe::driver::expects_batch;
use crate::pipe::io::Io;
use crate::pipe::shared::Shared;
use crate::sync::{Arc, MutexGuard, lock};

/// When a message should leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At once, if nothing is before it.
    Now,
    /// So many other operations of the writer's wait for their answers: if more messages are likely to be written, it leaves together with
    /// them.
    Coalesce(usize),
    /// When the pipe is driven next: more messages are sure to follow.
    NextDrive,
    /// The same if a write is a system call; otherwise at once, so that the peer begins with what the next messages wait for.
    NextDriveIfSyscall,
}

/// What became of a message.
#[derive(Clone, Copy, Debug)]
pub struct Submitted {
    /// Its number.
    pub id: u64,
    /// Other messages are likely to be written at the same time. It leaves with them, or has left: nobody need drive the pipe for it alone.
    pub batched: bool,
    /// Every byte is handed over.
    pub(in crate::pipe) over: bool,
    /// It waits for the caller, or somebody else, to drive.
    pub(in crate::pipe) drive: bool,
}

/// A message that was put among the bytes to be sent.
#[derive(Clone, Copy, Debug)]
pub(in crate::pipe) struct Pushed {
    pub(in crate::pipe) id: u64,
    /// Nothing was there before it.
    pub(in crate::pipe) queue_was_empty: bool,
    /// It is not over before a channel says so.
    pub(in crate::pipe) pending: bool,
    /// Somebody is going to ask how it ends.
    pub(in crate::pipe) watched: bool,
}

/// Sends a message from the send buffer, or leaves it to a later drive.
pub(in crate::pipe) fn dispatch(
    core: &Arc<Core>,
    shared: MutexGuard<'_, Shared>,
    mut io: MutexGuard<'_, Io>,
    pushed: Pushed,
    when: When,
) -> Submitted {
    let batched = match when {
        When::Now => false,
        When::Coalesce(under_way) => expects_batch(under_way, core.driver.last_batch()),
        When::NextDrive => true,
        When::NextDriveIfSyscall => core.driver.io_is_syscall(),
    };
    let left = |over, drive| Submitted {
        id: pushed.id,
        batched,
        over,
        drive,
    };
    if core.answers_more() && !pushed.watched {
        // The thread that calls the handler does a round after this.
        core.driver.kick_holding(&io);
        return left(false, false);
    }
    if shared.has_work() {
        // The driver does the lanes' work first: its results leave with the message.
        drop(shared);
        if pushed.queue_was_empty || pushed.watched || pushed.pending {
            io.push_mark(pushed.id);
            sent_in_part(core, &io, pushed);
        }
        return left(false, true);
    }
    // Channels may have said more than there was room for.
    let idle = shared.is_idle() && shared.state.is_next();
    drop(shared);
    if batched && !io.sends.is_due(core.driver.io_is_syscall()) {
        // If it is owed already, a task was told and nobody has sent since.
        let tell = io.sends.owe();
        core.driver.leaves_work(&io);
        drop(io);
        if tell {
            core.driver.wakers.wake_background();
        }
        return left(false, !idle);
    }
    let sent = io.send_gathered(core);
    let polls = core.driver.is_to_poll_for_peer();
    // A message behind others that nobody asks about counts as written, like bytes that a socket has taken.
    if !sent && (pushed.queue_was_empty || pushed.watched || pushed.pending) {
        io.push_mark(pushed.id);
        sent_in_part(core, &io, pushed);
    }
    drop(io);
    if polls {
        core.driver.wakers.wake_background();
    }
    left(sent && !pushed.pending, !sent || !idle)
}

/// Has a message of `bytes` in the protocol's queue leave with others. Returns `false` if so much waits that its writer has to drive.
pub(in crate::pipe) fn dispatch_queued(
    core: &Arc<Core>,
    mut io: MutexGuard<'_, Io>,
    bytes: u64,
) -> bool {
    if io.sends.is_worth_write(bytes) {
        return false;
    }
    let tell = io.sends.owe();
    core.driver.leaves_work(&io);
    drop(io);
    if tell {
        core.driver.wakers.wake_background();
    }
    true
}

/// Notes that only a part of a message has left. If it is `watched`, somebody is going to ask how it ends. The caller still has the
/// connection: once others can send the rest, nobody would hear that the message is over.
fn sent_in_part(core: &Core, _: &MutexGuard<'_, Io>, pushed: Pushed) {
    let mut shared = lock(&core.shared);
    let ended = shared.ended.clone();
    if ended.is_none() {
        shared.state.sent_in_part(pushed.id);
        core.mark_unwritten();
    }
    if pushed.watched && !pushed.pending {
        shared.writes.insert(pushed.id, ended.map(Err));
    }
}
