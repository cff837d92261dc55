//! A reader reads passed memory only after the proof that it belongs to the peer. If the proof fails, tensors go another way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tensorpipe::conformance::pattern;
use tensorpipe::{ContextBuilder, DeviceKind, Error, Misuse};
use tensorpipe_tests::{Child, runtime};

use super::{LEN, TENSORS, URL, Writer, comes_back, has_all, lent, message, reader};
use crate::bench::{Bench, channel, connected, context, context_told, device, moved, pair};
use crate::driver::nothing_went_wrong;

/// Longer than a writer waits before it asks for another proof.
const PAUSE: Duration = Duration::from_secs(6);

/// Copies as long as a proof's number fail.
const NO_NUMBERS: (&str, &str) = ("TEST_CUDA_LOSES", "16");

/// Where that is required it does not go another way, whenever that is found out.
#[test]
fn without_descriptors_what_is_required_is_an_error() {
    let (_child, url) = reader(&[("TEST_CUDA_REFUSES", "cuMemImportFromShareableHandle")]);
    runtime().block_on(async {
        let strict = |builder: ContextBuilder| builder.require(DeviceKind::CUDA, ["cuda_ipc"]);
        let writer = Writer::with(&url, strict).await;
        for seed in 0..2 {
            let tensor = writer.tensor(seed);
            let refused = writer.pipe.write(message("keep", tensor)).await;
            let refused = refused.unwrap_err();
            let is_typed = matches!(refused, Error::Misuse(Misuse::NotAsRequired { .. }));
            assert!(is_typed, "{refused}");
        }
        let stats = writer.pipe.stats();
        assert!(
            stats.bytes_out < 10_000 && stats.bytes_diverted == 0,
            "{stats:?}"
        );
    });
}

/// The same of one message: the first finds it out, the next knows. Others go as they can.
#[test]
fn without_descriptors_what_one_message_requires_is_an_error() {
    let (child, url) = reader(&[("TEST_CUDA_REFUSES", "cuMemImportFromShareableHandle")]);
    runtime().block_on(async {
        let writer = Writer::to(&url).await;
        for seed in 0..2 {
            let message = message("keep", writer.tensor(seed)).require(["cuda_ipc"]);
            let refused = writer.pipe.write(message).await.unwrap_err();
            let Error::Misuse(Misuse::NotAsRequired {
                what,
                instead,
                reason,
                ..
            }) = &refused
            else {
                panic!("{refused:?}");
            };
            assert!(
                what.starts_with("tensor 0") && instead.starts_with("cuda_basic"),
                "{refused}"
            );
            assert!(
                reason.contains("cuMemImportFromShareableHandle"),
                "{refused}"
            );
        }
        assert!(writer.pipe.stats().bytes_out < 10_000);
        writer.send(0).await;
        has_all(&child, 1, "");
    });
}

/// A driver that passes no memory to other processes: it goes by way of main memory, and the route says why.
#[test]
fn without_descriptors_it_goes_by_way_of_main_memory() {
    let (child, url) = reader(&[("TEST_CUDA_REFUSES", "cuMemImportFromShareableHandle")]);
    runtime().block_on(async {
        let writer = Writer::to(&url).await;
        for count in 1..3 {
            let memory = writer.send(count - 1).await;
            has_all(&child, count, " cannot import");
            comes_back(&memory).await;
        }
        // The first one was tried, the next one is not.
        assert_eq!(writer.pipe.stats().bytes_diverted, LEN as u64);
        let route = writer.pipe.route();
        let of_ipc = route.channels.iter().find(|one| one.name == "cuda_ipc");
        let diverted = of_ipc.unwrap().diverted.all();
        let [one] = &diverted[..] else {
            panic!("{diverted:?}");
        };
        assert_eq!(
            (&*one.over, one.parts, one.bytes),
            ("cuda_basic", 1, LEN as u64)
        );
        let why = "cuMemImportFromShareableHandle";
        assert!(one.reason.contains(why), "{one}");
        let route = route.to_string();
        assert!(route.contains(&one.to_string()), "{route}");
    });
    nothing_went_wrong();
}

/// A driver that opens other memory than the peer's: nothing is read there but the number that it does not hold.
#[test]
fn what_opens_and_holds_another_value_is_not_used() {
    let (child, url) = reader(&[("TEST_CUDA_SWAPS", "cuMemImportFromShareableHandle")]);
    runtime().block_on(async {
        let writer = Writer::to(&url).await;
        for count in 1..3 {
            let memory = writer.send(count - 1).await;
            has_all(&child, count, " other memory");
            comes_back(&memory).await;
        }
        // The first one was tried, the next one is not.
        assert_eq!(writer.pipe.stats().bytes_diverted, LEN as u64);
        let route = writer.pipe.route().to_string();
        assert!(
            route.contains("sends nothing: what was opened is not the peer's"),
            "{route}"
        );
    });
    nothing_went_wrong();
}

/// The reader is asked for the number when that is there, however late the writer's devices are.
#[test]
fn a_number_is_read_when_it_is_there() {
    let (child, url) = reader(&[]);
    let late = ("TEST_CUDA_DELAY_US", "300000");
    let writer = Child::start("ipc lends", &[(URL, &url), late]);
    assert_eq!(writer.hear("lent"), (2 * LEN).to_string());
    assert_eq!(child.hear("read"), lent(1));
    assert_eq!(child.hear("read"), lent(2));
}

