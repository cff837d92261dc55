//! What a handler can know of its call: the time left, who calls and over what route, and whether the caller still waits.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;
use tensorpipe::ambient;
use tensorpipe::device::Allocators;
use tensorpipe::engine::{EnginePipe, Held, NoRoom};
use tensorpipe::{
    Device, Error, Identity, Misuse, Peer, Pipe, Pool, Route, Tensor,
    device::{DevicePool, MemoryKind},
};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::caught::{ignore_panic, wake};
use crate::engine::{CallStreams, Engine};
pub use crate::header::TraceContext;
use crate::lock::lock;
use crate::observe::HandlerTrace;
use crate::remote::{EncodedReferences, Id, encoding};
use crate::service::HandlerFuture;
use crate::timer::Sleep;

tokio::task_local! {
    /// The call whose handler runs. Calls that the handler makes inherit its deadline and trace.
    static CURRENT: CallContext;
}

/// A call being handled. Cheap to clone.
///
/// A method gets it by naming a parameter `&CallContext` or `CallContext`. It is not an argument for the client.
#[derive(Clone)]
pub struct CallContext {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    /// The caller's number for it; a batch has none.
    call: Option<u64>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) trace: TraceContext,
    pub(crate) caller: Arc<Caller>,
    pub(crate) cancel: CancelState,
    /// The call's parts of the receive budget.
    pub(crate) held: HeldSlot,
    /// Its streams, if its method has some.
    pub(crate) streams: Option<Arc<CallStreams>>,
    /// Set if somebody wants to know what becomes of the call.
    pub(crate) handler_trace: Option<Box<HandlerTrace>>,
}

/// What all calls of a connection share. It does not keep the pipe open.
pub(crate) struct Caller {
    /// Set at the peer's first call: the pipe's route may be decided only shortly before.
    known: OnceLock<Known>,
    memory: Allocators,
    pub(crate) runtime: Handle,
    engine: OnceLock<Weak<Engine>>,
}

struct Known {
    peer: Peer,
    /// The peer's proven identity, as text for spans.
    identity: Option<String>,
    route: Arc<Route>,
}

impl Caller {
    pub(crate) fn new(pipe: &Pipe) -> Self {
        Self {
            known: OnceLock::new(),
            memory: pipe.allocators().clone(),
            runtime: pipe.runtime().clone(),
            engine: OnceLock::new(),
        }
    }

    /// Records the peer and the route at its first call over this pipe.
    pub(crate) fn record_peer(&self, pipe: &Pipe) {
        self.known.get_or_init(|| {
            let peer = pipe.peer();
            Known {
                identity: peer.identity.as_ref().map(Identity::to_string),
                peer,
                route: pipe.shared_route(),
            }
        });
    }

    fn known(&self) -> &Known {
        // A call's context exists only once there is a call.
        let Some(known) = self.known.get() else {
            unreachable!("nobody has called");
        };
        known
    }

    pub(crate) fn peer(&self) -> &Peer {
        &self.known().peer
    }

    /// The peer's proven identity, as text.
    pub(crate) fn identity(&self) -> Option<&str> {
        self.known().identity.as_deref()
    }

    /// Sets, once, the engine that handles the calls.
    pub(crate) fn set_engine(&self, engine: &Arc<Engine>) {
        let _ = self.engine.set(Arc::downgrade(engine));
    }

    /// The engine that handles the calls, unless the connection is gone.
    pub(crate) fn engine(&self) -> Option<Arc<Engine>> {
        self.weak_engine()?.upgrade()
    }

    pub(crate) fn weak_engine(&self) -> Option<&Weak<Engine>> {
        self.engine.get()
    }
}

/// Set once, when the caller no longer waits for the call.
#[derive(Default)]
pub(crate) struct CancelState {
    cancelled: AtomicBool,
    /// The handler's task.
    task: AtomicWaker,
    /// Wakes work of the handler on other tasks.
    notify: Notify,
}

/// See [`Inner::held`].
#[derive(Default)]
pub(crate) struct HeldSlot {
    parts: Mutex<HeldParts>,
    /// There are parts of its arguments.
    has_arguments: AtomicBool,
}

#[derive(Default)]
struct HeldParts {
    /// That of its message, while its handler is being made.
    message: Option<Held>,
    /// Those of its arguments, until it has ended.
    arguments: Vec<Held>,
}

