//! Lent memory stays unchanged as long as the borrower holds it, and comes back however the borrower ends.

#![allow(unsafe_code, reason = "another library's memory is an address")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::result;
use tensorpipe::conformance::device::Fixture;
use tensorpipe::conformance::pattern;
use tensorpipe::device::cuda::CudaDevices;
use tensorpipe::{Allocation, BufferMut, DType, Message, Place, Tensor};
use tensorpipe_test_cuda::{Driver, is_real};
use tensorpipe_tests::{Child, runtime};

use super::{
    BORROWS_NOTHING, LEN, URL, Writer, comes_back, has_all, is_in_use, lent, message, reader, to,
};
use crate::bench::{device, pair};
use crate::driver::nothing_went_wrong;
use crate::segments::Segments;

/// What is lent is not copied, and is not used again before it is back.
#[test]
fn what_is_lent_is_not_used_again_before_it_is_back() {
    let (child, url) = reader(&[]);
    runtime().block_on(async {
        let writer = Writer::to(&url).await;
        let mut lent_out = Vec::new();
        for seed in 0..3 {
            lent_out.push(writer.send(seed).await);
            assert_eq!(child.hear("read"), lent(seed as usize + 1));
        }
        assert_eq!(writer.pipe.stats().bytes_lent, 3 * LEN as u64);
        assert!(writer.pipe.route().to_string().contains("cuda_ipc"));
        // Nobody here has a handle on one of them, which the pool does not give out.
        drop(lent_out.pop());
        let fresh = writer.pool.stats().fresh;
        let others: Vec<_> = (0..3).map(|_| writer.pool.take(LEN).unwrap()).collect();
        assert_eq!(writer.pool.stats().fresh, fresh + 3, "none of what is lent");
        let others = others
            .into_iter()
            .map(|room| writer.bench.fixture.write(&pattern(LEN, 99), room));
        others.for_each(|buffer| drop(writer.bench.download(&buffer)));
        writer.say("look").await;
        assert_eq!(child.hear("read"), lent(3));
        assert!(lent_out.iter().all(is_in_use));
        writer.say("write").await;
        assert_eq!(child.hear("write"), "refused");
        writer.say("let go").await;
        child.hear("read");
        for memory in &lent_out {
            comes_back(memory).await;
        }
    });
    nothing_went_wrong();
}

/// Whoever reads into memory that is lent waits until it is back.
#[test]
fn what_is_lent_is_read_into_when_it_is_back() {
    for name in ["cuda_xth", "cuda_basic", "cuda_ipc"] {
        let (child, url) = reader(&[]);
        runtime().block_on(async {
            let writer = Writer::to(&url).await;
            let memory = writer.send(0).await;
            assert_eq!(child.hear("read"), lent(1));
            let (from, to) = pair(&writer.bench, name).await;
            from.send(message("m", writer.tensor(7))).unwrap();
            let room = BufferMut::from_memory(memory, LEN).ok().unwrap();
            let place = Allocation {
                tensors: vec![Place::Into(room)],
                ..Allocation::default()
            };
            let incoming = to.read_descriptor().await.unwrap();
            let mut read = std::pin::pin!(incoming.read_into(place));
            let early = tokio::time::timeout(Duration::from_millis(100), &mut read).await;
            assert!(early.is_err(), "{early:?} while it is lent");
            writer.say("look").await;
            assert_eq!(child.hear("read"), lent(1));
            writer.say("let go").await;
            child.hear("read");
            let read = tokio::time::timeout(Duration::from_secs(20), read).await;
            let read = read.expect("it is back").unwrap();
            let read = writer.bench.download(read.tensors[0].tensor.buffer());
            assert!(read == pattern(LEN, 7), "over {name}");
            // Given up while it waits: the message is skipped, and the pipe goes on.
            let memory = writer.send(0).await;
            child.hear("read");
            from.send(message("m", writer.tensor(8))).unwrap();
            from.send(Message::new("next")).unwrap();
            let room = BufferMut::from_memory(memory, LEN).ok().unwrap();
            let place = Allocation {
                tensors: vec![Place::Into(room)],
                ..Allocation::default()
            };
            let incoming = to.read_descriptor().await.unwrap();
            let read = incoming.read_into(place);
            let early = tokio::time::timeout(Duration::from_millis(5), read).await;
            assert!(early.is_err(), "{early:?} while it is lent");
            assert_eq!(&to.read().await.unwrap().metadata[..], b"next");
        });
        nothing_went_wrong();
    }
}

