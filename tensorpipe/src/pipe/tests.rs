//! Tests that need the inside of a pipe: what a forked child drops while its parent keeps it, memory and credit that come back.

use std::pin::pin;
use std::task::{Context as TaskContext, Wake, Waker};
use std::time::{Duration, Instant};

use super::driver::tuning::{
    CREDIT_KEPT, RECEIVE_BUFFER, RECEIVE_BUFFER_IDLE, RECEIVE_BUFFER_KEPT,
};
use super::shared::Reading;
use super::*;
use crate::engine::{EnginePipe, Handler};
use crate::error::ResetCode;
use crate::sync::{AtomicUsize, Mutex, MutexGuard, Ordering};
use crate::sys::fork::tests::a_child_drops;
use crate::transports::{MemoryTransport, ShmTransport, TcpTransport, Transport};
use crate::{Allocation, Context, ContextBuilder, Device, DeviceKind, Limits, Place, Timeouts};

/// Both ends of a pipe within a context with these settings.
pub(super) async fn pair_of(context: ContextBuilder, url: &str) -> (Pipe, Pipe) {
    let context = context.build().unwrap();
    let listener = context.listen([url]).await.unwrap();
    let (client, server) = tokio::join!(context.connect(listener.url()), listener.accept());
    (client.unwrap(), server.unwrap())
}

async fn pair(transports: Vec<Arc<dyn Transport>>, url: &str) -> (Pipe, Pipe) {
    pair_of(Context::builder().transports(transports), url).await
}

/// A URL that no other test of any process has.
pub(super) fn unique(transport: &str) -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{transport}://test {number} of {}", std::process::id())
}

/// Over shared memory, where a write is no system call.
pub(super) async fn shm_pair() -> (Pipe, Pipe) {
    pair(vec![Arc::new(ShmTransport::new())], &unique("shm")).await
}

/// Within the process.
pub(super) async fn memory_pair() -> (Pipe, Pipe) {
    pair(vec![Arc::new(MemoryTransport::new())], &unique("memory")).await
}

const PORT: &str = "tcp://127.0.0.1:0";

/// Over loopback, where each read and write is a system call.
pub(super) async fn tcp_pair() -> (Pipe, Pipe) {
    pair(vec![Arc::new(TcpTransport::new())], PORT).await
}

pub(super) async fn soon<T>(what: impl Future<Output = T>) -> T {
    let bounded = tokio::time::timeout(Duration::from_secs(20), what);
    bounded.await.expect("it hangs")
}

async fn until(is_so: impl Fn() -> bool) {
    let reached = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    soon(reached).await;
}

async fn says_and_hears(client: &Pipe, server: &Pipe) {
    let both = async {
        client.write(Message::new("still here")).await.unwrap();
        server.read().await.unwrap();
    };
    soon(both).await;
}

/// Counts how often its waker is woken.
#[derive(Debug, Default)]
pub(super) struct Woken(AtomicUsize);

impl Woken {
    pub(super) fn new() -> (Arc<Self>, Waker) {
        let woken = Arc::new(Self::default());
        (woken.clone(), woken.into())
    }

    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn hold(core: &Core) -> MutexGuard<'_, Shared> {
    lock(&core.shared)
}

#[tokio::test]
async fn a_forked_child_lets_go_of_a_pipe_which_goes_on_at_its_parent() {
    let (tcp, shm): (Arc<dyn Transport>, Arc<dyn Transport>) =
        (Arc::new(TcpTransport::new()), Arc::new(ShmTransport::new()));
    for transports in [vec![tcp.clone()], vec![shm, tcp]] {
        let (client, server) = pair(transports, PORT).await;
        says_and_hears(&client, &server).await;
        let core = client.core().clone();
        let mut client = Some(client);
        // The thread that has the lock is not in the child.
        let held = lock(&core.shared);
        assert!(a_child_drops(&mut client));
        drop(held);
        assert!(a_child_drops(&mut client));
        says_and_hears(client.as_ref().unwrap(), &server).await;
    }
}