impl HeldSlot {
    /// Replaces the message's part. The old one is dropped outside the lock.
    pub(crate) fn keep(&self, held: Option<Held>) {
        let before = std::mem::replace(&mut lock(&self.parts).message, held);
        drop(before);
    }

    fn take(&self) -> Option<Held> {
        lock(&self.parts).message.take()
    }

    /// The call has ended; its context may live on.
    pub(crate) fn end(&self) {
        if self.has_arguments.load(Ordering::Acquire) {
            drop(std::mem::take(&mut lock(&self.parts).arguments));
        }
    }
}

/// Counts memory that arguments of the call that is being made are about to take, in the receive budget and until the call has ended.
/// Where there is no room for `most`, `least` will do. Returns how many bytes it has counted.
pub(crate) fn count_decoded(most: u64, least: u64) -> Result<u64, NoRoom> {
    let Some(context) = CallContext::current() else {
        return Ok(most);
    };
    // Without an engine the connection has ended, and with it the call.
    let Some(engine) = context.inner.caller.engine() else {
        return Ok(most);
    };
    let slot = &context.inner.held;
    let mut parts = lock(&slot.parts);
    let own = parts.arguments.iter().map(Held::bytes).sum();
    let held = engine.pipe.hold_derived(most, least, own)?;
    let bytes = held.bytes();
    parts.arguments.push(held);
    slot.has_arguments.store(true, Ordering::Release);
    Ok(bytes)
}

impl CallContext {
    pub(crate) fn new(
        call: impl Into<Option<u64>>,
        deadline: Option<Instant>,
        trace: TraceContext,
        caller: Arc<Caller>,
        streams: Option<Arc<CallStreams>>,
        handler_trace: Option<Box<HandlerTrace>>,
    ) -> Self {
        let inner = Inner {
            call: call.into(),
            deadline,
            trace,
            caller,
            cancel: CancelState::default(),
            held: HeldSlot::default(),
            streams,
            handler_trace,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// The call whose handler runs on this task, if one does.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Self::clone).ok()
    }

    /// When the caller stops waiting.
    pub fn deadline(&self) -> Option<Instant> {
        self.inner.deadline
    }

    /// Time left, zero when it is up; `None` without a deadline.
    pub fn time_left(&self) -> Option<Duration> {
        self.inner
            .deadline
            .map(|deadline| deadline.saturating_duration_since(ambient::now()))
    }

    /// The caller: its proven identity, and its address as the system sees it.
    ///
    /// ```
    /// # use tensorpipe_rpc::CallContext;
    /// fn is_trainer(cx: &CallContext) -> bool {
    ///     let identity = cx.caller().identity.as_ref();
    ///     identity.and_then(|identity| identity.token()) == Some("trainers-2026")
    /// }
    /// ```
    pub fn caller(&self) -> &Peer {
        self.inner.caller.peer()
    }

    /// The name that the caller's context gave itself, which nothing proves: see [`CallContext::caller`].
    pub fn peer(&self) -> &str {
        &self.inner.caller.peer().name
    }

    /// Which transport and channels carry the call, and why the others do not. So a handler can tell a caller in its own process
    /// from a remote one.
    pub fn route(&self) -> &Route {
        &self.inner.caller.known().route
    }

    /// The trace that the call belongs to, as its caller gave it.
    pub fn trace(&self) -> TraceContext {
        self.inner.trace
    }

    /// The trace context of calls that the handler makes.
    pub(crate) fn outgoing_trace(&self) -> TraceContext {
        let handler_trace = self.inner.handler_trace.as_ref();
        handler_trace.map_or(self.inner.trace, |handler_trace| {
            handler_trace.outgoing_trace
        })
    }

    /// Warm memory for results. A caller on this machine reads a tensor from it ([`Pool::tensor`]) in place, without a copy.
    pub fn pool(&self) -> &Pool {
        self.inner.caller.memory.main()
    }

    /// Memory for results on a device of this server's.
    ///
    /// # Errors
    /// [`Misuse::NoAllocator`] where the server's context has none of this device.
    pub fn allocator(&self, device: Device) -> Result<DevicePool, Misuse> {
        self.inner.caller.memory.on(device)
    }

    /// Whether the caller no longer waits: it dropped the call or is gone, or time is up. Blocking work should check this now and
    /// then. An async handler is dropped at its next await anyway.
    pub fn is_cancelled(&self) -> bool {
        self.inner.cancel.is_set()
            || self
                .inner
                .deadline
                .is_some_and(|deadline| ambient::now() >= deadline)
    }

    /// Completes when the call is cancelled, and at the deadline at the latest, even if the call was answered. For work that runs
    /// on tasks of its own. Cancel safe.
    pub async fn cancelled(&self) {
        let Inner {
            cancel, deadline, ..
        } = &*self.inner;
        let notified = cancel.notify.notified();
        // Checked after `notified`: a cancel before that does not wake it.
        if cancel.is_set() {
            return;
        }
        let up = Sleep::new(&self.inner.caller.runtime, *deadline);
        up.or(notified).await;
    }

    /// Runs `work`, which may be spawned on a task of its own, as part of this call: calls that it makes inherit deadline
    /// and trace.
    pub fn scope<F: Future>(self, work: F) -> impl Future<Output = F::Output> {
        CURRENT.scope(self, work)
    }
}

/// How much of this process's memory the tensors take. Tensors that another process has lent do not count.
pub(crate) fn own_bytes<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> u64 {
    let is_own = |tensor: &&Tensor| tensor.buffer().memory().kind() == MemoryKind::Heap;
    let own = tensors.into_iter().filter(is_own);
    own.map(|tensor| tensor.byte_len() as u64).sum()
}

/// For calls that do not run as one plain handler: batches and waiting calls.
impl CallContext {
    /// The context of a batch that begins with this call. Some caller of the batch waits until `deadline`.
    pub(crate) fn of_batch(&self, deadline: Option<Instant>) -> Self {
        let caller = self.inner.caller.clone();
        Self::new(None, deadline, self.outgoing_trace(), caller, None, None)
    }

