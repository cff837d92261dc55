//! Races between threads, replayed one step after another in each order. References in a reply that nobody takes are released, an
//! ended call leaves nothing behind, and a caller with its answer may make the next call.

use std::collections::HashSet;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tensorpipe::engine::{Awaiting, Handler};
use tensorpipe::{
    Context, DType, Device, Error, Limits, Message, MessageStats, Pipe, ResetCode, Tensor,
};

use super::streams::{CallStreams, Tally};
use super::table::Reading;
use super::{CallSlot, Engine, Outcome, Received, Receiver, Request};
use crate::codec::{Encoded, Reply};
use crate::header::{FailureCode, Header, Kind, REFERENCES, StreamDirection};
use crate::limits::ServerLimits;
use crate::lock::lock;
use crate::placement::CallPlacement;
use crate::remote::FETCH;
use crate::schema::{Method, Places, Streams};
use crate::server::{Server, ServerShared};

/// An engine that has sent a request, and the other end of its pipe.
struct Asked {
    engine: Arc<Engine>,
    slot: Arc<CallSlot>,
    peer: Pipe,
}

/// The number of the peer's first message.
const REPLY: u64 = 0;

/// The number of a message of items.
const ITEM: u64 = 1;

pub(super) const HOUR: Duration = Duration::from_secs(3600);

/// A method whose result is a stream of items.
static ITEMS: Method = Method {
    service: "Store",
    name: "items",
    id: 0,
    signature: "fn items(&self) -> impl Stream<Item = Tensor>",
    idempotent: true,
    promises: false,
    streams: Streams {
        argument: false,
        reply: true,
    },
    places: Places::NOWHERE,
    structure: |_| {},
};

/// Both ends of a pipe.
pub(super) async fn pair() -> (Pipe, Pipe) {
    pair_of(&Context::new()).await
}

async fn pair_of(context: &Context) -> (Pipe, Pipe) {
    let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let url = listener.url().to_string();
    let (near, far) = tokio::join!(context.connect(url), listener.accept());
    (near.unwrap(), far.unwrap())
}

/// A call that has an hour.
pub(super) fn request(engine: &Engine, method: &'static Method) -> Request {
    let id = engine.calls.next_id();
    let metadata = Header::plain(Kind::Claim, id).to_vec();
    Request {
        id,
        method,
        header_len: metadata.len(),
        encoded: Encoded {
            metadata,
            ..Encoded::default()
        },
        deadline: Some((Instant::now() + HOUR, HOUR)),
        references: None,
        trace: None,
        places: None,
        required: None,
    }
}

impl Asked {
    async fn new() -> Self {
        Self::of(&FETCH, None).await
    }

    /// A call whose result is a stream. One of its items is on its way, and its outcome, with references, waits for it.
    async fn streaming() -> Self {
        let asked = Self::of(&ITEMS, None).await;
        asked.announces_an_item();
        asked.ends(Kind::ServiceError, REFERENCES, None);
        assert!(!asked.slot.outcome.is_done(), "it waits for the item");
        asked
    }

    fn announces_an_item(&self) {
        let size = Tally { items: 1, bytes: 9 };
        let inbox = self.streams().inbox.as_ref().unwrap();
        assert!(inbox.announced(ITEM, size, true).is_some());
    }

    fn streams(&self) -> &Arc<CallStreams> {
        self.slot.streams.as_ref().unwrap()
    }

    /// The item is complete, or fails with `error`.
    fn has_item(&self, error: Option<Error>) {
        let header = self.header(Kind::Items(StreamDirection::Reply, 1), 0);
        let message = error.map_or_else(|| Ok(Message::new(header.to_vec())), Err);
        let (engine, streams) = (&self.engine, self.streams());
        engine.items_complete(streams, ITEM, header, message, MessageStats::default());
    }

    /// The call's deadline passes.
    fn is_late(&self) {
        self.engine.fail_due(Instant::now() + 2 * HOUR);
    }

