//! Messages pushed to a handler: in order, one at a time; a handler that blocks holds up its own pipe only.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures_util::FutureExt;
use tensorpipe::channels::{BasicChannel, Channel, CmaChannel};
use tensorpipe::engine::{EnginePipe, Handler, Held, Outbound, When};
use tensorpipe::{
    Allocation, Error, Incoming, MessageStats, Place, ResetCode, Write,
    channels::{Pays, Threshold},
};

use super::*;

/// Answers each message with itself; notes what it was told.
#[derive(Default)]
struct Answers {
    pipe: Mutex<Option<Pipe>>,
    blocks: Option<Duration>,
    inside: AtomicBool,
    seen: Mutex<Vec<u64>>,
    told: Mutex<Vec<String>>,
    closed: AtomicUsize,
}

impl Answers {
    fn new(pipe: &Pipe, blocks: Option<Duration>) -> Arc<Self> {
        let handler = Arc::new(Self {
            pipe: Mutex::new(Some(pipe.clone())),
            blocks,
            ..Self::default()
        });
        pipe.set_handler(handler.clone()).unwrap();
        handler
    }

    fn answer(&self, message: Message) {
        let number = u64::from_le_bytes(message.metadata[..].try_into().unwrap());
        self.seen.lock().unwrap().push(number);
        let pipe = self.pipe.lock().unwrap().clone();
        pipe.unwrap().send(message).unwrap();
    }

    fn told(&self, what: String) {
        self.told.lock().unwrap().push(what);
    }
}

impl Handler for Answers {
    fn incoming(&self, incoming: Incoming) {
        assert!(
            !self.inside.swap(true, Ordering::SeqCst),
            "called from inside itself"
        );
        if let Some(blocks) = self.blocks {
            std::thread::sleep(blocks);
        }
        if let Some(whole) = incoming.accept() {
            self.answer(whole.unwrap());
        }
        self.inside.store(false, Ordering::SeqCst);
    }

    fn message(&self, _: u64, message: Result<Message, Error>, _: MessageStats, _: Held) {
        match message {
            Ok(message) => self.answer(message),
            Err(error) => self.told(error.to_string()),
        }
    }

    fn reset(&self, id: u64, code: ResetCode, reason: &str) {
        self.told(format!("reset {id} {code} {reason}"));
    }

    fn refused(&self, id: u64, code: ResetCode, reason: &str) {
        self.told(format!("refused {id} {code} {reason}"));
    }

    fn going_away(&self, next: u64, reason: &str) {
        self.told(format!("going away from {next}: {reason}"));
    }

    fn closed(&self, _: &Error) {
        self.closed.fetch_add(1, Ordering::SeqCst);
        *self.pipe.lock().unwrap() = None;
    }
}

#[tokio::test]
async fn a_handler_answers_from_inside() {
    every_way(async |_, client, server| {
        client.send(message(0, 10)).unwrap();
        let handler = Answers::new(&server, None);
        comes(&client, 0, 10).await;
        for number in 1..60 {
            let len = if number % 3 == 0 { 300_000 } else { 50 };
            let (written, read) = soon("a round trip", async {
                tokio::join!(client.write(message(number, len)), client.read())
            })
            .await;
            written.unwrap();
            check(&read.unwrap(), number, len);
        }
        assert_eq!(*handler.seen.lock().unwrap(), (0..60).collect::<Vec<_>>());
        soon("close", client.close()).await.unwrap();
        eventually("the end", || handler.closed.load(Ordering::SeqCst) == 1).await;
    })
    .await;
}

#[tokio::test]
async fn a_handler_hears_of_resets_refusals_and_departures() {
    let (client, server) = tcp_pair().await;
    let handler = Answers::new(&server, None);
    let large = client.send(message(1, 100)).unwrap();
    let answer = head(&client).await;
    client.reset(large, ResetCode::Deadline, "too late");
    answer.refuse("not wanted any more");
    let second = client.send(message(2, 3 << 20)).unwrap();
    let answer = head(&client).await;
    answer.refuse("too large");
    client.go_away("done");
    eventually("all three", || handler.told.lock().unwrap().len() == 4).await;
    let told = handler.told.lock().unwrap().clone();
    assert_eq!(second, 1);
    for wanted in [
        "reset 0 its deadline passed too late",
        "refused 0 refused not wanted any more",
        "refused 1 refused too large",
        "going away from 2: done",
    ] {
        assert!(told.iter().any(|told| told == wanted), "{wanted}: {told:?}");
    }
}

