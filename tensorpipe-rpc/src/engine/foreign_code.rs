//! The user's code that the engine runs: wakers and subscribers. A panic of one harms no other call, and none runs under a lock.

use std::sync::{Arc, mpsc};
use std::task::{Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use tensorpipe::engine::Handler;
use tensorpipe::{Error, Pipe, ResetCode};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::admission::Admitted;
use super::oneshot::Oneshot;
use super::races::{HOUR, pair, request, serving};
use super::streams::{CallStreams, UnreadBudget};
use super::table::Reading;
use super::{CallSlot, Engine, Receiver, Request};
use crate::context::CallContext;
use crate::header::{Header, Kind, TraceContext};
use crate::lock::{AtomicBool, Ordering};
use crate::observe::{CallTrace, HandlerTrace};
use crate::remote::FETCH;
use crate::schema::Streams;

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker's own");
    }
}

/// A subscriber that runs a function.
pub(crate) struct Watches<F>(pub(crate) F);

/// When it does.
#[derive(PartialEq)]
pub(crate) enum Seen {
    Event,
    EndOfSpan,
}

impl<F: Fn(Seen) + Send + Sync + 'static> Subscriber for Watches<F> {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        if event.metadata().target().starts_with("tensorpipe_rpc") {
            (self.0)(Seen::Event);
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}

    fn try_close(&self, _: Id) -> bool {
        (self.0)(Seen::EndOfSpan);
        true
    }
}

/// Runs what may wait for a lock for ever.
pub(crate) fn soon(run: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        run();
        done.send(())
    });
    let done = is_done.recv_timeout(Duration::from_secs(20));
    done.expect("within 20 s");
}

/// The number of calls: whichever is first, another one comes after it.
const CALLS: usize = 3;

pub(crate) async fn engine() -> (Arc<Engine>, Pipe) {
    let (near, peer) = pair().await;
    (Engine::start(near, None).unwrap(), peer)
}

fn deadlines_pass(engine: &Engine) {
    engine.fail_due(Instant::now() + 2 * HOUR);
}

fn connection_is_lost(engine: &Engine) {
    engine.calls.closed(&gone());
}

const ENDS: [fn(&Engine); 2] = [deadlines_pass, connection_is_lost];

fn have_ended(engine: &Engine, slots: &[Arc<CallSlot>]) {
    assert!(slots.iter().all(|slot| slot.outcome.is_done()));
    assert_eq!(engine.calls.under_way(), 0);
}

#[tokio::test]
async fn a_waker_that_panics_keeps_no_other_call_from_its_end() {
    for end in ENDS {
        let (engine, _peer) = engine().await;
        let slots = [(); CALLS].map(|()| engine.call(request(&engine, &FETCH)));
        for slot in &slots {
            let waker = Waker::from(Arc::new(Panics));
            assert!(slot.outcome.poll(Some(&waker)).is_none());
        }
        end(&engine);
        have_ended(&engine, &slots);
    }
}

#[tokio::test]
async fn a_lost_connection_is_cleared_up_whatever_its_wakers_do() {
    let (engine, _peer) = engine().await;
    let slot = engine.call(request(&engine, &FETCH));
    let reading = Reading::Reply(slot.clone());
    let header = Header::plain(Kind::Value, slot.id);
    engine.calls.table().reading.insert(0, (header, reading));
    let waker = Waker::from(Arc::new(Panics));
    assert!(slot.outcome.poll(Some(&waker)).is_none());
    connection_is_lost(&engine);
    assert!(!engine.calls.is_reading(0));
}

#[tokio::test]
async fn a_subscriber_that_panics_keeps_no_call_from_its_end() {
    for end in ENDS {
        let (engine, _peer) = engine().await;
        let panics = Watches(|seen| assert!(seen != Seen::Event, "a subscriber's own"));
        tracing::subscriber::with_default(panics, || {
            let slots = [(); CALLS].map(|()| {
                let plain = request(&engine, &FETCH);
                let none = TraceContext::default();
                let (trace, _) = CallTrace::of(plain.id, &engine, "service", &FETCH, true, none);
                engine.call(Request { trace, ..plain })
            });
            end(&engine);
            have_ended(&engine, &slots);
        });
    }
}

#[tokio::test]
async fn the_calls_of_a_lost_client_are_cancelled_whatever_a_subscriber_does() {
    let (engine, _peer) = serving(1).await;
    let serving = engine.serving.as_ref().unwrap();
    let mut call = serving
        .admit(&Header::plain(Kind::Claim, 1), &[])
        .ok()
        .unwrap();
    engine.list(0, &mut call);
    let (panics, told) = panics_at(Seen::Event);
    tracing::subscriber::with_default(panics, || Receiver::new(&engine).closed(&gone()));
    assert!(call.context.is_cancelled() && told.load(Ordering::Relaxed));
}

/// Tensors of one of its calls are on their way, which ends with the connection, and with it the call's span.
#[tokio::test]
async fn the_calls_of_a_lost_client_are_cancelled_whatever_a_subscriber_does_at_the_end_of_a_span()
{
    let (engine, _peer) = serving(2).await;
    let serving = engine.serving.as_ref().unwrap();
    let header = Header::plain(Kind::Claim, 1);
    let mut runs = serving.admit(&header, &[]).ok().unwrap();
    engine.list(0, &mut runs);
    let (panics, ended) = panics_at(Seen::EndOfSpan);
    tracing::subscriber::with_default(panics, || {
        let arrives = traced(&engine, &header);
        let receiving = (header, arrives, engine.clone());
        serving.table().receiving.insert(1, receiving);
        Receiver::new(&engine).closed(&gone());
        assert!(serving.table().receiving.is_empty());
    });
    assert!(runs.context.is_cancelled() && ended.load(Ordering::Relaxed));
}