/// The child must not take the lock: a thread that does not exist there may hold it.
#[tokio::test]
async fn a_forked_child_lets_go_of_what_it_awaited() {
    let (client, server) = tcp_pair().await;
    let mut read = Some(Box::pin(server.read()));
    let waits = tokio::time::timeout(Duration::from_millis(20), read.as_mut().unwrap());
    waits.await.unwrap_err();
    let core = server.core().clone();
    let held = lock(&core.shared);
    assert!(a_child_drops(&mut read));
    drop(held);
    drop(read);
    client.send(of(10)).unwrap();
    let mut incoming = Some(server.read_descriptor().await.unwrap());
    let held = hold(&core);
    assert!(a_child_drops(&mut incoming));
    drop(held);
    drop(incoming);
    says_and_hears(&client, &server).await;
}

/// Its tasks go, and with them nothing of the pipes, whose sockets are the parent's, too.
#[test]
fn a_forked_child_drops_its_runtime_and_its_parents_pipes_go_on() {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    let (client, server) = runtime.block_on(async {
        let (client, server) = tcp_pair().await;
        says_and_hears(&client, &server).await;
        (client, server)
    });
    let mut runtime = Some(runtime);
    let held = hold(client.core());
    assert!(a_child_drops(&mut runtime));
    drop(held);
    assert!(a_child_drops(&mut runtime));
    let runtime = runtime.unwrap();
    runtime.block_on(says_and_hears(&client, &server));
    runtime.block_on(says_and_hears(&server, &client));
}

/// Whenever it is called, another thread brings one more message, up to [`MANY`].
struct Busy {
    calls: AtomicUsize,
    ask: std::sync::mpsc::Sender<()>,
    brought: Mutex<std::sync::mpsc::Receiver<()>>,
}

const MANY: usize = 1000;

impl Handler for Busy {
    fn incoming(&self, incoming: Incoming) {
        incoming.skip();
        if self.calls.fetch_add(1, Ordering::SeqCst) + 1 < MANY {
            self.ask.send(()).unwrap();
            lock(&self.brought).recv().unwrap();
        }
    }

    fn message(&self, _: u64, _: Result<Message, Error>, _: MessageStats, _: Held) {}

    fn closed(&self, _: &Error) {}
}

/// One that drives for its own operation has its time-out and its `select!` to see to.
#[tokio::test]
async fn no_thread_calls_the_handler_for_as_long_as_others_bring_messages() {
    let (client, server) = memory_pair().await;
    let (ask, asked) = std::sync::mpsc::channel();
    let (bring, brought) = std::sync::mpsc::channel();
    let busy = Arc::new(Busy {
        calls: AtomicUsize::new(0),
        ask,
        brought: Mutex::new(brought),
    });
    server.set_handler(busy.clone()).unwrap();
    let (from, to) = (client.clone(), server.clone());
    let other = std::thread::spawn(move || {
        for () in asked.into_iter().take(MANY - 1) {
            from.send(Message::new("one more")).unwrap();
            while to.core().deliveries.count() == 0 {
                from.core().drive();
                to.core().drive();
            }
            bring.send(()).unwrap();
        }
    });
    let called = || busy.calls.load(Ordering::SeqCst);
    client.send(Message::new("the first")).unwrap();
    server.core().drive();
    assert!((1..MANY / 2).contains(&called()), "{}", called());
    until(|| called() == MANY).await;
    other.join().unwrap();
}

/// As after a server that was dropped, or a close that nobody awaits any more.
#[tokio::test]
async fn of_several_bounds_on_closing_the_earliest_counts() {
    let linger = Duration::from_millis(300);
    let peer = streaming_context().build().unwrap();
    let listener = peer.listen([PORT]).await.unwrap();
    for (first, by_context) in [(60, true), (u64::MAX, true), (u64::MAX, false)] {
        let timeouts = Timeouts {
            linger,
            ..Timeouts::default()
        };
        let context = streaming_context().timeouts(timeouts).build().unwrap();
        let (client, server) = tokio::join!(context.connect(listener.url()), listener.accept());
        let (client, _server) = (client.unwrap(), server.unwrap());
        // Its reader never asks for it.
        client.send(of(8 * LARGE)).unwrap();
        let moment = Duration::from_millis(1);
        let first = client.close_within(Duration::from_secs(first));
        tokio::time::timeout(moment, first).await.unwrap_err();
        let until = || hold(client.core()).linger_until;
        let before = until();
        let waits = tokio::time::timeout(moment, client.close());
        waits.await.unwrap_err();
        assert_eq!(until(), before, "its own bound is none that was asked for");
        let (closed, bound) = match by_context {
            true => (soon(context.close()).await, linger),
            false => (
                soon(client.close_within(Duration::ZERO)).await,
                Duration::ZERO,
            ),
        };
        match closed.unwrap_err() {
            Error::Undelivered { linger, .. } => assert_eq!(linger, bound),
            other => panic!("{other}"),
        }
    }
}