/// Closes its pipe at the first message, and counts what it is offered.
struct Closes(Pipe, AtomicUsize);

impl Handler for Closes {
    fn incoming(&self, incoming: Incoming) {
        if self.1.fetch_add(1, Ordering::SeqCst) == 0 {
            let _ = self.0.close().now_or_never();
        }
        drop(incoming);
    }

    fn message(&self, _: u64, _: Result<Message, Error>, _: MessageStats, _: Held) {}

    fn closed(&self, _: &Error) {}
}

#[tokio::test]
async fn what_a_handler_has_not_been_offered_when_its_pipe_closes_is_refused() {
    const MESSAGES: u64 = 500;
    let (client, server) = tcp_pair().await;
    let hears = Answers::new(&client, None);
    for number in 0..MESSAGES {
        client.send(message(number, 0)).unwrap();
    }
    let have_come = || server.stats().bytes_in > MESSAGES * 8;
    eventually("all of them", have_come).await;
    let closes = Arc::new(Closes(server.clone(), AtomicUsize::new(0)));
    server.set_handler(closes.clone()).unwrap();
    let is_closed = || hears.closed.load(Ordering::SeqCst) == 1;
    eventually("the end", is_closed).await;
    let told = hears.told.lock().unwrap();
    let refused = told.iter().filter(|told| told.starts_with("refused"));
    let refused = refused.count() as u64;
    let offered = closes.1.load(Ordering::SeqCst) as u64;
    assert!(offered < 20, "{offered}");
    assert!(refused >= MESSAGES - offered, "{refused}: {told:?}");
}

/// Nobody waits for a handler but its own pipe's messages: what others do on the pipe meanwhile returns at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_handler_that_blocks_does_not_lock_its_pipe() {
    let (client, server) = tcp_pair().await;
    let handler = Answers::new(&server, Some(Duration::from_millis(800)));
    client.send(message(1, 10)).unwrap();
    client.send(message(2, 10)).unwrap();
    let others = tokio::task::spawn_blocking(move || {
        while !handler.inside.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let begun = std::time::Instant::now();
        server.send(message(9, 10)).unwrap();
        drop((server.flush(), server.stats(), server.read_descriptor()));
        (begun.elapsed(), server)
    });
    let (took, server) = soon("the others", others).await.unwrap();
    assert!(took < Duration::from_millis(400), "{took:?}");
    for number in [9, 1, 2] {
        comes(&client, number, 10).await;
    }
    drop(server);
}

/// Panics over each message.
struct Panics(AtomicUsize);

