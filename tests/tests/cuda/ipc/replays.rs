//! Replays of overheard messages: on another pipe, after the memory was freed and reused, to a restarted process, or by another process at
//! the exchange. No reader sees bytes of another message, and nobody gets a file descriptor.

use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, socket,
};
use tensorpipe::channels::{Channel, LeaseChannel};
use tensorpipe::conformance::pattern;
use tensorpipe::{Context, Error, Misuse, Pipe, Tensor};
use tensorpipe_test_cuda::is_real;
use tensorpipe_tests::{Child, eventually, runtime, say, soon};

use super::{LEN, URL, message};
use crate::bench::{Bench, channel, connected, context, context_told, device, moved};
use crate::driver::{handles, nothing_went_wrong};
use crate::foreign::{Library, ends};
use crate::liars::{comes_back, is_fault};

/// As docs/WIRE.md says.
const OFFER: u8 = 16;
const INVITE: u8 = 17;
const PROVE: u8 = 19;
const SPANNING: u8 = 20;

/// What the lanes of a reader have heard, and what the next one hears.
#[derive(Clone, Default)]
struct Tape(Arc<Mutex<Recorded>>);

#[derive(Default)]
struct Recorded {
    heard: Vec<Vec<u8>>,
    /// Instead of what begins with this, once.
    replay: Option<(u8, Vec<u8>)>,
}

impl Tape {
    /// The last of a kind that was heard.
    fn last(&self, kind: u8) -> Vec<u8> {
        let recorded = self.0.lock().unwrap();
        let found = recorded.heard.iter().rfind(|body| body[0] == kind);
        found.expect("it was heard").clone()
    }

    fn replays(&self, what: Vec<u8>, instead_of: u8) {
        self.0.lock().unwrap().replay = Some((instead_of, what));
    }

    fn is_played(&self) -> bool {
        self.0.lock().unwrap().replay.is_none()
    }

    /// What is heard in the place of this.
    fn hears(&self, body: &[u8]) -> Vec<u8> {
        let mut recorded = self.0.lock().unwrap();
        recorded.heard.push(body.to_vec());
        let replay = recorded.replay.take_if(|(kind, _)| *kind == body[0]);
        replay.map_or_else(|| body.to_vec(), |(_, replay)| replay)
    }

    /// A reader with such lanes.
    fn reader(&self, bench: &Bench) -> Context {
        let tape = self.clone();
        context_told(bench, "cuda_ipc", move |body, _| Some(tape.hears(body)))
    }
}

/// A writer and a reader with a tape, of which one tensor is with the reader.
async fn begun(bench: &Bench, tape: &Tape, tensor: &Tensor) -> ((Pipe, Pipe), Tensor) {
    let near = context(bench, channel("cuda_ipc", &bench.cuda));
    let pipes = connected(&near, &tape.reader(bench)).await;
    let read = moved(&pipes, message("m", tensor.clone())).await;
    let kept = read.tensors[0].tensor.clone();
    assert_eq!(pipes.1.stats().bytes_borrowed, tensor.buffer().len() as u64);
    (pipes, kept)
}

#[test]
fn an_offer_of_another_pipe_is_none() {
    let (bench, tape) = (Bench::new(), Tape::default());
    runtime().block_on(async {
        let first = bench.tensor(device(), &pattern(LEN, 1));
        let (_first_pipes, kept) = begun(&bench, &tape, &first).await;
        let of_first = tape.last(OFFER);
        // Where nothing is proved yet it is a fault.
        let near = context(&bench, channel("cuda_ipc", &bench.cuda));
        let pipes = connected(&near, &tape.reader(&bench)).await;
        tape.replays(of_first.clone(), PROVE);
        let second = bench.tensor(device(), &pattern(LEN, 2));
        let both = async {
            let write = pipes.0.write(message("m", second.clone()));
            tokio::join!(write, pipes.1.read())
        };
        let (written, read) = soon("both ends hear of it", both).await;
        let error = read.expect_err("nothing is read");
        assert!(is_fault(&error, "cuda_ipc", "without a proof"), "{error}");
        let error = written.expect_err("nothing is written");
        assert!(error.ends_pipe(), "{error}");
        comes_back(&second, "the second").await;
        // Behind a proof it is one that was taken back as far as the reader knows: it asks for the bytes.
        let third = bench.tensor(device(), &pattern(LEN, 3));
        let (pipes, third_kept) = begun(&bench, &tape, &third).await;
        tape.replays(of_first, OFFER);
        let fourth = bench.tensor(device(), &pattern(LEN, 4));
        let read = moved(&pipes, message("m", fourth.clone())).await;
        assert!(tape.is_played());
        assert!(bench.download(read.tensors[0].tensor.buffer()) == pattern(LEN, 4));
        assert_eq!(pipes.1.stats().bytes_borrowed, LEN as u64, "the third");
        comes_back(&fourth, "the fourth").await;
        for (seed, kept) in [(1, kept), (3, third_kept)] {
            assert!(bench.download(kept.buffer()) == pattern(LEN, seed));
        }
        comes_back(&first, "the first").await;
    });
    nothing_went_wrong();
}

