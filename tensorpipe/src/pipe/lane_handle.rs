//! A lane's access to its pipe from other threads and tasks.

use std::task::Waker;

use tokio::runtime::Handle;

use super::core::Core;
use super::driver::tuning::COPIED_ON_THE_SPOT;
use super::lane::{LaneIo, LaneResult, Outcome, is_called};
use super::shared::Shared;
use crate::channels::ChannelFault;
use crate::device::{Buffer, BufferMut, Fence};
use crate::error::{Error, PeerFault};
use crate::proto::OpId;
use crate::sync::{Arc, Weak, lock};
use crate::sys::{copy, workers};

/// A lane's access to its pipe from other threads and tasks. Does nothing once the pipe has ended.
///
/// Two places must not call it, except for `clone` and [`LaneHandle::resume_at`]:
///
/// - A lane's own methods, which have [`LaneIo`]. The pipe holds a lock while it calls them: the call would wait for that lock for
///   ever, and panics instead. A callback of [`Fence::when_reached`] runs within the method, too, if the fence is reached already.
/// - A device's thread. The call may drive the pipe and run its [`Handler`](crate::engine::Handler), which may wait for that device.
#[derive(Clone, Debug)]
pub struct LaneHandle {
    core: Weak<Core>,
}

impl LaneHandle {
    pub(crate) fn new(core: &Arc<Core>) -> Self {
        Self {
            core: Arc::downgrade(core),
        }
    }

    /// As [`LaneIo::control`](LaneIo::control).
    pub fn control(&self, op: OpId, body: Vec<u8>) {
        self.with(|core| lock(&core.shared).state.channel(op, &body));
    }

    /// As [`LaneIo::sent`](LaneIo::sent).
    pub fn sent(&self, op: OpId) {
        self.report(op, Outcome::Sent, None);
    }

    /// As [`LaneIo::received`](LaneIo::received).
    pub fn received(&self, op: OpId, memory: Buffer) {
        self.report(op, Outcome::Received(memory), None);
    }

    /// As [`LaneHandle::control`] and [`LaneHandle::received`] in one step: a peer that hears that all is well may close at
    /// once, and must not end a read whose memory is complete.
    pub fn received_and_tell(&self, op: OpId, memory: Buffer, body: Vec<u8>) {
        self.report(op, Outcome::Received(memory), Some(body));
    }

    /// Counts bytes of an incoming `op` that came over a connection of the channel's own
    /// ([`MessageStats::streamed`](crate::MessageStats::streamed)). Before it is received.
    pub fn streamed(&self, op: OpId, bytes: u64) {
        if let Some(core) = self.core() {
            lock(&core.shared).streamed(op, bytes);
        }
    }

    /// Counts `bytes` of memory that an incoming `op` is about to fill. Where there is no room for them its message is given
    /// up, and the lane hears of that by [`Lane::cancel`](crate::channels::Lane::cancel).
    pub(crate) fn count(&self, op: OpId, bytes: u64) {
        let Some(core) = self.core() else {
            return;
        };
        // Only a message that is given up has something to say: the caller goes on at once.
        if !core.update(|shared, wakes| shared.count(op, bytes, wakes)) {
            core.drive();
        }
    }

    /// Takes back what [`count`](Self::count) has counted: the memory is free again, and the operation goes on without it.
    pub(crate) fn uncount(&self, op: OpId, bytes: u64) {
        if let Some(core) = self.core() {
            lock(&core.shared).uncount(op, bytes);
        }
    }

    /// From inside one of the lane's methods: copies main memory of the peer's into the application's, of the same length. A large copy
    /// runs on a thread for blocking work. Then `op` is received, the source dropped, and the peer's lane told so.
    pub(crate) fn copy(
        &self,
        op: OpId,
        source: Buffer,
        dest: BufferMut,
        tell: &'static [u8],
        io: &mut LaneIo<'_>,
    ) {
        io.copied(source.len() as u64);
        let mut copy = Copy::new(op, source, dest);
        if copy.takes_a_while() {
            copy.answer = Some(tell);
            copy.make_on_thread(self.clone(), io.runtime());
        } else {
            let dest = copy.make();
            io.control(op, tell);
            io.received(op, dest);
        }
    }

    /// As [`LaneIo::failed`](LaneIo::failed).
    pub fn failed(&self, op: OpId, error: Error) {
        self.report(op, Outcome::Failed(error), None);
    }

    /// Has [`Lane::resume`](crate::channels::Lane::resume) called for `op` ([`Lane::inner`](crate::channels::Lane::inner) for a piece), if it is still under way: for a lane that waited
    /// for something and keeps the operation itself.
    pub fn resume(&self, op: OpId) {
        self.update(|shared, wakes| shared.resume(op, wakes));
    }

    /// As [`LaneHandle::resume`], when `fence` is reached, from a task of the pipe's runtime: a device's thread must not run the
    /// pipe's handler, which may wait for that device. So a lane may call it from inside its methods, too. `resume` is called
    /// where the fence failed as well: ask it how it was [reached](Fence::reached).
    pub fn resume_at(&self, op: OpId, fence: &Arc<dyn Fence>) {
        let Some(core) = self.core.upgrade() else {
            return;
        };
        let (handle, runtime) = (self.clone(), core.runtime.clone());
        fence.when_reached(Box::new(move || {
            runtime.spawn(async move { handle.resume(op) });
        }));
    }

    /// Runs what takes long on a thread for blocking work, and then [resumes](Self::resume) `op`.
    pub(crate) fn resume_after(&self, op: OpId, work: impl FnOnce() + Send + 'static) {
        if let Some(core) = self.core.upgrade() {
            let handle = self.clone();
            workers::run(&core.runtime, move || {
                work();
                handle.resume(op);
            });
        }
    }