    async fn of(method: &'static Method, places: Option<Arc<CallPlacement>>) -> Self {
        let (near, peer) = pair().await;
        let engine = Engine::start(near, None).unwrap();
        let slot = engine.call(Request {
            places,
            ..request(&engine, method)
        });
        let asked = soon(peer.read()).await.unwrap();
        assert_eq!(Header::decode(&asked.metadata).unwrap().call, slot.id);
        Self { engine, slot, peer }
    }

    fn header(&self, kind: Kind, flags: u8) -> Header {
        let mut header = Header::plain(kind, self.slot.id);
        header.flags |= flags;
        Header::decode(&header.to_vec()).unwrap()
    }

    /// A reply is complete, or fails with `error`.
    fn ends(&self, kind: Kind, flags: u8, error: Option<Error>) {
        let header = self.header(kind, flags);
        let message = error.map_or_else(|| Ok(Message::new(header.to_vec())), Err);
        let (engine, slot) = (&self.engine, &self.slot);
        engine.reply_complete(REPLY, &header, slot, message, MessageStats::default());
    }

    /// All of a reply with references is here.
    fn is_answered(&self) {
        self.ends(Kind::Value, REFERENCES, None);
    }

    /// The header of a reply is here, and its tensors are on their way.
    fn is_being_answered(&self, flags: u8) {
        assert!(self.slot.try_set_reply(REPLY));
        let reading = Reading::Reply(self.slot.clone());
        let header = self.header(Kind::Value, flags);
        let mut table = self.engine.calls.table();
        table.reading.insert(REPLY, (header, reading));
    }

    fn is_reading(&self) -> bool {
        self.engine.calls.is_reading(REPLY)
    }

    /// The call's future is dropped.
    fn is_dropped(&self) {
        self.engine.cancel(&self.slot);
    }

    /// The header of what the peer reads next, and the body.
    async fn said(&self) -> (Header, Vec<u8>) {
        let said = soon(self.peer.read()).await.unwrap();
        let header = Header::decode(&said.metadata).unwrap();
        (header, said.metadata[header.body_at..].to_vec())
    }

    /// The peer reads a release of all references that it gave away.
    async fn gives_back(&self) {
        let (header, body) = self.said().await;
        assert_eq!((header.kind, header.call), (Kind::Release, self.slot.id));
        assert_eq!(body, released(self.slot.id, u32::MAX));
        assert_eq!(self.engine.calls.under_way(), 0);
    }
}

/// How a release travels.
fn released(call: u64, index: u32) -> Vec<u8> {
    [&call.to_le_bytes()[..], &index.to_le_bytes()].concat()
}

fn gone() -> Option<Error> {
    Some(Error::Reset {
        code: ResetCode::Failed,
        reason: "gone".into(),
    })
}

async fn soon<T>(work: impl Future<Output = T>) -> T {
    let bounded = tokio::time::timeout(Duration::from_secs(20), work).await;
    bounded.expect("within 20 s")
}

#[tokio::test]
async fn a_reply_whose_call_is_given_up_while_it_comes_is_given_back() {
    let asked = Asked::new().await;
    // The task that drives the pipe has found the call; then another thread drops it.
    asked.engine.cancel(&asked.slot);
    asked.is_answered();
    asked.gives_back().await;
}

#[tokio::test]
async fn a_reply_that_nobody_has_looked_at_is_given_back() {
    let asked = Asked::new().await;
    asked.is_answered();
    asked.engine.cancel(&asked.slot);
    asked.gives_back().await;
}

#[tokio::test]
async fn the_second_reply_of_a_call_is_given_back_and_the_first_is_there() {
    let asked = Asked::new().await;
    asked.is_answered();
    asked.is_answered();
    asked.gives_back().await;
    let first = asked.slot.outcome.poll(None).unwrap();
    assert!(first.has_references());
}

#[tokio::test]
async fn a_reply_that_is_given_up_while_its_tensors_come_is_given_back() {
    let asked = Asked::new().await;
    asked.is_being_answered(REFERENCES);
    asked.is_dropped();
    assert!(!asked.is_reading());
    asked.gives_back().await;
}