#[tokio::test]
async fn whoever_reads_what_was_taken_back_hears_that_wherever_it_should_go() {
    let (client, server) = streaming().await;
    let id = client.send(of(8 * LARGE)).unwrap();
    let incoming = soon(server.read_descriptor()).await.unwrap();
    client.reset(id, ResetCode::Cancelled, "enough");
    says_and_hears(&client, &server).await;
    let elsewhere = Place::On(Device::new(DeviceKind::CUDA, 7));
    let allocation = Allocation {
        tensors: vec![elsewhere],
        ..Allocation::default()
    };
    let failed = soon(incoming.read_into(allocation)).await.unwrap_err();
    match failed.error {
        Error::Reset { code, reason } => {
            assert_eq!((code, &*reason), (ResetCode::Cancelled, "enough"));
        }
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn of_what_is_awaited_no_more_nothing_is_kept() {
    let (client, server) = streaming().await;
    let core = client.core();
    let write = client.write(of(9 << 20));
    assert_eq!(hold(core).writes.len(), 1);
    drop(write);
    assert!(hold(core).writes.is_empty());
    server.read().await.unwrap();
    let (nobody, waker) = Woken::new();
    let sleeps = async {
        let mut ended = pin!(client.ended());
        while hold(core).waiting.is_empty() {
            let polled = ended.as_mut().poll(&mut TaskContext::from_waker(&waker));
            assert!(polled.is_pending());
            tokio::task::yield_now().await;
        }
    };
    soon(sleeps).await;
    drop(waker);
    assert_eq!(Arc::strong_count(&nobody), 1);
}

#[tokio::test]
async fn of_a_message_that_came_ahead_and_was_taken_back_nothing_is_kept() {
    let (client, server) = streaming().await;
    let shared = || hold(server.core());
    let id = client.send(of(100 << 10)).unwrap();
    until(|| shared().reads.values().any(Reading::has_come)).await;
    client.reset(id, ResetCode::Cancelled, "enough");
    until(|| shared().arrived.is_empty()).await;
    assert!(shared().reads.is_empty());
}

/// The buffer grows with what comes, and gives its memory back when little has come for long.
#[tokio::test]
async fn the_receive_buffer_of_a_quiet_pipe_is_small() {
    let (client, server) = tcp_pair().await;
    // On a busy machine another thread may have the connection for a moment.
    let io = || loop {
        if let Some(io) = server.core().hold_io() {
            break io;
        }
        std::thread::yield_now();
    };
    let buffer = || io().buffer();
    // Mostly with messages that just fill a small buffer: a large one must not be made and dropped for each. The clock is read now and
    // then.
    for len in std::iter::repeat_n(4200, 60).chain([30_000]) {
        says_and_hears(&client, &server).await;
        assert_eq!(buffer(), RECEIVE_BUFFER_IDLE);
        for _ in 0..3 {
            let written = client.write(Message::new(vec![7; len]));
            let (written, message) = tokio::join!(written, server.read());
            written.unwrap();
            assert!(message.unwrap().metadata.iter().all(|byte| *byte == 7));
            assert_eq!(buffer(), RECEIVE_BUFFER);
        }
        says_and_hears(&client, &server).await;
        assert_eq!(buffer(), RECEIVE_BUFFER, "more may come soon");
        for _ in 0..20 {
            says_and_hears(&client, &server).await;
        }
        io().ages(RECEIVE_BUFFER_KEPT * 2);
        // The clock is read now and then, and the buffer is checked when something comes after that.
        for _ in 0..40 {
            says_and_hears(&client, &server).await;
        }
    }
}

/// Both ends of a pipe whose tensors go over its connection.
async fn streaming() -> (Pipe, Pipe) {
    pair_of(streaming_context(), PORT).await
}

fn streaming_context() -> ContextBuilder {
    use crate::channels::{BasicChannel, Channel};
    let channels: [Arc<dyn Channel>; 1] = [Arc::new(BasicChannel::new())];
    let context = Context::builder().transports([Arc::new(TcpTransport::new()) as _]);
    context.channels(channels)
}

/// Bytes of a tensor, which takes 256 bytes more of the credit ahead.
const LARGE: u64 = 1 << 20;

fn of(len: u64) -> Message {
    let tensor = crate::Tensor::from_vec(vec![7u8; len as usize], [len]);
    Message::new("a tensor").tensor(tensor.unwrap())
}

async fn moves(client: &Pipe, server: &Pipe, len: u64) {
    let (written, read) = tokio::join!(client.write(of(len)), server.read());
    written.unwrap();
    read.unwrap();
}

/// Sends until the pipe has earned credit for two large tensors.
async fn earns(client: &Pipe, server: &Pipe) {
    for _ in 0..3 {
        moves(client, server, LARGE).await;
    }
}

#[tokio::test]
async fn a_message_earns_credit_if_it_can_go_ahead_with_it() {
    let most = Limits::default().window_ahead;
    for (len, earns) in [(most - 256, true), (most - 255, false)] {
        let (client, server) = streaming().await;
        let window = || hold(server.core()).state.ahead().window;
        let start = window();
        moves(&client, &server, len).await;
        assert_eq!(window(), if earns { most } else { start });
    }
}

/// An idle pipe loses the credit that it has earned, and can earn it again.
#[tokio::test]
async fn credit_ahead_comes_back_from_an_idle_pipe() {
    let (client, server) = streaming().await;
    let ahead = || hold(server.core()).state.ahead();
    let start = ahead().window;
    let mut now = Instant::now();
    for _ in 0..2 {
        earns(&client, &server).await;
        // It is checked twice: in between nothing came.
        for _ in 0..2 {
            assert_eq!(ahead().window, 2 * (LARGE + 256));
            assert!(hold(server.core()).ahead.next_check().is_some());
            now = now.max(Instant::now()) + CREDIT_KEPT;
            hold(server.core()).tidy_ahead(now);
            server.core().drive();
        }
        says_and_hears(&client, &server).await;
        let came_back = async {
            while ahead().promised > start {
                says_and_hears(&client, &server).await;
            }
        };
        soon(came_back).await;
        assert_eq!(ahead().window, start);
        let mut shared = hold(server.core());
        assert_eq!(shared.ahead.credit().bytes(), start, "nor does the context");
        shared.tidy_ahead(now + CREDIT_KEPT);
        assert!(
            shared.ahead.next_check().is_none(),
            "nothing is left to check"
        );
    }
}

/// Credit of messages that came ahead is not given back before they are read: neither to the pipe nor to others of its context.
#[tokio::test]
async fn credit_ahead_that_is_in_use_comes_back_when_it_was_read() {
    let (client, server) = streaming().await;
    let ahead = || hold(server.core()).state.ahead();
    let start = ahead().window;
    earns(&client, &server).await;
    client.write(of(LARGE)).await.unwrap();
    let mut now = Instant::now();
    let taken_back = async {
        while ahead().unfinished < LARGE || ahead().window > start {
            now += CREDIT_KEPT;
            hold(server.core()).tidy_ahead(now);
            server.core().drive();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    soon(taken_back).await;
    // The peer has got RECALL, and has answered.
    until(|| ahead().promised <= LARGE + 256).await;
    let come_back = |now| {
        let mut shared = hold(server.core());
        shared.tidy_ahead(now);
        shared.ahead.credit().bytes()
    };
    assert_eq!(come_back(now + CREDIT_KEPT), LARGE + 256);
    server.read().await.unwrap();
    assert_eq!(
        come_back(now + 2 * CREDIT_KEPT + Duration::from_secs(30)),
        start
    );
    assert!(hold(server.core()).ahead.next_check().is_none());
}

/// The same for one that has finished, and sends nothing more ahead.
#[tokio::test]
async fn credit_ahead_of_a_peer_that_has_finished_comes_back_when_all_was_read() {
    let (client, server) = streaming().await;
    earns(&client, &server).await;
    client.write(of(LARGE)).await.unwrap();
    client.finish();
    until(|| hold(server.core()).state.is_fin_received()).await;
    let credit_after = |checks: u32| {
        let mut shared = hold(server.core());
        shared.tidy_ahead(Instant::now() + checks * CREDIT_KEPT);
        (shared.ahead.credit().bytes(), shared.ahead.next_check())
    };
    assert!(matches!(credit_after(2), (bytes, Some(_)) if bytes == LARGE + 256));
    server.read().await.unwrap();
    assert_eq!(credit_after(4), (0, None));
}