    /// Ends the pipe: a connection of the channel's own is lost, or its peer sends nonsense on it.
    pub fn broken(&self, error: Error) {
        self.with(|core| core.fail(error));
    }

    /// Ends the pipe: what was on a connection of the channel's own is lost, for this reason.
    pub fn lost(&self, reason: &str) {
        self.with(|core| core.fail(core.lost(reason)));
    }

    /// Ends the pipe: on a connection of its own the peer's lane of `channel` has sent nonsense.
    pub fn fault(&self, channel: &'static str, ChannelFault(what): ChannelFault) {
        self.with(|core| {
            core.fail(Error::Peer {
                pipe: core.name.clone(),
                fault: PeerFault::Channel { channel, what },
            });
        });
    }

    fn report(&self, op: OpId, outcome: Outcome, tell: Option<Vec<u8>>) {
        self.update(|shared, _| {
            if let Some(body) = tell {
                shared.state.channel(op, &body);
            }
            shared.lane_results.push(LaneResult::Ended(op, outcome));
        });
    }

    /// Changes the shared state, and handles the events that follow.
    fn update(&self, change: impl FnOnce(&mut Shared, &mut Vec<Waker>)) {
        self.with(|core| {
            core.update(|shared, wakes| {
                change(shared, wakes);
                shared.process(wakes);
            });
        });
    }

    fn with(&self, act: impl FnOnce(&Arc<Core>)) {
        if let Some(core) = self.core() {
            act(&core);
            core.drive();
        }
    }

    /// Its pipe, to be locked.
    fn core(&self) -> Option<Arc<Core>> {
        let core = self.core.upgrade()?;
        assert!(
            !is_called(&core.driver.wakers),
            "a method of a lane has called its `LaneHandle`, which would wait for that method for ever: use `LaneIo` there, or `LaneHandle::resume_at`"
        );
        Some(core)
    }
}

/// A copy of main memory that belongs to somebody else, in this process or another, into memory of the application's.
pub(super) struct Copy {
    pub(super) op: OpId,
    source: Buffer,
    dest: BufferMut,
    /// What the peer's lane is sent once the copy is made.
    pub(super) answer: Option<&'static [u8]>,
}

impl Copy {
    pub(super) fn new(op: OpId, source: Buffer, dest: BufferMut) -> Self {
        let answer = None;
        Self {
            op,
            source,
            dest,
            answer,
        }
    }

    /// Whether it is made on a thread for blocking work.
    pub(super) fn takes_a_while(&self) -> bool {
        self.source.len() > COPIED_ON_THE_SPOT
    }

    /// Makes it now, and lets go of the source.
    pub(super) fn make(mut self) -> Buffer {
        // Both are main memory of the same length: the plan, or the channel, has checked it.
        if let (Some(source), Some(dest)) = (self.source.as_bytes(), self.dest.as_bytes_mut()) {
            copy::copy(source, dest);
        }
        self.dest.freeze()
    }

    /// Makes it on a thread for blocking work, which tells the pipe, and its peer. The thread owns both memories until then, whatever
    /// becomes of the pipe, its runtime and the read.
    pub(super) fn make_on_thread(self, pipe: LaneHandle, runtime: &Handle) {
        let (op, answer) = (self.op, self.answer);
        workers::run(runtime, move || match answer {
            Some(answer) => pipe.received_and_tell(op, self.make(), answer.to_vec()),
            None => pipe.received(op, self.make()),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::any::Any;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::device::{Device, Memory, MemoryKind};
    use crate::sync::Mutex;

    const LEN: usize = COPIED_ON_THE_SPOT + 1;

    /// Memory whose copy begins by saying so, and waits for a word. It tells when it is freed.
    struct Slow {
        bytes: Vec<u8>,
        begins: Sender<&'static str>,
        goes_on: Mutex<Receiver<()>>,
    }

    impl Memory for Slow {
        fn device(&self) -> Device {
            Device::CPU
        }
        fn kind(&self) -> MemoryKind {
            MemoryKind::Borrowed
        }
        fn len(&self) -> usize {
            self.bytes.len()
        }
        fn as_bytes(&self) -> Option<&[u8]> {
            self.begins.send("read").unwrap();
            lock(&self.goes_on).recv().unwrap();
            Some(&self.bytes)
        }
        fn as_any(&self) -> &dyn Any {
            self
        }
        fn as_any_mut(&mut self) -> &mut dyn Any {
            self
        }
    }

    impl Drop for Slow {
        fn drop(&mut self) {
            self.begins.send("freed").unwrap();
        }
    }

    /// A runtime that goes does not wait for copies, and they do not need it.
    #[test]
    fn a_copy_owns_its_memory_until_it_is_made() {
        let (begins, events) = channel();
        let (go_on, goes_on) = channel();
        let source = Buffer::new(Arc::new(Slow {
            bytes: vec![7; LEN],
            begins,
            goes_on: Mutex::new(goes_on),
        }));
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let copy = Copy::new(OpId::incoming(0, 0), source, BufferMut::zeroed(LEN));
        let pipe = LaneHandle { core: Weak::new() };
        copy.make_on_thread(pipe, runtime.handle());
        assert_eq!(events.recv().unwrap(), "read");
        drop(runtime);
        assert!(events.try_recv().is_err(), "it is freed while it is read");
        go_on.send(()).unwrap();
        assert_eq!(events.recv().unwrap(), "freed");
    }
}