#[tokio::test]
async fn a_reply_with_references_that_does_not_come_whole_is_an_error() {
    let asked = Asked::new().await;
    asked.ends(Kind::Value, REFERENCES, gone());
    asked.gives_back().await;
    let outcome = asked.slot.outcome.poll(None);
    assert!(matches!(outcome, Some(Outcome::Failed(_))));
}

#[tokio::test]
async fn the_outcome_of_a_stream_that_is_given_up_before_its_items_are_here_is_given_back() {
    let ends: [fn(&Asked); 3] = [Asked::is_dropped, Asked::is_late, |asked| {
        asked.has_item(gone())
    }];
    for end in ends {
        let asked = Asked::streaming().await;
        end(&asked);
        asked.gives_back().await;
    }
}

#[tokio::test]
async fn the_outcome_of_a_stream_that_is_late_is_given_back_with_its_last_item() {
    let ends: [fn(&Asked); 2] = [|asked| asked.has_item(None), Asked::is_dropped];
    for end in ends {
        let asked = Asked::of(&ITEMS, None).await;
        asked.announces_an_item();
        // The thread that has found the call for its reply goes on after the deadline has passed.
        asked.is_late();
        asked.ends(Kind::ServiceError, REFERENCES, None);
        end(&asked);
        asked.gives_back().await;
    }
}

#[tokio::test]
async fn nothing_is_given_back_of_a_reply_without_references() {
    for is_whole in [true, false] {
        let asked = Asked::new().await;
        match is_whole {
            true => asked.ends(Kind::Value, 0, None),
            false => asked.is_being_answered(0),
        }
        asked.is_dropped();
        // The next message that the peer reads is not a release.
        asked.engine.send_control(Kind::Draining, 0, &[]);
        assert_eq!(asked.said().await.0.kind, Kind::Draining);
    }
}

/// A message that is here whole may have to move to another device. It is then read like one that is not whole.
#[tokio::test]
async fn what_has_come_where_it_was_to_land_is_read_no_more() {
    for (method, kind) in [
        (&FETCH, Kind::Value),
        (&ITEMS, Kind::Items(StreamDirection::Reply, 1)),
    ] {
        let asked = Asked::of(method, Some(CallPlacement::of_fetched(Device::CPU))).await;
        let tensor = Tensor::zeros(DType::U8, [9]).unwrap();
        let reply = Message::new(Header::plain(kind, asked.slot.id).to_vec());
        asked.peer.send(reply.tensor(tensor)).unwrap();
        let mut awaiting = Awaiting::new(asked.engine.clone());
        let comes = poll_fn(|cx| {
            awaiting.drive(cx.waker());
            let has_come = match &asked.slot.streams {
                Some(streams) => {
                    let items = asked.engine.take_items(streams, Some(cx.waker()));
                    matches!(items, Received::Items(_))
                }
                None => asked.slot.outcome.poll(Some(cx.waker())).is_some(),
            };
            if has_come {
                return Poll::Ready(());
            }
            awaiting.poll_again(cx.waker());
            Poll::Pending
        });
        soon(comes).await;
        assert!(!asked.is_reading(), "{kind:?}");
    }
}

#[tokio::test]
async fn an_answer_in_time_ends_a_row_of_calls_that_had_none() {
    let asked = Asked::new().await;
    let late = |kind, error| {
        asked.ends(kind, 0, error);
        asked.engine.calls.missed_in_a_row()
    };
    asked.engine.calls.missed_deadline(&asked.slot);
    // The server noticed the missed deadline before this end did.
    assert_eq!(late(Kind::Failure(FailureCode::Deadline), None), 2);
    // Nobody knows whether this call would have been in time.
    assert_eq!(late(Kind::Value, gone()), 2);
    assert_eq!(late(Kind::Value, None), 0);
}

#[tokio::test]
async fn a_refusal_because_time_is_up_counts_as_no_answer_in_time() {
    let asked = Asked::new().await;
    let message = asked.slot.message().unwrap();
    let calls = &asked.engine.calls;
    calls.refused(message, ResetCode::Deadline, "its deadline passed");
    assert_eq!(calls.missed_in_a_row(), 1);
}