impl Handler for Panics {
    fn incoming(&self, _: Incoming) {
        panic!("over this one");
    }
    fn message(&self, _: u64, _: Result<Message, Error>, _: MessageStats, _: Held) {}
    fn closed(&self, _: &Error) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_handler_that_panics_ends_its_pipe_and_harms_nobody_else() {
    every_way(async |context, client, server| {
        let (other, far) = pair(&context, &context).await;
        let handler = Arc::new(Panics(AtomicUsize::new(0)));
        server.set_handler(handler.clone()).unwrap();
        for number in 0..3 {
            client.send(message(number, 10)).unwrap();
        }
        // Whoever drives does not panic.
        let error = soon("the end", server.ended()).await;
        assert!(
            error.to_string().contains("panicked: over this one"),
            "{error}"
        );
        assert!(error.ends_pipe());
        eventually("the handler hears of it", || {
            handler.0.load(Ordering::SeqCst) == 1
        })
        .await;
        let error = soon("the peer's end", client.ended()).await;
        assert!(error.ends_pipe(), "{error:?}");
        exchange(&other, &far, 1, 70_000).await;
    })
    .await;
}

/// Keeps what comes, for somebody else to accept.
#[derive(Default)]
struct Keeps {
    pipe: Mutex<Option<Pipe>>,
    kept: Mutex<Vec<Incoming>>,
    complete: Mutex<Vec<Message>>,
}

impl Handler for Keeps {
    fn incoming(&self, incoming: Incoming) {
        self.kept.lock().unwrap().push(incoming);
    }
    fn message(&self, _: u64, message: Result<Message, Error>, _: MessageStats, _: Held) {
        self.complete.lock().unwrap().push(message.unwrap());
    }
    fn closed(&self, _: &Error) {}
}

/// The first is here whole, and copied to where it is wanted; the second waits for its go-ahead. Both ends sleep, and nothing else
/// moves the pipe.
#[tokio::test]
async fn what_is_accepted_after_the_handler_has_returned_comes() {
    // What looks after blocked runtimes wakes the first pipe that it finds at rest: this one.
    let _first = tcp_pair().await;
    for context in [over_tcp(), over_shm()] {
        let context = context
            .timeouts(timeouts(|timeouts| {
                timeouts.silence = None;
            }))
            .limits(limits(|limits| limits.window_ahead = 0))
            .build()
            .unwrap();
        let (client, server) = pair(&context, &context).await;
        let handler = Arc::new(Keeps::default());
        server.set_handler(handler.clone()).unwrap();
        for (number, len) in [(0, 100), (1, 3 << 20)] {
            client.send(message(number, len)).unwrap();
            eventually("it comes", || handler.kept.lock().unwrap().len() == 1).await;
            // Nobody polls any more.
            pause(300).await;
            let incoming = handler.kept.lock().unwrap().pop().unwrap();
            let place = server.pool().take(len);
            let allocation = Allocation {
                payloads: Vec::new(),
                tensors: vec![Place::Into(place)],
            };
            assert!(incoming.accept_into(allocation).is_none());
            // Whoever keeps a blocked runtime's pipe alive would move it after ten seconds.
            let complete = || handler.complete.lock().unwrap().len() == 1;
            let complete = eventually("its bytes", complete);
            let soon = tokio::time::timeout(Duration::from_secs(5), complete);
            soon.await.expect("nobody moves it");
            let complete = handler.complete.lock().unwrap().pop().unwrap();
            check(&complete, number, len);
        }
    }
}

/// Accepts what its channel has to copy, and writes what somebody wants to know the end of.
struct Acknowledges {
    pipe: Pipe,
    write: Mutex<Option<Write>>,
    complete: AtomicUsize,
}

impl Handler for Acknowledges {
    fn incoming(&self, incoming: Incoming) {
        assert!(incoming.accept().is_none());
        *self.write.lock().unwrap() = Some(self.pipe.write(Message::new("accepted")));
    }
    fn message(&self, _: u64, message: Result<Message, Error>, _: MessageStats, _: Held) {
        check(&message.unwrap(), 1, 1 << 20);
        self.complete.fetch_add(1, Ordering::SeqCst);
    }
    fn closed(&self, _: &Error) {}
}

#[tokio::test]
async fn whoever_writes_behind_what_it_accepted_hears_how_it_ended() {
    let channels: [Arc<dyn Channel>; 2] = [
        Arc::new(CmaChannel::also_within_process()),
        Arc::new(BasicChannel::new()),
    ];
    let context = over_tcp()
        .channels(channels)
        .threshold("cma", Threshold::new(Pays::BeyondFrame))
        .build()
        .unwrap();
    let (client, server) = pair(&context, &context).await;
    // From then on the reader knows its writer's process.
    exchange(&client, &server, 0, 1 << 20).await;
    let handler = Arc::new(Acknowledges {
        pipe: server.clone(),
        write: Mutex::default(),
        complete: AtomicUsize::new(0),
    });
    server.set_handler(handler.clone()).unwrap();
    client.send(message(1, 1 << 20)).unwrap();
    let answer = soon("an answer", client.read()).await.unwrap();
    assert_eq!(answer.metadata, "accepted");
    let write = handler.write.lock().unwrap().take().unwrap();
    soon("its end", write).await.unwrap();
    let complete = || handler.complete.load(Ordering::SeqCst) == 1;
    eventually("the copy", complete).await;
}

/// Of a message whose writer's own code fails, all that was put together still leaves, and so does all of the next one.
#[tokio::test]
async fn a_callback_that_panics_keeps_nothing_back() {
    // Whatever is said later would push on what was kept back.
    let silent = timeouts(|timeouts| timeouts.silence = None);
    let context = over_tcp().timeouts(silent).build().unwrap();
    let (client, server) = pair(&context, &context).await;
    let callback = |_| panic!("by design");
    let submit = || client.submit(&mut Outbound::new(b"first"), When::Now, callback);
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(submit)).unwrap_err();
    client.send(message(1, 100)).unwrap();
    let first = soon("the first", server.read()).await.unwrap();
    assert_eq!(first.metadata, "first");
    // Whoever keeps a blocked runtime's pipe alive would push it on later.
    let second = tokio::time::timeout(Duration::from_secs(5), server.read()).await;
    check(&second.expect("it was kept back").unwrap(), 1, 100);
}

