//! Memory of another library's that other processes may map, also one range of addresses over several physical allocations. It is
//! lent as it is, and stays its owner's until it is back.

#![allow(unsafe_code, reason = "another library's memory is an address")]

use std::sync::{Arc, Weak};
use std::time::Duration;

use cudarc::driver::{CudaStream, result};
use tensorpipe::conformance::pattern;
use tensorpipe::{Context, DType, Message, MessageTensor, Pipe, Tensor};
use tensorpipe_test_cuda::is_real;
use tensorpipe_tests::{Child, eventually, runtime, say, soon};

use crate::bench::{Bench, device, moved, pair};
use crate::driver::{handles, imports, nothing_went_wrong};
use crate::segments::{Mapped, Segments};

/// As `ipc::reads` has them.
const LEN: usize = 3_000_000;

const URL: &str = "TEST_CUDA_URL";

/// Another library.
pub(crate) struct Library {
    bench: Bench,
    stream: Arc<CudaStream>,
    segments: Arc<Segments>,
}

impl Library {
    /// Whether other processes may map each of its allocations.
    pub(crate) fn of(bench: &Bench, passed: &[bool]) -> Self {
        let context = bench.cuda.context(device()).unwrap();
        Self {
            bench: bench.clone(),
            stream: context.new_stream().unwrap(),
            segments: Segments::of(&context, passed),
        }
    }

    /// A tensor over memory that nobody has had, and what is dropped with its last holder.
    pub(crate) fn tensor(&self, bytes: &[u8]) -> (Tensor, Weak<Mapped>) {
        let mapped = Arc::new(self.segments.map());
        let address = self.segments.across(bytes.len());
        (self.at(&mapped, address, bytes), Arc::downgrade(&mapped))
    }

    /// A tensor over what is mapped, at an address.
    fn at(&self, mapped: &Arc<Mapped>, address: u64, bytes: &[u8]) -> Tensor {
        let len = bytes.len();
        let stream = self.stream.cu_stream();
        self.stream.context().bind_to_thread().unwrap();
        // SAFETY: so much is mapped there, and nobody else's.
        let queued = unsafe { result::memcpy_htod_async(address, bytes, stream) };
        queued.unwrap();
        let (cuda, owner) = (&self.bench.cuda, mapped.clone());
        // SAFETY: it is there until its owner is dropped, in the primary context, and is written by that copy alone.
        let buffer = unsafe { cuda.borrow(owner, address, len, &self.stream) };
        Tensor::from_buffer(buffer.unwrap(), DType::U8, [len as u64]).unwrap()
    }
}

fn message(what: &'static str, tensor: Tensor) -> Message {
    Message::new(what).tensor(MessageTensor::from(tensor).to_device(device()))
}

fn lent(count: usize, borrowed: usize) -> String {
    format!("{count} of {count}, {} borrowed", borrowed * LEN)
}

async fn connected(bench: &Bench, child: &Child) -> Pipe {
    let context = Context::builder().cuda(&bench.cuda).build().unwrap();
    context.connect(child.hear("url")).await.unwrap()
}

async fn ends(owner: &Weak<Mapped>) {
    eventually("its owner is told", || owner.upgrade().is_none()).await;
}

#[test]
fn it_is_lent_without_a_copy_opened_once_and_its_owner_is_told_when_it_is_back() {
    let child = Child::start("ipc reads", &[]);
    let bench = Bench::new();
    runtime().block_on(async {
        let pipe = connected(&bench, &child).await;
        let library = Library::of(&bench, &[true; 3]);
        let mapped = Arc::new(library.segments.map());
        let start = library.segments.across(library.segments.len());
        // They have the allocation in the middle in common.
        for seed in 0..2 {
            let address = start + seed * LEN as u64;
            let tensor = library.at(&mapped, address, &pattern(LEN, seed));
            pipe.write(message("keep", tensor)).await.unwrap();
            let count = seed as usize + 1;
            assert_eq!(child.hear("read"), lent(count, count));
        }
        let stats = pipe.stats();
        assert_eq!((stats.bytes_lent, stats.bytes_copied), (2 * LEN as u64, 0));
        pipe.write(Message::new("imports")).await.unwrap();
        // Beside them that of the proof. A real driver does not count.
        let opened = if is_real() { 0 } else { 3 + 1 };
        assert_eq!(child.hear("imports"), opened.to_string());
        let owner = Arc::downgrade(&mapped);
        drop(mapped);
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(owner.upgrade().is_some(), "it is lent");
        pipe.write(Message::new("let go")).await.unwrap();
        child.hear("read");
        ends(&owner).await;
    });
    nothing_went_wrong();
}