/// In a process of its own, whose handles are counted.
pub(crate) fn freed() {
    let (bench, tape) = (Bench::new(), Tape::default());
    runtime().block_on(async {
        let library = Library::of(&bench, &[true; 3]);
        let (first, owner) = library.tensor(&pattern(LEN, 1));
        let (pipes, kept) = begun(&bench, &tape, &first).await;
        let of_first = tape.last(SPANNING);
        drop((first, kept));
        ends(&owner).await;
        // So long its physical memory is known, and that of no other tensor. A real driver does not count.
        match is_real() {
            true => tokio::time::sleep(Duration::from_secs(3)).await,
            false => eventually("no handle is left", || handles() == 0).await,
        }
        for is_required in [false, true] {
            tape.replays(of_first.clone(), SPANNING);
            let (second, owner) = library.tensor(&pattern(LEN, 2));
            let second = message("m", second);
            if is_required {
                let write = pipes.0.write(second.require(["cuda_ipc"]));
                let both = async { tokio::join!(write, pipes.1.read()) };
                let (written, read) = soon("both ends hear of it", both).await;
                let error = written.expect_err("it is required");
                let is_typed = matches!(error, Error::Misuse(Misuse::NotAsRequired { .. }));
                assert!(is_typed, "{error}");
                let error = read.expect_err("it is refused");
                assert!(!error.ends_pipe(), "{error}");
            } else {
                let read = moved(&pipes, second).await;
                let found = bench.download(read.tensors[0].tensor.buffer());
                assert!(found == pattern(LEN, 2), "it is the first one's");
            }
            assert!(tape.is_played());
            assert_eq!(pipes.1.stats().bytes_borrowed, LEN as u64, "the first one");
            ends(&owner).await;
        }
    });
}

#[test]
fn an_offer_of_a_process_that_is_gone_is_none_of_the_one_that_was_started_again() {
    let (bench, tape) = (Bench::new(), Tape::default());
    runtime().block_on(async {
        let reader = tape.reader(&bench);
        let listener = reader.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        let url = listener.url().to_string();
        let mut kept = Vec::new();
        for is_again in [false, true] {
            if is_again {
                tape.replays(tape.last(OFFER), OFFER);
            }
            let mut writer = Child::start("ipc lends", &[(URL, &url)]);
            let pipe = soon("a pipe", listener.accept()).await.unwrap();
            for seed in 0..2 {
                let read = soon("a tensor", pipe.read()).await.unwrap();
                let tensor = read.tensors[0].tensor.clone();
                assert!(bench.download(tensor.buffer()) == pattern(LEN, seed));
                kept.push(tensor);
            }
            assert!(tape.is_played());
            let borrowed = if is_again { 1 } else { 2 };
            assert_eq!(pipe.stats().bytes_borrowed, borrowed * LEN as u64);
            writer.kill();
            soon("an end", pipe.read()).await.expect_err("it is killed");
        }
        for (seed, tensor) in [0, 1, 0, 1].into_iter().zip(kept) {
            assert!(bench.download(tensor.buffer()) == pattern(LEN, seed));
        }
    });
    nothing_went_wrong();
}

const CLAIMS: [&str; 3] = [
    "TEST_CUDA_EXCHANGE",
    "TEST_CUDA_INVITE",
    "TEST_CUDA_SEGMENT",
];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Brings another process's invitation, and asks for the memory that was lent to that one.
pub(crate) fn claims() {
    let [name, invite, segment] = CLAIMS.map(|name| {
        let digits = std::env::var(name).unwrap();
        let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        (0..digits.len()).step_by(2).map(byte).collect::<Vec<_>>()
    });
    let (kind, flags) = (SockType::SeqPacket, SockFlag::SOCK_CLOEXEC);
    let socket = socket(AddressFamily::Unix, kind, flags, None).unwrap();
    let exchange = UnixAddr::new_abstract(&name).unwrap();
    connect(socket.as_raw_fd(), &exchange).unwrap();
    // HELLO and FETCH.
    for packet in [
        [b"\x01tple\x02", &invite[..]].concat(),
        [&[2], &segment[..]].concat(),
    ] {
        send(socket.as_raw_fd(), &packet, MsgFlags::MSG_NOSIGNAL).unwrap();
        let mut answer = [0; 256];
        let len = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty()).unwrap();
        say("answer", hex(&answer[..len]));
    }
}

#[test]
fn another_process_gets_nothing_for_what_it_has_heard() {
    let (bench, tape) = (Bench::new(), Tape::default());
    runtime().block_on(async {
        let tensor = bench.tensor(device(), &pattern(LEN, 1));
        let (_pipes, kept) = begun(&bench, &tape, &tensor).await;
        let (invite, offer) = (tape.last(INVITE), tape.last(OFFER));
        let (invite, segment) = (&invite[1..17], &offer[1..17]);
        let devices = LeaseChannel::new().devices();
        let descriptor = &devices[0].1;
        let is_name = |bytes: &[u8]| bytes == b"tensorpipe-";
        let name = descriptor.windows(11).position(is_name).unwrap();
        let known = [&descriptor[name..], invite, segment].map(hex);
        let variables = [0, 1, 2].map(|at| (CLAIMS[at], &*known[at]));
        let child = Child::start("ipc claims", &variables);
        // NONE, of both.
        for of in [invite, segment] {
            assert_eq!(child.hear("answer"), hex(&[&[5], of].concat()));
        }
        assert!(bench.download(kept.buffer()) == pattern(LEN, 1));
        drop(kept);
        comes_back(&tensor, "it is given back").await;
    });
    nothing_went_wrong();
}