/// Nobody is called any more: whoever accepts has it.
#[tokio::test]
async fn what_is_accepted_when_the_pipe_has_ended_is_returned() {
    let (client, server) = tcp_pair().await;
    let handler = Arc::new(Keeps::default());
    server.set_handler(handler.clone()).unwrap();
    client.send(message(0, 100)).unwrap();
    eventually("it comes", || handler.kept.lock().unwrap().len() == 1).await;
    soon("close", client.close()).await.unwrap();
    soon("the end", server.ended()).await;
    let allocation = Allocation {
        payloads: Vec::new(),
        tensors: vec![Place::Into(server.pool().take(100))],
    };
    let incoming = handler.kept.lock().unwrap().pop().unwrap();
    let accepted = incoming
        .accept_into(allocation)
        .expect("nobody hears of it");
    check(&accepted.unwrap(), 0, 100);
    assert!(handler.complete.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_handler_that_holds_its_pipe_is_let_go_of_when_that_has_ended() {
    let (client, server) = tcp_pair().await;
    let handler = Arc::new(Keeps::default());
    *handler.pipe.lock().unwrap() = Some(server.clone());
    server.set_handler(handler.clone()).unwrap();
    let held = Arc::downgrade(&handler);
    drop((handler, server));
    soon("close", client.close()).await.unwrap();
    eventually("the end", || held.strong_count() == 0).await;
}

#[tokio::test]
async fn a_pipe_has_one_handler() {
    let (client, server) = tcp_pair().await;
    let first = Arc::new(Keeps::default());
    server.set_handler(first.clone()).unwrap();
    let refused = server.set_handler(Arc::new(Keeps::default())).unwrap_err();
    assert!(
        refused.to_string().contains("has a handler already"),
        "{refused}"
    );
    client.send(message(0, 10)).unwrap();
    eventually("it comes", || first.kept.lock().unwrap().len() == 1).await;
    soon("close", client.close()).await.unwrap();
    soon("the end", server.ended()).await;
    server.set_handler(first).unwrap_err();
}

/// Is called by the pipe's task when it was asked for, and holds up a message until it may go on.
struct Asked {
    asked: AtomicUsize,
    inside: AtomicBool,
    gate: Mutex<()>,
}

impl Handler for Asked {
    fn incoming(&self, _: Incoming) {
        self.inside.store(true, Ordering::SeqCst);
        drop(self.gate.lock());
    }
    fn message(&self, _: u64, _: Result<Message, Error>, _: MessageStats, _: Held) {}
    fn asked(&self) {
        if self.asked.fetch_add(1, Ordering::SeqCst) == 2 {
            panic!("over the third");
        }
    }
    fn closed(&self, _: &Error) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn what_an_engine_asks_for_comes_once_its_handler_has_returned() {
    let context = over_tcp().build().unwrap();
    let (client, server) = pair(&context, &context).await;
    let handler = Arc::new(Asked {
        asked: AtomicUsize::new(0),
        inside: AtomicBool::new(false),
        gate: Mutex::default(),
    });
    server.set_handler(handler.clone()).unwrap();
    let asked = |many| {
        let handler = &handler;
        move || handler.asked.load(Ordering::SeqCst) == many
    };
    pause(50).await;
    assert!(asked(0)(), "nobody has asked");
    server.ask();
    eventually("the pipe's task", asked(1)).await;
    let closed = handler.gate.lock().unwrap();
    client.send(message(0, 10)).unwrap();
    let is_inside = || handler.inside.load(Ordering::SeqCst);
    while !is_inside() {
        std::thread::yield_now();
    }
    server.ask();
    std::thread::sleep(Duration::from_millis(50));
    assert!(asked(1)(), "the handler is called just now");
    drop(closed);
    eventually("the rest", asked(2)).await;
    server.ask();
    let error = soon("the end", server.ended()).await;
    assert!(error.to_string().contains("panicked: over the third"));
}