/// What is borrowed, and comes back as another library's memory, is copied before it is lent on: its lender cannot know of a second reader.
pub(crate) fn borrowed_goes_on() {
    let bench = Bench::new();
    runtime().block_on(async {
        let pipes = pair(&bench, "cuda_ipc").await;
        let tensor = bench.tensor(device(), &pattern(LEN, 1));
        let read = moved(&pipes, message("m", tensor)).await;
        let borrowed = read.tensors[0].tensor.clone();
        let stats = pipes.0.stats();
        assert_eq!((stats.bytes_lent, stats.bytes_copied), (LEN as u64, 0));
        let stream = bench.cuda.context(device()).unwrap().new_stream().unwrap();
        let reads = bench.cuda.read(borrowed.buffer(), &stream).unwrap();
        let address = reads.address();
        drop(reads);
        // SAFETY: the loan is its owner, and nobody writes there.
        let again = unsafe { bench.cuda.borrow(borrowed, address, LEN, &stream) };
        let again = Tensor::from_buffer(again.unwrap(), DType::U8, [LEN as u64]).unwrap();
        let on = moved(&pipes, message("m", again)).await;
        let found = bench.download(on.tensors[0].tensor.buffer());
        assert!(found == pattern(LEN, 1));
        let stats = pipes.0.stats();
        assert_eq!(stats.bytes_copied, LEN as u64, "it is lent on");
    });
}

/// Both ends in one process, whose handles are counted.
pub(crate) fn goes() {
    let bench = Bench::new();
    runtime().block_on(async {
        let pipes = pair(&bench, "cuda_ipc").await;
        let first = bench.tensor(device(), &pattern(LEN, 1));
        drop(moved(&pipes, message("m", first)).await);
        let before = handles();
        let library = Library::of(&bench, &[true; 3]);
        let mapped = Arc::new(library.segments.map());
        let bytes = pattern(library.segments.len(), 2);
        let tensor = || library.at(&mapped, library.segments.across(bytes.len()), &bytes);
        let mut kept = Vec::new();
        for _ in 0..2 {
            kept.push(moved(&pipes, message("m", tensor())).await);
            // The proof's, these, and the first one's. A real driver does not count.
            let opened = if is_real() { 0 } else { 1 + 3 + 1 };
            assert_eq!(imports(), opened);
            // While it is lent it is known, however long.
            tokio::time::sleep(Duration::from_millis(1500)).await;
        }
        let found = bench.download(kept[1].tensors[0].tensor.buffer());
        assert!(found == bytes);
        let owner = Arc::downgrade(&mapped);
        drop((mapped, kept));
        ends(&owner).await;
        eventually("no handle is left", || handles() == before).await;
        // And the same again.
        let (tensor, _) = library.tensor(&pattern(LEN, 3));
        let read = moved(&pipes, message("m", tensor)).await;
        let found = bench.download(read.tensors[0].tensor.buffer());
        assert!(found == pattern(LEN, 3));
        assert_eq!(pipes.0.stats().bytes_copied, 0);
    });
}

#[test]
fn while_it_is_lent_it_is_opened_once_and_its_physical_memory_goes_when_nobody_has_it() {
    crate::tell("foreign goes", &[]);
}