/// An overloaded server refuses them one by one.
#[tokio::test]
async fn many_refused_calls_are_found_without_a_search_for_each() {
    let asked = Asked::new().await;
    let (engine, calls) = (&asked.engine, &asked.engine.calls);
    let call = || engine.call(request(engine, &FETCH));
    let refuse = |slot: &CallSlot| {
        let message = slot.message().unwrap();
        calls.refused(message, ResetCode::Refused, "there is too much to do");
        let outcome = slot.outcome.poll(None);
        assert!(matches!(outcome, Some(Outcome::Failed(_))));
    };
    let slots: Vec<_> = (0..100).map(|_| call()).collect();
    refuse(&slots[0]);
    let later = call();
    slots[1..].iter().for_each(|slot| refuse(slot));
    // A search would have found this one, too, and the call that all began with.
    assert_eq!(calls.table().by_message.len(), 1);
    refuse(&later);
    // What is no call is looked for once, until there is another call.
    let refuse_none = || calls.refused(u64::MAX, ResetCode::Refused, "");
    refuse_none();
    calls.table().by_message.insert(u64::MAX - 1, u64::MAX);
    refuse_none();
    assert!(calls.table().by_message.contains_key(&(u64::MAX - 1)));
    let last = call();
    refuse_none();
    assert!(!calls.table().by_message.contains_key(&(u64::MAX - 1)));
    refuse(&last);
    refuse(&asked.slot);
}

/// A call may need the room of what was released before it. The pipe's task, on another thread, sends releases, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_released_before_a_call_arrives_before_it() {
    let asked = Asked::new().await;
    for round in 0..300 {
        let calls = 1000 + 10 * round..1000 + 10 * round + 3;
        for call in calls.clone() {
            asked.engine.release(call, Some(0));
        }
        asked.engine.call(request(&asked.engine, &FETCH));
        let mut seen = HashSet::new();
        loop {
            let (header, body) = asked.said().await;
            if header.kind != Kind::Release {
                break;
            }
            for release in body.chunks(12) {
                seen.insert(u64::from_le_bytes(release[..8].try_into().unwrap()));
            }
        }
        for call in calls {
            assert!(seen.contains(&call), "{call} comes behind the call");
        }
    }
}

/// Nobody drives while its runtime is blocked.
#[tokio::test]
async fn releases_leave_without_the_runtime_of_their_pipe() {
    let asked = Asked::new().await;
    (1..=3).for_each(|call| asked.engine.release(call, Some(0)));
    assert_eq!(asked.engine.releases.len(), 2);
    Receiver::new(&asked.engine).stalled();
    assert_eq!(asked.engine.releases.len(), 0);
}

/// However many references are dropped at once, they leave calls half of the queue, and each is released once.
#[tokio::test]
async fn no_release_is_lost_while_the_peer_does_not_read() {
    const MANY: u64 = 10_000;
    let mut limits = Limits::default();
    limits.queued_writes = 8;
    limits.window_messages = 4;
    let context = Context::builder().limits(limits).build().unwrap();
    let (near, peer) = pair_of(&context).await;
    let engine = Engine::start(near, None).unwrap();
    for call in 0..MANY {
        engine.release(call, Some(3));
    }
    let waits = || engine.releases.len();
    let begun = Instant::now();
    while engine.pipe.unwritten() < 4 {
        assert!(begun.elapsed() < Duration::from_secs(20), "nothing leaves");
        tokio::task::yield_now().await;
    }
    assert!(waits() > 9000, "{} wait for the peer", waits());
    // A call still has room.
    let slot = engine.call(request(&engine, &FETCH));
    assert!(slot.message().is_some());
    let mut seen = HashSet::new();
    while seen.len() < MANY as usize {
        let said = soon(peer.read()).await.unwrap();
        let header = Header::decode(&said.metadata).unwrap();
        if header.kind == Kind::Release {
            for release in said.metadata[header.body_at..].chunks(12) {
                let call = u64::from_le_bytes(release[..8].try_into().unwrap());
                assert_eq!(release, released(call, 3));
                seen.insert(call);
            }
        }
    }
    assert_eq!(waits(), 0);
}