    /// Counts a waiting call in the receive budget. A call whose parts came later is counted already; for one that came whole,
    /// `bytes` are added.
    pub(crate) fn hold(&self, bytes: u64) -> Result<Option<Held>, Error> {
        let mut held = match (self.inner.held.take(), self.inner.caller.engine()) {
            (Some(held), _) => held,
            (None, Some(engine)) => engine.pipe.hold(bytes)?,
            // The connection has ended, and with it the call.
            (None, None) => return Ok(None),
        };
        held.wait()?;
        Ok(Some(held))
    }

    /// Whether the server takes no further calls.
    pub(crate) fn server_stops(&self) -> bool {
        let engine = self.inner.caller.engine();
        engine.is_some_and(|engine| engine.stops_serving())
    }

    /// Runs `work` as part of this call.
    pub(crate) fn within<R>(self, work: impl FnOnce() -> R) -> R {
        CURRENT.sync_scope(self, work)
    }
}

impl fmt::Debug for CallContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallContext")
            .field("peer", &self.inner.caller.peer().name)
            .field("deadline", &self.inner.deadline)
            .finish_non_exhaustive()
    }
}

impl CancelState {
    pub(crate) fn is_set(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    pub(crate) fn set(&self) {
        self.cancelled.store(true, Ordering::Release);
        self.wake();
        ignore_panic(|| self.notify.notify_waiters());
    }

    /// Wakes the handler's task, so that it checks for changes that no waker reports, such as [`CallContext::server_stops`].
    pub(crate) fn wake(&self) {
        if let Some(waker) = self.task.take() {
            wake(waker);
        }
    }

    /// Polled by the handler's task alone.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        if self.is_set() {
            return Poll::Ready(());
        }
        self.task.register(cx.waker());
        // Checked again: it may have been set between the first check and the registration.
        match self.is_set() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

/// Encodes a result of the handler that runs on this task. Its references are numbered from `index` on.
pub(crate) fn within_call<R>(
    index: u32,
    encode: impl FnOnce() -> R,
) -> (R, Option<Box<EncodedReferences>>) {
    let call = CURRENT.try_with(|context| {
        let engine = context.inner.caller.engine.get()?;
        Some((engine.as_ptr().addr(), context.inner.call?))
    });
    match call {
        Ok(Some((engine, call))) => encoding(engine, Some(Id { call, index }), encode),
        _ => (encode(), None),
    }
}

/// Runs each poll of the handler as part of its call.
pub(crate) fn scoped(context: CallContext, handler: HandlerFuture) -> HandlerFuture {
    Box::pin(CURRENT.scope(context, handler))
}