#[test]
fn what_is_mapped_later_at_its_addresses_is_another_tensor() {
    let child = Child::start("ipc reads", &[]);
    let bench = Bench::new();
    runtime().block_on(async {
        let pipe = connected(&bench, &child).await;
        let library = Library::of(&bench, &[true; 3]);
        for round in 0..3 {
            for seed in 0..round {
                let before = bench.tensor(device(), &pattern(LEN, seed));
                pipe.write(message("keep", before)).await.unwrap();
                child.hear("read");
            }
            let (tensor, owner) = library.tensor(&pattern(LEN, round));
            pipe.write(message("keep", tensor)).await.unwrap();
            let count = round as usize + 1;
            let sent = count * (count + 1) / 2;
            assert_eq!(child.hear("read"), lent(count, sent), "round {round}");
            pipe.write(Message::new("let go")).await.unwrap();
            child.hear("read");
            ends(&owner).await;
        }
        assert_eq!(pipe.stats().bytes_copied, 0);
    });
    nothing_went_wrong();
}

#[test]
fn one_allocation_that_nobody_may_map_has_the_tensor_copied_first() {
    let child = Child::start("ipc reads", &[]);
    let bench = Bench::new();
    runtime().block_on(async {
        let pipe = connected(&bench, &child).await;
        let library = Library::of(&bench, &[true, false, true]);
        let (tensor, owner) = library.tensor(&pattern(LEN, 0));
        pipe.write(message("keep", tensor)).await.unwrap();
        assert_eq!(child.hear("read"), lent(1, 1));
        ends(&owner).await;
        assert_eq!(pipe.stats().bytes_copied, LEN as u64);
    });
    nothing_went_wrong();
}

/// More of them than an offer may name.
#[tokio::test]
async fn a_tensor_over_too_many_allocations_is_copied_first() {
    const MOST: usize = 64;
    let bench = Bench::new();
    let pipes = pair(&bench, "cuda_ipc").await;
    for (count, is_copied) in [(MOST, false), (MOST + 1, true)] {
        let library = Library::of(&bench, &vec![true; count]);
        let bytes = vec![count as u8; library.segments.len() - 2];
        let before = pipes.0.stats().bytes_copied;
        let read = moved(&pipes, message("m", library.tensor(&bytes).0)).await;
        let found = bench.download(read.tensors[0].tensor.buffer());
        assert!(found == bytes, "{count} allocations");
        let copied = pipes.0.stats().bytes_copied - before;
        assert_eq!(copied > 0, is_copied, "{count} allocations");
    }
    nothing_went_wrong();
}

#[test]
fn its_owner_is_told_when_a_reader_that_has_it_is_killed() {
    let mut child = Child::start("ipc reads", &[]);
    let bench = Bench::new();
    runtime().block_on(async {
        let pipe = connected(&bench, &child).await;
        let library = Library::of(&bench, &[true; 3]);
        let (tensor, owner) = library.tensor(&pattern(LEN, 0));
        pipe.write(message("keep", tensor)).await.unwrap();
        assert_eq!(child.hear("read"), lent(1, 1));
        assert!(owner.upgrade().is_some());
        child.kill();
        ends(&owner).await;
    });
    nothing_went_wrong();
}

/// Sends one, and waits for ever.
pub(crate) fn lends() {
    let bench = Bench::new();
    runtime().block_on(async {
        let context = Context::builder().cuda(&bench.cuda).build().unwrap();
        let pipe = context.connect(std::env::var(URL).unwrap()).await.unwrap();
        let (tensor, _) = Library::of(&bench, &[true; 3]).tensor(&pattern(LEN, 7));
        pipe.write(message("m", tensor)).await.unwrap();
        say("copied", pipe.stats().bytes_copied);
        std::future::pending::<()>().await;
    });
}

#[test]
fn it_stays_what_it_is_when_its_owner_s_process_is_killed() {
    let bench = Bench::new();
    runtime().block_on(async {
        let context = Context::builder().cuda(&bench.cuda).build().unwrap();
        let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        let url = listener.url().to_string();
        let mut writer = Child::start("foreign lends", &[(URL, &url)]);
        let pipe = soon("a pipe", listener.accept()).await.unwrap();
        let read = soon("a tensor", pipe.read()).await.unwrap();
        assert_eq!(writer.hear("copied"), "0");
        assert_eq!(pipe.stats().bytes_borrowed, LEN as u64);
        writer.kill();
        soon("an end", pipe.read()).await.unwrap_err();
        let found = bench.download(read.tensors[0].tensor.buffer());
        assert!(found == pattern(LEN, 7));
    });
    nothing_went_wrong();
}
