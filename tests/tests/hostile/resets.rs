//! A peer cancels one message after another while the handler is busy with the first. The queue for the handler is bounded, and in the end
//! the handler hears of every message.

use std::io::Write;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tensorpipe::engine::{EnginePipe, Handler, Held};
use tensorpipe::{Error, Incoming, Limits, Message, MessageStats, Pipe, ResetCode, Timeouts};

use super::memory::story;
use super::raw::{RESET, Raw, SOON, message, reason, tensor};
use super::server::context_over;
use super::stream::Way;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// How long a peer may say nothing. Not even a ping of this side's is answered here.
const SILENCE: Duration = Duration::from_secs(2);

/// More than a peer may make this side keep.
const FLOOD: usize = 64 * MIB;

/// Blocks in its first call until it is let go on, and tells of every call.
struct Blocks {
    go_on: Mutex<Receiver<()>>,
    tell: Sender<Call>,
}

#[derive(Debug, PartialEq, Eq)]
enum Call {
    Incoming(u64),
    Reset(u64),
    Other,
}

impl Blocks {
    fn called(&self, call: Call) {
        let first = call == Call::Incoming(0);
        let _ = self.tell.send(call);
        if first {
            let _ = self.go_on.lock().unwrap().recv();
        }
    }
}

impl Handler for Blocks {
    fn incoming(&self, incoming: Incoming) {
        self.called(Call::Incoming(incoming.id()));
    }
    fn message(&self, _: u64, _: Result<Message, Error>, _: MessageStats, _: Held) {
        self.called(Call::Other);
    }
    fn reset(&self, id: u64, _: ResetCode, _: &str) {
        self.called(Call::Reset(id));
    }
    fn refused(&self, _: u64, _: ResetCode, _: &str) {
        self.called(Call::Other);
    }
    fn going_away(&self, _: u64, _: &str) {
        self.called(Call::Other);
    }
    fn closed(&self, _: &Error) {
        self.called(Call::Other);
    }
}

/// A pipe to a hostile peer, whose handler is busy with message 0 on one thread, while another thread drives.
struct Scene {
    raw: Raw,
    calls: Receiver<Call>,
    let_go: Sender<()>,
    pipe: Pipe,
    _runtime: tokio::runtime::Runtime,
}

fn busy(way: Way, what: &str, timeouts: Timeouts) -> Scene {
    let runtime = tensorpipe_tests::runtime();
    let (ask, connected) = channel();
    let (let_go, go_on) = channel();
    let (tell, calls) = channel();
    let url = way.url(what);
    let pipe = runtime.spawn(async move {
        let context = context_over(way, timeouts, Limits::default());
        let listener = context.listen([url.as_str()]).await.unwrap();
        ask.send(listener.url().to_string()).unwrap();
        let pipe = listener.accept().await.unwrap();
        let go_on = Mutex::new(go_on);
        pipe.set_handler(Arc::new(Blocks { go_on, tell })).unwrap();
        pipe
    });
    let mut raw = Raw::open(&connected.recv().unwrap());
    let pipe = runtime.block_on(pipe).unwrap();
    // Whoever waits for something drives, calls the handler, and leaves the rest to the background task.
    let waits = pipe.clone();
    runtime.spawn(async move { waits.ended().await });
    std::thread::sleep(Duration::from_millis(50));
    raw.send(&message(b"first", &[], b""));
    assert_eq!(calls.recv_timeout(SOON), Ok(Call::Incoming(0)));
    Scene {
        raw,
        calls,
        let_go,
        pipe,
        _runtime: runtime,
    }
}

/// Sends pieces until the other side takes no more, or [`FLOOD`] bytes. Returns how many pieces it took, and what is left of the
/// last.
fn flood(raw: &mut Raw, mut piece: impl FnMut(u64) -> Vec<u8>) -> (u64, Vec<u8>) {
    raw.0.set_write_timeout(Duration::from_secs(1));
    let (mut pieces, mut sent) = (0, 0);
    while sent < FLOOD {
        let mut rest = piece(pieces);
        pieces += 1;
        while !rest.is_empty() {
            match raw.0.write(&rest) {
                Ok(len) => {
                    sent += len;
                    rest.drain(..len);
                }
                Err(_) => return (pieces, rest),
            }
        }
    }
    panic!("it takes {} MiB while its handler is busy", sent / MIB);
}

/// Lets the handler go on, sends `rest` meanwhile, and ends with message `last`. Expects these calls before it.
fn goes_on(mut scene: Scene, rest: Vec<u8>, last: u64, expected: impl Iterator<Item = Call>) {
    scene.let_go.send(()).unwrap();
    let end = message(b"last", &[], b"");
    assert!(scene.raw.send(&[rest, end].concat()), "nobody reads on");
    for expected in expected.chain([Call::Incoming(last)]) {
        assert_eq!(scene.calls.recv_timeout(SOON), Ok(expected));
    }
}

#[test]
fn resets_do_not_pile_up_before_a_busy_handler() {
    let _story = story!();
    for way in Way::ALL {
        let mut scene = busy(way, "resets", Timeouts::default());
        let one = reason(RESET, 0, 1, &[b'x'; KIB]).repeat(10);
        let (pieces, rest) = flood(&mut scene.raw, |_| one.clone());
        let resets = (0..10 * pieces).map(|_| Call::Reset(0));
        goes_on(scene, rest, 1, resets);
    }
}

/// What it says is not read: that is not its silence.
#[test]
fn a_peer_that_waits_for_a_busy_handler_is_not_silent() {
    let _story = story!();
    let mut timeouts = Timeouts::default();
    timeouts.silence = Some(SILENCE);
    let mut scene = busy(Way::Tcp, "timeouts", timeouts);
    let one = reason(RESET, 0, 1, &[b'x'; KIB]).repeat(10);
    let (pieces, rest) = flood(&mut scene.raw, |_| one.clone());
    std::thread::sleep(2 * SILENCE);
    assert!(!scene.pipe.has_ended());
    let resets = (0..10 * pieces).map(|_| Call::Reset(0));
    goes_on(scene, rest, 1, resets);
}

#[test]
fn messages_that_are_taken_back_do_not_pile_up_before_a_busy_handler() {
    let _story = story!();
    for way in Way::ALL {
        let mut scene = busy(way, "messages", Timeouts::default());
        let body = vec![7; 4 * KIB];
        let (pieces, rest) = flood(&mut scene.raw, |i| {
            [message(&body, &[], b""), reason(RESET, i + 1, 1, b"")].concat()
        });
        let calls = (1..=pieces).flat_map(|i| [Call::Incoming(i), Call::Reset(i)]);
        goes_on(scene, rest, pieces + 1, calls);
    }
}

/// What is said of a part counts like what is said of the message.
#[test]
fn metadata_of_parts_does_not_pile_up_before_a_busy_handler() {
    let _story = story!();
    let said = vec![7; 64 * KIB];
    // Of no elements.
    let mut part = tensor(1, 0, 8, &[0]);
    let at = part.len() - 4;
    part[at..].copy_from_slice(&(said.len() as u32).to_le_bytes());
    let message = message(b"", &[part], &said);
    let mut scene = busy(Way::Tcp, "parts", Timeouts::default());
    let (pieces, rest) = flood(&mut scene.raw, |i| {
        [&message[..], &reason(RESET, i + 1, 1, b"")].concat()
    });
    let calls = (1..=pieces).flat_map(|i| [Call::Incoming(i), Call::Reset(i)]);
    goes_on(scene, rest, pieces + 1, calls);
}