/// The same of a peer that passes other memory than it says.
#[test]
fn a_peer_that_passes_other_memory_than_it_says_lends_nothing() {
    let (child, url) = reader(&[]);
    let lies = ("TEST_CUDA_SWAPS", "cuMemExportToShareableHandle");
    let writer = Child::start("ipc lends", &[(URL, &url), lies]);
    let route = writer.hear("route");
    assert!(
        route.contains("sends nothing: what was opened is not the peer's"),
        "{route}"
    );
    for count in 1..3 {
        has_all(&child, count, " other memory");
    }
}

/// Where the writer's number does not get to its device, its tensors go another way. After three it tries no more, and says so.
#[test]
fn a_number_that_cannot_be_written_keeps_no_tensor_back_and_the_third_is_the_last() {
    for (tensors, gives_up) in [("2", false), ("4", true)] {
        let (child, url) = reader(&[]);
        let variables = [(URL, &*url), NO_NUMBERS, (TENSORS, tensors)];
        let writer = Child::start("ipc lends", &variables);
        for count in 1..=tensors.parse().unwrap() {
            let heard = child.hear("read");
            let whole = format!("{count} of {count}, ");
            assert!(heard.starts_with(&whole), "{heard}");
            assert!(
                count > 3 || heard == format!("{whole}0 borrowed"),
                "{heard}"
            );
        }
        let route = writer.hear("route");
        let why = "sends nothing: 3 proofs for the peer came to nothing";
        assert_eq!(route.contains(why), gives_up, "{route}");
    }
}

/// A number that cannot be read is not asked for again and again: one proof serves all tensors of a message, and the third is the last.
#[test]
fn a_number_that_cannot_be_read_keeps_no_tensor_back_and_the_third_is_the_last() {
    let (child, url) = reader(&[NO_NUMBERS]);
    runtime().block_on(async {
        let writer = Writer::to(&url).await;
        let mut diverted = Vec::new();
        for seeds in [0..4, 4..5, 5..6, 6..7] {
            let count = seeds.end;
            if (5..7).contains(&count) {
                tokio::time::sleep(PAUSE).await;
            }
            writer.send_all(seeds).await;
            has_all(&child, count, "");
            diverted.push(writer.pipe.stats().bytes_diverted / LEN as u64);
        }
        // The last one was not tried.
        assert_eq!(diverted, [4, 5, 6, 6]);
        let route = writer.pipe.route().to_string();
        let why = "sends nothing: 3 proofs of the peer's memory could not be read";
        assert!(route.contains(why), "{route}");
    });
    nothing_went_wrong();
}

#[test]
fn a_reader_that_can_never_prove_anything_just_then_is_asked_three_times_and_not_at_once() {
    let bench = Bench::new();
    let asked = Arc::new(AtomicUsize::new(0));
    runtime().block_on(async {
        let counts = asked.clone();
        // As docs/WIRE.md says: to prove something. It hears that it cannot be lent.
        let never = context_told(&bench, "cuda_ipc", move |body, _| match body[0] {
            19 => {
                counts.fetch_add(1, Ordering::Relaxed);
                Some(vec![18])
            }
            _ => Some(body.to_vec()),
        });
        let near = context(&bench, channel("cuda_ipc", &bench.cuda));
        let pipes = connected(&near, &never).await;
        let begun = Instant::now();
        let sent = async || {
            let tensor = bench.tensor(device(), &pattern(LEN, 1));
            let read = moved(&pipes, message("m", tensor)).await;
            assert!(bench.download(read.tensors[0].tensor.buffer()) == pattern(LEN, 1));
        };
        let why = "sends nothing: 3 proofs for the peer came to nothing: the peer could not";
        while !pipes.0.route().to_string().contains(why) {
            assert!(begun.elapsed() < 6 * PAUSE, "{}", pipes.0.route());
            sent().await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(begun.elapsed() > PAUSE, "{:?}", begun.elapsed());
        sent().await;
        assert_eq!(asked.load(Ordering::Relaxed), 3);
    });
    nothing_went_wrong();
}

/// The reader of the first tensor goes, at whatever step of its proof: the second one does not wait for that.
#[test]
fn a_proof_that_is_given_up_is_made_for_the_next() {
    let bench = Bench::new();
    runtime().block_on(async {
        for round in 0..25 {
            let (client, server) = pair(&bench, "cuda_ipc").await;
            for seed in 0..2 {
                let tensor = bench.tensor(device(), &pattern(LEN, seed));
                client.send(message("m", tensor)).unwrap();
            }
            let first = server.read_descriptor().await.unwrap();
            let first = tokio::spawn(first.read());
            let second = server.read_descriptor().await.unwrap();
            let second = tokio::spawn(second.read());
            tokio::time::sleep(Duration::from_micros(200 * round)).await;
            first.abort();
            let second = tokio::time::timeout(Duration::from_secs(20), second).await;
            let second = second.expect("it goes on").unwrap().unwrap();
            let read = bench.download(second.tensors[0].tensor.buffer());
            assert!(read == pattern(LEN, 1), "round {round}");
            assert_eq!(client.stats().bytes_diverted, 0, "round {round}");
        }
    });
    nothing_went_wrong();
}