/// Whoever only lends has what it receives for itself, on devices and from them.
#[test]
fn whoever_borrows_nothing_has_memory_of_its_own() {
    let (child, url) = reader(&[(BORROWS_NOTHING, "1")]);
    runtime().block_on(async {
        let writer = Writer::to(&url).await;
        let memory = writer.send(0).await;
        assert_eq!(child.hear("read"), "1 of 1, 0 borrowed");
        comes_back(&memory).await;
        let main = Message::new("keep").tensor(writer.tensor(1));
        writer.pipe.write(main).await.unwrap();
        assert_eq!(child.hear("read"), "2 of 2, 0 borrowed");
    });
    nothing_went_wrong();
}

#[test]
fn what_a_reader_has_that_is_killed_comes_back() {
    let (mut child, url) = reader(&[]);
    runtime().block_on(async {
        let writer = Writer::to(&url).await;
        let memory = writer.send(0).await;
        assert_eq!(child.hear("read"), lent(1));
        assert!(is_in_use(&memory));
        child.kill();
        comes_back(&memory).await;
    });
    nothing_went_wrong();
}

#[test]
fn what_is_lent_outlives_a_writer_that_is_killed() {
    let (child, url) = reader(&[]);
    let mut writer = Child::start("ipc lends", &[(URL, &url)]);
    assert_eq!(writer.hear("lent"), (2 * LEN).to_string());
    assert_eq!(child.hear("read"), lent(1));
    assert_eq!(child.hear("read"), lent(2));
    writer.kill();
    assert_eq!(child.hear("left"), lent(2));
}