/// A handler may leave a clone of its context to a task of its own.
#[tokio::test]
async fn a_call_that_nobody_waits_for_has_ended_though_its_context_lives_on() {
    let (engine, _peer) = serving(1).await;
    let told = Arc::new(AtomicBool::new(false));
    let hears = told.clone();
    let watches = Watches(move |seen| {
        hears.fetch_or(seen == Seen::Event, Ordering::Relaxed);
    });
    tracing::subscriber::with_default(watches, || {
        let call = traced(&engine, &Header::plain(Kind::Claim, 1));
        let lives_on = call.context.clone();
        call.context.inner.cancel.set();
        assert!(!told.load(Ordering::Relaxed));
        engine.given_up(&call);
        drop(call);
        assert!(told.load(Ordering::Relaxed));
        drop(lives_on);
    });
}

/// A subscriber, and whether it has panicked.
fn panics_at(when: Seen) -> (impl Subscriber + Send + Sync, Arc<AtomicBool>) {
    let has_panicked = Arc::new(AtomicBool::new(false));
    let panics = has_panicked.clone();
    let subscriber = Watches(move |seen| {
        if seen == when {
            panics.store(true, Ordering::Relaxed);
            panic!("a subscriber's own");
        }
    });
    (subscriber, has_panicked)
}

fn gone() -> Error {
    Error::Reset {
        code: ResetCode::Failed,
        reason: "gone".into(),
    }
}

/// An admitted call with a span, if somebody wants it.
fn traced(engine: &Arc<Engine>, header: &Header) -> Admitted {
    let serving = engine.serving.as_ref().unwrap();
    let mut call = serving.admit(header, &[]).ok().unwrap();
    let caller = &serving.caller;
    caller.record_peer(&engine.pipe);
    let trace = HandlerTrace::of(header, "service", &FETCH, caller, Instant::now());
    let none = TraceContext::default();
    call.context = CallContext::new(header.call, None, none, caller.clone(), None, trace);
    call
}

#[tokio::test]
async fn a_late_call_of_a_stalled_runtime_may_find_its_answer_first() {
    let (engine, _peer) = engine().await;
    let deadline = Some((Instant::now(), Duration::ZERO));
    let call = request(&engine, &FETCH);
    let slot = engine.call(Request { deadline, ..call });
    let receiver = Receiver::new(&engine);
    receiver.stalled();
    assert!(!slot.outcome.is_done());
    receiver.stalled();
    assert!(slot.outcome.is_done());
}

/// Wakes nobody, and runs a function when it is dropped.
struct OnDrop(Box<dyn Fn() + Send + Sync>);

impl Wake for OnDrop {
    fn wake(self: Arc<Self>) {}
}

impl Drop for OnDrop {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// The last waker of a task may drop the task's future, and that may hold what the waker was kept in.
fn drops_a_waker_that_looks_back<T: Send + Sync + 'static>(kept_in: T, poll: fn(&T, &Waker)) {
    soon(move || {
        let kept_in = Arc::new(kept_in);
        let again = Arc::downgrade(&kept_in);
        let looks_back = OnDrop(Box::new(move || {
            if let Some(kept_in) = again.upgrade() {
                poll(&kept_in, Waker::noop());
            }
        }));
        poll(&kept_in, &Arc::new(looks_back).into());
        poll(&kept_in, Waker::noop());
    });
}

fn streams() -> CallStreams {
    let both = Streams {
        argument: true,
        reply: true,
    };
    let unread = UnreadBudget::new(0, 0);
    CallStreams::new(0, true, both, false, None, None, &unread)
}

#[test]
fn a_waker_that_an_outcome_drops_may_look_back_at_it() {
    drops_a_waker_that_looks_back(Oneshot::<u32>::new(), |outcome, waker| {
        outcome.poll(Some(waker));
    });
}

#[test]
fn a_waker_that_a_reader_drops_may_look_back_at_it() {
    drops_a_waker_that_looks_back(streams(), |streams, waker| {
        streams.inbox.as_ref().unwrap().take(Some(waker));
    });
}

#[test]
fn a_waker_that_a_sender_drops_may_look_back_at_it() {
    drops_a_waker_that_looks_back(streams(), |streams, waker| {
        streams.credits.as_ref().unwrap().room(waker);
    });
}

/// The list of running calls holds the last handle of a call, and with it the call's span.
#[tokio::test]
async fn the_end_of_a_span_of_a_call_that_ran_may_look_for_calls() {
    let (engine, _peer) = serving(1).await;
    let (looks, looked) = (Arc::downgrade(&engine), Arc::new(AtomicBool::new(false)));
    let has_looked = looked.clone();
    let looks_back = Watches(move |seen| {
        if let (Seen::EndOfSpan, Some(engine)) = (seen, looks.upgrade()) {
            soon(move || engine.call_abandoned(0));
            has_looked.store(true, Ordering::Relaxed);
        }
    });
    let header = Header::plain(Kind::Claim, 1);
    let mut call = tracing::subscriber::with_default(looks_back, || traced(&engine, &header));
    engine.list(0, &mut call);
    let listed = call.listed.take();
    drop(call);
    drop(listed);
    assert!(looked.load(Ordering::Relaxed));
}