/// The pipe's queue is mostly full, and calls look for room in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_release_of_several_threads_is_lost() {
    const EACH: u64 = 4000;
    let mut limits = Limits::default();
    limits.queued_writes = 8;
    let context = Context::builder().limits(limits).build().unwrap();
    let (near, peer) = pair_of(&context).await;
    let engine = Engine::start(near, None).unwrap();
    for thread in 0..3 {
        let engine = engine.clone();
        tokio::task::spawn_blocking(move || {
            (thread * EACH..(thread + 1) * EACH).for_each(|call| engine.release(call, Some(3)));
        });
    }
    let calls = {
        let engine = engine.clone();
        tokio::task::spawn_blocking(move || {
            (0..EACH).for_each(|_| drop(engine.call(request(&engine, &FETCH))));
        })
    };
    let mut seen = HashSet::new();
    while seen.len() < 3 * EACH as usize {
        let said = soon(peer.read()).await.unwrap();
        let header = Header::decode(&said.metadata).unwrap();
        if header.kind == Kind::Release {
            for release in said.metadata[header.body_at..].chunks(12) {
                seen.insert(u64::from_le_bytes(release[..8].try_into().unwrap()));
            }
        }
    }
    calls.await.unwrap();
}

/// Its queue stays full, and each flush of it fails at once.
#[test]
fn control_messages_to_a_peer_that_leaves_do_not_keep_a_thread_busy() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let mut limits = Limits::default();
    limits.queued_writes = 1 << 11;
    let context = Context::builder().limits(limits).build().unwrap();
    let (engine, peer) = runtime.block_on(async {
        let (near, peer) = pair_of(&context).await;
        (Engine::start(near, None).unwrap(), peer)
    });
    while lock(&engine.later).messages() == 0 {
        engine.send_control(Kind::Draining, 0, &[]);
    }
    peer.go_away("it does not read");
    let until = Instant::now() + Duration::from_secs(20);
    while !matches!(
        engine.pipe.flush().now_or_never(),
        Some(Err(Error::GoingAway { .. }))
    ) {
        assert!(Instant::now() < until, "it is not going away");
        std::thread::sleep(Duration::from_millis(5));
    }
    let (tell, told) = std::sync::mpsc::channel();
    for _ in 0..20 {
        let tell = tell.clone();
        // The only thread of the runtime.
        runtime.spawn(async move { tell.send(()) });
        let runs = told.recv_timeout(Duration::from_secs(20));
        runs.expect("the runtime's thread does nothing else");
        std::thread::sleep(Duration::from_millis(5));
    }
    runtime.shutdown_background();
}

/// An engine that serves so many calls at once.
pub(super) async fn serving(calls: usize) -> (Arc<Engine>, Pipe) {
    let (near, peer) = pair().await;
    let limits = ServerLimits {
        calls_per_connection: calls,
        ..ServerLimits::default()
    };
    let server = ServerShared::of(Server::builder().limits(limits)).unwrap();
    (Arc::new(server).connect(near).unwrap(), peer)
}

/// The first call's handler, or what is left of it, may still be there.
#[tokio::test]
async fn a_caller_that_has_its_answer_may_make_the_next_call() {
    let (engine, _peer) = serving(1).await;
    let admit = || {
        let serving = engine.serving.as_ref().unwrap();
        serving.admit(&Header::plain(Kind::Claim, 1), &[]).ok()
    };
    let first = admit().unwrap();
    assert!(admit().is_none(), "there is room for one");
    engine.reply(&first, Reply::value(7u32));
    assert!(admit().is_some());
}

#[tokio::test]
async fn a_call_that_has_ended_is_not_found_any_more() {
    let (engine, _peer) = serving(1).await;
    let serving = engine.serving.as_ref().unwrap();
    let header = Header::plain(Kind::Claim, 1);
    for ends in [false, true] {
        let mut call = serving.admit(&header, &[]).ok();
        let context = call.as_ref().unwrap().context.clone();
        engine.list(REPLY, call.as_mut().unwrap());
        if ends {
            call = None;
        }
        // Its caller gives it up.
        engine.call_abandoned(REPLY);
        assert_ne!(context.inner.cancel.is_set(), ends);
        drop(call);
    }
}