/// A tensor of another library's that lies in several physical allocations. It is read there as any other; what it is lent from is
/// opened once; and what the library maps at its addresses later is another tensor.
#[test]
fn a_tensor_over_several_physical_allocations_is_lent() {
    let (child, url) = reader(&[]);
    runtime().block_on(async {
        let writer = Writer::to(&url).await;
        let context = writer.bench.cuda.context(device()).unwrap();
        let stream = context.new_stream().unwrap();
        let segments = Segments::reserve(&context);
        let (until, mut sent) = (Instant::now() + Duration::from_secs(20), 0);
        let send = async |seed| {
            let (mapped, address) = (Arc::new(segments.map()), segments.across(LEN));
            let (bytes, known) = (pattern(LEN, seed), Arc::downgrade(&mapped));
            // SAFETY: so much is mapped there, and nobody else's.
            let queued = unsafe { result::memcpy_htod_async(address, &bytes, stream.cu_stream()) };
            queued.unwrap();
            let cuda = &writer.bench.cuda;
            // SAFETY: it is there until its owner is dropped, in the primary context, and is written by that copy alone.
            let buffer = unsafe { cuda.borrow(mapped, address, LEN, &stream) };
            let tensor = Tensor::from_buffer(buffer.unwrap(), DType::U8, [LEN as u64]);
            let message = message("keep", tensor.unwrap());
            writer.pipe.write(message).await.unwrap();
            // The library has it back, and unmaps it: other memory is mapped there next.
            while known.upgrade().is_some() {
                assert!(Instant::now() < until, "its owner is not told");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        for seed in 0..2 {
            send(seed).await;
            sent += 1;
            assert_eq!(child.hear("read"), lent(sent));
        }
        // Until a block is lent again.
        while writer.pool.stats().fresh == sent as u64 {
            assert!(Instant::now() < until, "no block is lent again");
            writer.say("let go").await;
            child.hear("read");
            send(0).await;
            sent += 1;
            let one = format!("1 of 1, {} borrowed", sent * LEN);
            assert_eq!(child.hear("read"), one);
        }
        writer.say("imports").await;
        // Beside them that of the proof. A real driver does not count.
        let opened = if is_real() {
            0
        } else {
            writer.pool.stats().fresh + 1
        };
        assert_eq!(
            child.hear("imports"),
            opened.to_string(),
            "each is opened once"
        );
        assert_eq!(writer.pipe.stats().bytes_lent, (sent * LEN) as u64);
    });
    nothing_went_wrong();
}

/// Main memory that the writer has lent is read by the reader's device where it lies: it is registered there, as what may not be written.
#[test]
fn main_memory_that_is_lent_is_registered_with_its_reader_s_driver() {
    let (child, url) = reader(&[]);
    runtime().block_on(async {
        let writer = Writer::to(&url).await;
        for seed in 0..3 {
            let mut tensor = writer.main.tensor(DType::U8, [LEN as u64]).unwrap();
            tensor
                .make_mut::<u8>()
                .unwrap()
                .copy_from_slice(&pattern(LEN, seed));
            writer.pipe.write(message("keep", tensor)).await.unwrap();
            has_all(&child, seed + 1, "");
        }
        writer.say("registrations").await;
        let heard = child.hear("registrations");
        let [all, read_only] = &heard[1..heard.len() - 1].split(", ").collect::<Vec<_>>()[..]
        else {
            panic!("{heard}");
        };
        assert!(all == read_only && *all != "0", "all, read-only: {heard}");
        let route = writer.pipe.route();
        let carried = |name: &str| {
            let channel = route.channels.iter().find(|one| one.name == name);
            channel.unwrap().carried.bytes()
        };
        assert_eq!(carried("cuda_basic+lease"), 3 * LEN as u64);
    });
    nothing_went_wrong();
}

/// To another device of the machine it is copied there, by way of main memory where the one does not reach the other.
#[test]
fn to_another_device_of_the_driver_s_it_is_copied_once() {
    for (peers, is_direct) in [("", false), ("0-1,1-0", true)] {
        let (child, url) = reader(&[("TEST_CUDA_PEERS", peers)]);
        runtime().block_on(async {
            let writer = Writer::to(&url).await;
            let zero = CudaDevices::device(0);
            for seed in 0..2 {
                let tensor = writer.tensor(seed);
                assert_eq!(tensor.device(), CudaDevices::device(1));
                let memory = tensor.buffer().memory().clone();
                writer.pipe.write(to(zero, "keep", tensor)).await.unwrap();
                assert_eq!(
                    child.hear("read"),
                    format!("{0} of {0}, 0 borrowed", seed + 1)
                );
                comes_back(&memory).await;
            }
            writer.say("where").await;
            assert_eq!(child.hear("where"), format!("{zero} {zero}"));
            writer.say("detours").await;
            let detours: u64 = child.hear("detours").parse().unwrap();
            assert_eq!(detours == 0, is_direct, "{detours} by way of main memory");
            let route = writer.pipe.route();
            let of_ipc = route.channels.iter().find(|one| one.name == "cuda_ipc");
            assert_eq!(of_ipc.unwrap().carried.bytes(), 2 * LEN as u64);
            assert_eq!(writer.pipe.stats().bytes_diverted, 0);
        });
        nothing_went_wrong();
    }
}

/// Devices are the same by who they are, not by their number: the reader has them in another order.
#[test]
fn whoever_counts_devices_of_the_driver_otherwise_borrows_of_the_same_ones() {
    let (child, url) = reader(&[("TEST_CUDA_ORDER", "1,0")]);
    runtime().block_on(async {
        let writer = Writer::to(&url).await;
        let (zero, one) = (CudaDevices::device(0), CudaDevices::device(1));
        // Its own second device is the reader's first.
        let lent = writer.tensor(0);
        assert_eq!(lent.device(), one);
        writer.pipe.write(to(zero, "keep", lent)).await.unwrap();
        assert_eq!(child.hear("read"), format!("1 of 1, {LEN} borrowed"));
        // To the other one it is copied.
        let copied = to(one, "keep", writer.tensor(1));
        writer.pipe.write(copied).await.unwrap();
        assert_eq!(child.hear("read"), format!("2 of 2, {LEN} borrowed"));
        writer.say("where").await;
        assert_eq!(child.hear("where"), format!("{zero} {one}"));
        assert_eq!(writer.pipe.stats().bytes_diverted, 0);
    });
    nothing_went_wrong();
}

/// On a device that is full but for what was lent and is back, which its reader lets go of a moment later.
pub(crate) fn fills() {
    const HALF: usize = 32 << 20;
    let url = std::env::var(URL).unwrap();
    runtime().block_on(async {
        let writer = Writer::to(&url).await;
        for round in 1..=2 {
            let room = writer.pool.take(HALF).unwrap();
            let buffer = writer.bench.fixture.write(&vec![1; HALF], room);
            let memory = buffer.memory().clone();
            let tensor = Tensor::from_buffer(buffer, DType::U8, [HALF as u64]).unwrap();
            writer.pipe.write(message("keep", tensor)).await.unwrap();
            assert_eq!(writer.pipe.stats().bytes_lent, round * HALF as u64);
            writer.say("let go").await;
            comes_back(&memory).await;
            drop(memory);
            let more = writer.pool.take(HALF / 2 * 3);
            drop(more.unwrap_or_else(|error| panic!("in round {round}: {error}")));
        }
    });
}

#[test]
fn what_was_lent_of_this_driver_s_full_device_is_there_for_the_next() {
    let driver = Driver::load();
    let shared = driver.shared();
    let size = ("TEST_CUDA_MEMORY", "67108864");
    let shared = ("TEST_CUDA_SHARED", shared.to_str().unwrap());
    let (_reader, url) = reader(&[size, shared]);
    let writer = crate::play(&driver, "ipc fills", &[size, shared, (URL, &url)]);
    crate::ends_well(&writer, "ipc fills");
}

#[test]
fn all_tensors_of_a_first_message_are_lent() {
    let (child, url) = reader(&[]);
    runtime().block_on(async {
        let writer = Writer::to(&url).await;
        writer.send_all(0..4).await;
        assert_eq!(child.hear("read"), lent(4));
        assert_eq!(writer.pipe.stats().bytes_lent, 4 * LEN as u64);
    });
    nothing_went_wrong();
}
