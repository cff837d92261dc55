//! Another library's memory that other processes may map, including one address range over several physical allocations. It is
//! lent without a copy, and its owner keeps it until it is back.

#![allow(unsafe_code, reason = "another library's memory is an address")]

use std::sync::{Arc, Mutex, Weak, mpsc};
use std::thread::ThreadId;
use std::time::Duration;

use cudarc::driver::{CudaStream, result};
use tensorpipe::conformance::pattern;
use tensorpipe::{Context, DType, Message, MessageTensor, Pipe, Tensor};
use tensorpipe_test_cuda::is_real;
use tensorpipe_tests::{Child, eventually, runtime, say, soon};

use crate::bench::{Bench, TOKEN, device, moved, pair};
use crate::driver::{exports, handles, holds, imports, nothing_went_wrong};
use crate::fixture::Hold;
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
    let builder = Context::builder().cuda(&bench.cuda);
    let context = builder.token("tests", TOKEN).build().unwrap();
    context.connect(child.hear("url")).await.unwrap()
}

pub(crate) async fn ends(owner: &Weak<Mapped>) {
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

/// A pipe whose proof is over, both ends in one process, whose handles are counted: how many there are.
pub(crate) async fn proved(bench: &Bench) -> ((Pipe, Pipe), u64) {
    let pipes = pair(bench, "cuda_ipc").await;
    let first = bench.tensor(device(), &pattern(LEN, 1));
    drop(moved(&pipes, message("m", first)).await);
    // The first tensor's own handle, and for a while the one by which it was mapped: that of the proof goes.
    let left = if is_real() { 0 } else { 2 };
    eventually("the proof is over", || handles() <= left).await;
    (pipes, left)
}

pub(crate) fn goes() {
    let bench = Bench::new();
    runtime().block_on(async {
        let (pipes, before) = proved(&bench).await;
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
        eventually("no handle is left", || handles() <= before).await;
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

/// With more of them than an offer may name it is copied first, and none is passed on in vain.
pub(crate) fn counted_first() {
    const MOST: usize = 64;
    let bench = Bench::new();
    runtime().block_on(async {
        let pipes = pair(&bench, "cuda_ipc").await;
        let first = bench.tensor(device(), &pattern(LEN, 1));
        moved(&pipes, message("m", first)).await;
        for (count, is_copied) in [(MOST, false), (MOST + 1, true)] {
            let library = Library::of(&bench, &vec![true; count]);
            let bytes = vec![count as u8; library.segments.len() - 2];
            let (before, passed) = (pipes.0.stats().bytes_copied, exports());
            let read = moved(&pipes, message("m", library.tensor(&bytes).0)).await;
            let found = bench.download(read.tensors[0].tensor.buffer());
            assert!(found == bytes, "{count} allocations");
            let copied = pipes.0.stats().bytes_copied - before;
            assert_eq!(copied > 0, is_copied, "{count} allocations");
            let passed = exports() - passed;
            // That of the copy.
            let expected = if is_copied { 1 } else { count as u64 };
            assert!(
                is_real() || passed == expected,
                "{passed} for {count} allocations"
            );
        }
    });
}

/// Lets calls of the driver return, however a story ends.
pub(crate) struct Holds;

impl Holds {
    pub(crate) fn calls_of(function: &str) -> Self {
        holds(function);
        Self
    }
}

impl Drop for Holds {
    fn drop(&mut self) {
        holds("");
    }
}

/// Memory of this process's own, and of another library's.
pub(crate) fn passed_on_late() {
    let bench = Bench::new();
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    // Two of them are held in the driver.
    let threads = threads.worker_threads(4).enable_all().build().unwrap();
    threads.block_on(async {
        let pipes = pair(&bench, "cuda_ipc").await;
        let others = pair(&bench, "cuda_ipc").await;
        let library = Library::of(&bench, &[true; 3]);
        for is_own in [true, false] {
            let tensor = match is_own {
                true => bench.tensor(device(), &pattern(LEN, 1)),
                false => library.tensor(&pattern(LEN, 1)).0,
            };
            let held = Holds::calls_of("cuMemExportToShareableHandle");
            let mut reads = Vec::new();
            // Nor is that of another pipe, over which the same memory goes.
            for (client, server) in [pipes.clone(), others.clone()] {
                client.send(message("m", tensor.clone())).unwrap();
                reads.push(tokio::spawn(async move { server.read().await }));
                eventually("the driver is asked", || crate::driver::held() > 0).await;
                tokio::time::sleep(Duration::from_millis(50)).await;
                let stats = tokio::task::spawn_blocking(move || client.stats());
                soon("the pipe is not locked", stats).await.unwrap();
            }
            drop(held);
            for read in reads {
                let read = soon("it comes", read).await.unwrap().unwrap();
                let found = bench.download(read.tensors[0].tensor.buffer());
                assert!(found == pattern(LEN, 1));
            }
            assert_eq!(pipes.0.stats().bytes_copied, 0, "own: {is_own}");
        }
    });
}

/// Something comes of an event, soon.
pub(crate) async fn an_event_is_heard_of(bench: &Bench) {
    let tensor = bench.tensor(device(), &pattern(LEN, 2));
    let look = bench.clone();
    let found = tokio::task::spawn_blocking(move || look.download(tensor.buffer()));
    assert!(soon("an event", found).await.unwrap() == pattern(LEN, 2));
}

/// What nobody has lent for a while.
pub(crate) fn released_late() {
    let bench = Bench::new();
    runtime().block_on(async {
        let (pipes, _) = proved(&bench).await;
        let library = Library::of(&bench, &[true; 3]);
        let mapped = Arc::new(library.segments.map());
        let tensor = library.at(&mapped, library.segments.across(LEN), &pattern(LEN, 1));
        let read = moved(&pipes, message("m", tensor)).await;
        // While it is lent it is not released, nor by its owner, who stays.
        let held = Holds::calls_of("cuMemRelease");
        drop(read);
        eventually("it is released", || crate::driver::held() > 0).await;
        an_event_is_heard_of(&bench).await;
        drop(held);
    });
}

/// An owner whose end takes as long as that of a library that waits for its device.
struct Goes {
    begins: mpsc::Sender<()>,
    goes: Mutex<mpsc::Receiver<()>>,
}

impl Drop for Goes {
    fn drop(&mut self) {
        self.begins.send(()).unwrap();
        let _ = self.goes.lock().unwrap().recv();
    }
}

pub(crate) fn owner_goes_late() {
    let bench = Bench::new();
    let stream = bench.cuda.context(device()).unwrap().new_stream().unwrap();
    let tensor = bench.tensor(device(), &pattern(LEN, 1));
    let address = bench.cuda.read(tensor.buffer(), &stream).unwrap().address();
    let ((begins, has_begun), (goes, wait)) = (mpsc::channel(), mpsc::channel());
    let goes_late = Goes {
        begins,
        goes: Mutex::new(wait),
    };
    // SAFETY: the tensor is there to the end, and nobody writes to it.
    let theirs = unsafe { bench.cuda.borrow(goes_late, address, LEN, &stream) };
    let theirs = theirs.unwrap();
    let work = Hold::on(&stream);
    drop(bench.cuda.read(&theirs, &stream).unwrap());
    drop(theirs);
    drop(work);
    has_begun.recv_timeout(Duration::from_secs(30)).unwrap();
    runtime().block_on(an_event_is_heard_of(&bench));
    drop(goes);
}

/// Says which thread it is dropped on, and panics.
struct Tells(mpsc::Sender<ThreadId>);

impl Drop for Tells {
    fn drop(&mut self) {
        let _ = self.0.send(std::thread::current().id());
        panic!("as planned");
    }
}

/// An owner's code may wait for a lock, or panic, also if no work on its memory is unfinished.
pub(crate) fn owner_goes_elsewhere() {
    let bench = Bench::new();
    let stream = bench.cuda.context(device()).unwrap().new_stream().unwrap();
    let tensor = bench.tensor(device(), &pattern(LEN, 1));
    let address = bench.cuda.read(tensor.buffer(), &stream).unwrap().address();
    for _ in 0..2 {
        let (tell, told) = mpsc::channel();
        // SAFETY: the tensor is there to the end, and nobody writes to it.
        let theirs = unsafe { bench.cuda.borrow(Tells(tell), address, LEN, &stream) };
        let theirs = theirs.unwrap();
        assert!(bench.download(&theirs) == pattern(LEN, 1));
        drop(theirs);
        let by = told.recv_timeout(Duration::from_secs(30));
        assert_ne!(by.unwrap(), std::thread::current().id());
    }
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
