//! Hostile device lanes. The honest end checks the lengths, offsets, devices, allocations and steps that they send. It gets the
//! bytes another way, or ends the pipe with the peer's fault. It touches no memory that it was not given, and lent memory comes
//! back.

use std::time::Duration;

use tensorpipe::conformance::pattern;
use tensorpipe::{DType, Error, Message, MessageTensor, PeerFault, Pipe, Tensor};
use tensorpipe_test_cuda::is_real;
use tensorpipe_tests::{eventually, soon};

use crate::bench::{Bench, channel, connected, context, context_told, device, moved};
use crate::driver::{fails, longest_pinned, nothing_went_wrong};
use crate::foreign::Library;

/// A block of the allocator's own has as many, or a little more.
const LEN: usize = 3_000_000;

/// What a lane makes of something that it hears, whose first byte says what it is.
#[derive(Clone, Copy)]
enum Does {
    /// It hears something else.
    Hears(fn(&mut Vec<u8>)),
    /// It does not hear it, and this is answered.
    Answers(&'static [u8]),
}

#[derive(Clone, Copy)]
struct Lie {
    about: u8,
    does: Does,
}

impl Lie {
    fn hears(self, body: &[u8], answer: &mut dyn FnMut(&[u8])) -> Option<Vec<u8>> {
        let mut heard = body.to_vec();
        if body.first() == Some(&self.about) {
            match self.does {
                Does::Hears(change) => change(&mut heard),
                Does::Answers(words) => {
                    answer(words);
                    return None;
                }
            }
        }
        Some(heard)
    }
}

/// A pipe from a writer to a reader, of which one is told lies.
async fn pipes(
    bench: &Bench,
    name: &str,
    writer: Option<Lie>,
    reader: Option<Lie>,
) -> (Pipe, Pipe) {
    let context = |lie: Option<Lie>| match lie {
        Some(lie) => context_told(bench, name, move |body, answer| lie.hears(body, answer)),
        None => context(bench, channel(name, &bench.cuda)),
    };
    connected(&context(writer), &context(reader)).await
}

fn message(tensor: &Tensor) -> Message {
    let tensor = MessageTensor::from(tensor.clone());
    Message::new("m").tensor(tensor.to_device(device()))
}

/// Whether an error is the peer's fault about this channel, in such words.
pub(crate) fn is_fault(error: &Error, name: &str, word: &str) -> bool {
    let Error::Peer { fault, .. } = error else {
        return false;
    };
    matches!(fault, PeerFault::Channel { channel, what } if *channel == name && what.contains(word))
}

/// What a reader makes of a writer that lies.
#[derive(Clone, Copy, Debug)]
enum Ends {
    /// The pipe ends, for this reason.
    Fault(&'static str),
    /// The bytes come another way.
    Detour,
}

use Ends::{Detour, Fault};

/// Puts a number there.
fn put<const N: usize>(body: &mut [u8], at: usize, value: [u8; N]) {
    body[at..at + N].copy_from_slice(&value);
}

const OFFER: u8 = 16;
const INVITE: u8 = 17;
const PROVE: u8 = 19;
const SPANNING: u8 = 20;

/// Where the fields of an offer begin.
const SEGMENT: usize = 1;
const OFFSET: usize = 17;
const LENGTH: usize = 25;
const SLOT: usize = 33;
const GENERATION: usize = 37;
const UUID: usize = 49;
const ALL: usize = 65;
const BEHIND: usize = 73;

type Row = (&'static str, u8, fn(&mut Vec<u8>), Ends);

const OF_OFFERS: [Row; 17] = [
    (
        "a length of its own",
        OFFER,
        |o| put(o, LENGTH, 9u64.to_le_bytes()),
        Fault("bytes at"),
    ),
    (
        "beyond its allocation",
        OFFER,
        |o| put(o, OFFSET, (4u64 << 20).to_le_bytes()),
        Fault("bytes at"),
    ),
    (
        "beyond all addresses",
        OFFER,
        |o| put(o, OFFSET, u64::MAX.to_le_bytes()),
        Fault("bytes at"),
    ),
    (
        "a slot that no ledger has",
        OFFER,
        |o| put(o, SLOT, (1u32 << 20).to_le_bytes()),
        Fault("no sense"),
    ),
    (
        "a loan that was never made",
        OFFER,
        |o| put(o, GENERATION, 400u32.to_le_bytes()),
        Detour,
    ),
    (
        "a device that nobody has",
        OFFER,
        |o| put(o, UUID, [99; 16]),
        Detour,
    ),
    (
        "a device without a proof",
        OFFER,
        |o| put(o, UUID, [1; 16]),
        Fault("without a proof"),
    ),
    (
        "an allocation that was not passed",
        OFFER,
        |o| put(o, SEGMENT, [7; 16]),
        Detour,
    ),
    (
        "an allocation of no bytes",
        OFFER,
        |o| put(o, ALL, [0; 8]),
        Detour,
    ),
    (
        "more than there is",
        OFFER,
        |o| put(o, ALL, (1u64 << 40).to_le_bytes()),
        Detour,
    ),
    (
        "more than can be",
        OFFER,
        |o| put(o, ALL, u64::MAX.to_le_bytes()),
        Detour,
    ),
    (
        "less than half an offer",
        OFFER,
        |o| o.truncate(40),
        Fault("no sense"),
    ),
    ("a byte too many", OFFER, |o| o.push(0), Fault("no sense")),
    (
        "a number of no bytes",
        OFFER,
        |o| o[0] = PROVE,
        Fault("no sense"),
    ),
    ("what nobody knows", OFFER, |o| o[0] = 99, Fault("no sense")),
    ("nothing", OFFER, |o| o.clear(), Fault("no sense")),
    (
        "an invitation of another's",
        INVITE,
        |o| put(o, 1, [7; 16]),
        Detour,
    ),
];

const OF_PROOFS: [Row; 4] = [
    (
        "an offer instead",
        PROVE,
        |o| {
            o[0] = OFFER;
            o.truncate(BEHIND);
        },
        Fault("without a proof"),
    ),
    ("another number", PROVE, |o| put(o, BEHIND, [7; 16]), Detour),
    (
        "memory for another length",
        PROVE,
        |o| put(o, LENGTH, 17u64.to_le_bytes()),
        Fault("bytes at"),
    ),
    (
        "a device that nobody has",
        PROVE,
        |o| put(o, UUID, [99; 16]),
        Detour,
    ),
];

const OF_SPANS: [Row; 7] = [
    (
        "an allocation that was not passed",
        SPANNING,
        |o| put(o, BEHIND, [7; 16]),
        Detour,
    ),
    (
        "more than there is",
        SPANNING,
        |o| put(o, BEHIND + 16, (1u64 << 40).to_le_bytes()),
        Detour,
    ),
    (
        "more than can be",
        SPANNING,
        |o| put(o, BEHIND + 16, u64::MAX.to_le_bytes()),
        Detour,
    ),
    (
        "beyond all of them",
        SPANNING,
        |o| put(o, OFFSET, (6u64 << 20).to_le_bytes()),
        Fault("bytes at"),
    ),
    (
        "more than may be",
        SPANNING,
        |o| o.extend([7; 62 * 24]),
        Fault("no sense"),
    ),
    (
        "none behind",
        SPANNING,
        |o| o.truncate(BEHIND),
        Fault("no sense"),
    ),
    (
        "the first one for all",
        SPANNING,
        |o| {
            o[0] = OFFER;
            o.truncate(BEHIND);
        },
        Fault("bytes at"),
    ),
];

/// A tensor of the writer's own, or of another library's that spans three allocations.
fn source(bench: &Bench, spans: bool) -> Tensor {
    match spans {
        true => Library::of(bench, &[true; 3]).tensor(&pattern(LEN, 1)).0,
        false => bench.tensor(device(), &pattern(LEN, 1)),
    }
}

pub(crate) async fn comes_back(tensor: &Tensor, row: &str) {
    let work = tensor.buffer().memory().work().expect("it keeps fences");
    eventually(row, || work.unfinished().is_empty()).await;
}

/// Returns what was sent. As long as that is there, the next one is in another allocation: what the reader knows of one is compared with the
/// lie before anything else is.
async fn reads(bench: &Bench, (row, about, change, ends): Row) -> Tensor {
    let does = Does::Hears(change);
    let (writer, reader) = pipes(bench, "cuda_ipc", None, Some(Lie { about, does })).await;
    let tensor = source(bench, about == SPANNING);
    writer.send(message(&tensor)).unwrap();
    match ends {
        Fault(word) => {
            let error = soon(row, reader.read()).await.expect_err(row);
            assert!(is_fault(&error, "cuda_ipc", word), "{row}: {error}");
        }
        Detour => {
            let read = soon(row, reader.read()).await;
            let read = read.unwrap_or_else(|error| panic!("{row}: {error}"));
            let found = bench.download(read.tensors[0].tensor.buffer());
            assert!(found == pattern(LEN, 1), "{row}");
            assert_eq!(reader.stats().bytes_borrowed, 0, "{row}");
        }
    }
    comes_back(&tensor, row).await;
    tensor
}

#[tokio::test]
async fn what_a_writer_says_of_its_memory_is_not_believed() {
    let bench = Bench::new();
    // It takes a second one that nothing is proved of, by the number that the driver for tests gives it.
    let has_another = bench.cuda.devices().len() > 1 && !is_real();
    let mut sent = Vec::new();
    for row in OF_OFFERS.into_iter().chain(OF_PROOFS) {
        if row.0 == "a device without a proof" && !has_another {
            println!("skipped: {}", row.0);
            continue;
        }
        sent.push(reads(&bench, row).await);
    }
    nothing_went_wrong();
}

#[tokio::test]
async fn what_a_writer_says_of_allocations_side_by_side_is_not_believed() {
    let (bench, mut sent) = (Bench::new(), Vec::new());
    for row in OF_SPANS {
        sent.push(reads(&bench, row).await);
    }
    nothing_went_wrong();
}

/// Where nothing is taken any more nothing is fetched, whatever else is offered: its descriptor would be kept.
pub(crate) async fn fetched_no_more() {
    /// An allocation of its own, that goes by way of main memory in a few pieces.
    const LEN: usize = 1_500_000;
    const DETOUR: u8 = 18;
    const DETOUR_ALWAYS: u8 = 19;
    let bench = Bench::new();
    let nothing = Lie {
        about: OFFER,
        does: Does::Hears(|o| put(o, ALL, [0; 8])),
    };
    // Its writer does not hear that it never will be.
    let deaf = Lie {
        about: DETOUR_ALWAYS,
        does: Does::Hears(|o| *o = vec![DETOUR]),
    };
    let pipes = pipes(&bench, "cuda_ipc", Some(deaf), Some(nothing)).await;
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let tensors = [(); 4].map(|()| bench.tensor(device(), &pattern(LEN, 1)));
    let mut before = 0;
    for (number, tensor) in tensors.iter().enumerate() {
        let read = moved(&pipes, message(tensor)).await;
        let found = bench.download(read.tensors[0].tensor.buffer());
        assert!(found == pattern(LEN, 1), "{number}");
        match number {
            // The first one is fetched, and what goes another way finds everything warm from then on.
            0 => {
                tokio::time::sleep(Duration::from_millis(100)).await;
                before = open();
            }
            // The writer has a descriptor for it.
            _ => eventually("it is not fetched", || open() <= before + number).await,
        }
    }
    let route = pipes.1.route().to_string();
    assert!(route.contains("cuMemMap"), "{route}");
    nothing_went_wrong();
}

const TAKEN: &[u8] = &[16];
const CAME: &[u8] = &[17];
const PROVED: &[u8] = &[20];

/// What a reader says to something without doing it, and of what its writer complains.
const OF_READERS: [(u8, &[u8], &str); 12] = [
    (OFFER, TAKEN, "has what it has not"),
    (OFFER, PROVED, "has what it has not"),
    (OFFER, CAME, "out of turn"),
    (OFFER, &[], "no sense"),
    (OFFER, &[99], "no sense"),
    (OFFER, &[16, 0], "no sense"),
    (OFFER, &[19; 502], "no sense"),
    (PROVE, PROVED, "has what it has not"),
    (PROVE, TAKEN, "has what it has not"),
    (PROVE, CAME, "out of turn"),
    (INVITE, CAME, "nobody has come"),
    (INVITE, TAKEN, "out of turn"),
];

#[tokio::test]
async fn a_reader_that_says_what_it_has_not_done_gets_nothing_and_what_was_lent_comes_back() {
    let bench = Bench::new();
    for (about, words, word) in OF_READERS {
        let row = format!("{words:?} to {about}");
        let does = Does::Answers(words);
        let (writer, reader) = pipes(&bench, "cuda_ipc", None, Some(Lie { about, does })).await;
        let tensor = source(&bench, false);
        let read = tokio::spawn(async move { reader.read().await });
        let error = soon(&row, writer.write(message(&tensor))).await;
        let error = error.expect_err(&row);
        assert!(is_fault(&error, "cuda_ipc", word), "{row}: {error}");
        assert!(soon(&row, read).await.unwrap().is_err(), "{row}");
        comes_back(&tensor, &row).await;
    }
    nothing_went_wrong();
}

/// What is said of pieces to the writer of a tensor that goes by way of main memory.
#[tokio::test]
async fn what_a_reader_says_of_pieces_is_not_believed() {
    const BEGIN: u8 = 1;
    const ALLOW: u8 = 2;
    type Row = (u8, fn(&mut Vec<u8>), &'static str);
    const ROWS: [Row; 7] = [
        (BEGIN, |o| put(o, 1, [0; 8]), "pieces of 0 bytes"),
        (
            BEGIN,
            |o| put(o, 1, 1000u64.to_le_bytes()),
            "pieces of 1000 bytes",
        ),
        (BEGIN, |o| o.truncate(10), "says nothing"),
        (BEGIN, |o| o.push(0), "says nothing"),
        (BEGIN, |o| o[0] = 3, "says nothing"),
        (
            BEGIN,
            |o| {
                o.drain(1..9);
                o[0] = ALLOW;
            },
            "out of turn",
        ),
        (BEGIN, |o| o.clear(), "says nothing"),
    ];
    let bench = Bench::new();
    for (about, change, word) in ROWS {
        let does = Does::Hears(change);
        let (writer, reader) = pipes(&bench, "cuda_basic", Some(Lie { about, does }), None).await;
        let tensor = source(&bench, false);
        let read = tokio::spawn(async move { reader.read().await });
        let error = soon(word, writer.write(message(&tensor))).await;
        let error = error.expect_err(word);
        assert!(is_fault(&error, "cuda_basic", word), "{word}: {error}");
        assert!(soon(word, read).await.unwrap().is_err(), "{word}");
        comes_back(&tensor, word).await;
    }
    nothing_went_wrong();
}

/// A reader that asks for a long tensor in one piece, over a channel that copies pieces anyway.
pub(crate) async fn asks_for_all() {
    const LONG: usize = 40 << 20;
    let bench = Bench::new();
    let does = Does::Hears(|o| {
        put(o, 1, u64::MAX.to_le_bytes());
        put(o, 9, 1u16.to_le_bytes());
    });
    let lie = Lie { about: 1, does };
    // All memory for pieces is the driver's then.
    fails("cuMemHostRegister:1+:801");
    let (writer, reader) = pipes(&bench, "cuda_basic", Some(lie), None).await;
    let buffer = bench.room(device(), LONG).freeze();
    let tensor = Tensor::from_buffer(buffer, DType::U8, [LONG as u64]).unwrap();
    let read = tokio::spawn(async move { reader.read().await });
    let error = soon("an end", writer.write(message(&tensor))).await;
    let longest = longest_pinned();
    assert!(longest <= 16 << 20, "{longest} bytes are pinned for it");
    let error = error.expect_err("a fault");
    assert!(is_fault(&error, "cuda_basic", "pieces of"), "{error}");
    assert!(soon("an end", read).await.unwrap().is_err());
    nothing_went_wrong();
}
