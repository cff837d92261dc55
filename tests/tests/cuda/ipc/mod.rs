//! One process lends device memory to another. A test controls the reader and the writer.

pub(crate) mod lending;
mod proofs;
pub(crate) mod replays;
pub(crate) mod stalls;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorpipe::channels::LeaseChannel;
use tensorpipe::conformance::device::Fixture;
use tensorpipe::conformance::pattern;
use tensorpipe::device::Memory;
use tensorpipe::device::cuda::CudaDevices;
use tensorpipe::{
    BufferMut, Context, ContextBuilder, DType, Device, Message, MessageTensor, Pipe, Pool, Tensor,
    device::DevicePool,
};
use tensorpipe_tests::{Child, runtime, say, soon};

use crate::bench::{Bench, TOKEN, device};
use crate::driver::{detours, faults, imports, registrations, waits};

const LEN: usize = 3_000_000;

const BORROWS_NOTHING: &str = "TEST_CUDA_BORROWS_NOTHING";

const URL: &str = "TEST_CUDA_URL";

/// How many tensors a writer sends.
const TENSORS: &str = "TEST_CUDA_TENSORS";

/// With the token of the others.
fn builder(cuda: &CudaDevices) -> ContextBuilder {
    Context::builder().cuda(cuda).token("tests", TOKEN)
}

fn context(cuda: &CudaDevices) -> Context {
    builder(cuda).build().unwrap()
}

/// Keeps what it is sent, until it is told to look at it, or to let go of it.
pub(crate) fn reads() {
    let bench = Bench::new();
    runtime().block_on(async {
        let builder = builder(&bench.cuda);
        let builder = match std::env::var(BORROWS_NOTHING) {
            Ok(_) => builder.prefer_channel(LeaseChannel::lends_only()),
            Err(_) => builder,
        };
        let context = builder.build().unwrap();
        let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        say("url", listener.url());
        let pipe = listener.accept().await.unwrap();
        let mut kept: Vec<Tensor> = Vec::new();
        loop {
            match pipe.read().await {
                Ok(message) => {
                    let what = String::from_utf8(message.metadata.to_vec()).unwrap();
                    kept.extend(message.tensors.into_iter().map(|tensor| tensor.tensor));
                    match &*what {
                        "let go" => kept.clear(),
                        "write" => {
                            say("write", writes(&bench, kept.remove(0)));
                            continue;
                        }
                        "imports" => {
                            say("imports", imports());
                            continue;
                        }
                        "registrations" => {
                            say("registrations", format!("{:?}", registrations()));
                            continue;
                        }
                        "detours" => {
                            say("detours", detours());
                            continue;
                        }
                        "where" => {
                            let found = kept.iter().map(|tensor| tensor.device().to_string());
                            say("where", found.collect::<Vec<_>>().join(" "));
                            continue;
                        }
                        _ => {}
                    }
                    say("read", report(&bench, &pipe, &kept));
                }
                // It did not go as its writer requires.
                Err(error) if !error.ends_pipe() => {}
                // The writer is gone; what it has lent is not.
                Err(_) => {
                    say("left", report(&bench, &pipe, &kept));
                    return;
                }
            }
        }
    });
}

/// What becomes of an attempt to write to what is lent.
fn writes(bench: &Bench, tensor: Tensor) -> &'static str {
    let memory = tensor.into_buffer().memory().clone();
    let Ok(room) = BufferMut::from_memory(memory, LEN) else {
        return "shared";
    };
    let context = bench.cuda.context(device()).unwrap();
    let stream = context.new_stream().unwrap();
    match bench.cuda.write(room, &stream) {
        Ok(_) => "written",
        Err(_) => "refused",
    }
}

/// How many tensors are what they were, how many bytes lie in the writer's memory, and what went wrong.
fn report(bench: &Bench, pipe: &Pipe, kept: &[Tensor]) -> String {
    let is_whole =
        |(seed, tensor): &(u64, &Tensor)| bench.download(tensor.buffer()) == pattern(LEN, *seed);
    let whole = (0..).zip(kept).filter(is_whole).count();
    let borrowed = pipe.stats().bytes_borrowed;
    let foreign = kept.iter().filter(|tensor| tensor.device().is_cpu());
    let foreign = foreign.filter(|tensor| !tensor.buffer().memory().is_private());
    assert_eq!(foreign.count(), 0, "in memory that others write");
    assert_eq!(waits(), 0, "calls that wait for a device");
    let why = pipe.route().to_string();
    let known = [
        ("cuMemImport", " cannot import"),
        ("not the peer's memory", " other memory"),
    ];
    let why = known.iter().find(|(words, _)| why.contains(words));
    let why = why.map_or("", |(_, said)| *said);
    format!(
        "{whole} of {}, {borrowed} borrowed{why}{}",
        kept.len(),
        faults().join("; ")
    )
}

/// Sends two tensors, or as many as it is told, and waits for ever.
pub(crate) fn lends() {
    let bench = Bench::new();
    runtime().block_on(async {
        let context = context(&bench.cuda);
        let pipe = context.connect(std::env::var(URL).unwrap()).await.unwrap();
        let count = std::env::var(TENSORS).map_or(2, |count| count.parse().unwrap());
        for seed in 0..count {
            let tensor = bench.tensor(device(), &pattern(LEN, seed));
            pipe.write(message("keep", tensor)).await.unwrap();
        }
        say("lent", pipe.stats().bytes_lent);
        say("route", pipe.route().to_string().replace('\n', " "));
        std::future::pending::<()>().await;
    });
}

fn message(what: &str, tensor: Tensor) -> Message {
    to(device(), what, tensor)
}

/// To a device of the reader's.
fn to(there: Device, what: &str, tensor: Tensor) -> Message {
    Message::new(what.to_owned()).tensor(MessageTensor::from(tensor).to_device(there))
}

fn reader(variables: &[(&str, &str)]) -> (Child, String) {
    let reader = Child::start("ipc reads", variables);
    let url = reader.hear("url");
    (reader, url)
}

fn lent(count: usize) -> String {
    format!("{count} of {count}, {} borrowed", count * LEN)
}

/// A writer in this process.
struct Writer {
    bench: Bench,
    pool: DevicePool,
    /// Main memory, which may be lent.
    main: Pool,
    pipe: Pipe,
}

impl Writer {
    async fn to(url: &str) -> Self {
        Self::with(url, |builder| builder).await
    }

    async fn with(url: &str, set: impl FnOnce(ContextBuilder) -> ContextBuilder) -> Self {
        let bench = Bench::new();
        let context = set(builder(&bench.cuda)).build().unwrap();
        let pool = context.allocator(device()).unwrap();
        let pipe = context.connect(url).await.unwrap();
        let main = context.pool().clone();
        Self {
            bench,
            pool,
            main,
            pipe,
        }
    }

    /// A tensor of its pool, which nobody else uses.
    fn tensor(&self, seed: u64) -> Tensor {
        let room = self.pool.take(LEN).unwrap();
        let buffer = self.bench.fixture.write(&pattern(LEN, seed), room);
        Tensor::from_buffer(buffer, DType::U8, [LEN as u64]).unwrap()
    }

    /// One is sent. Returns its memory.
    async fn send(&self, seed: u64) -> Arc<dyn Memory> {
        let tensor = self.tensor(seed);
        let memory = tensor.buffer().memory().clone();
        self.pipe.write(message("keep", tensor)).await.unwrap();
        memory
    }

    /// One message with all of them.
    async fn send_all(&self, seeds: std::ops::Range<u64>) {
        let message = seeds.fold(Message::new("keep"), |message, seed| {
            message.tensor(MessageTensor::from(self.tensor(seed)).to_device(device()))
        });
        let written = soon("it is sent", self.pipe.write(message)).await;
        written.unwrap();
    }

    async fn say(&self, what: &'static str) {
        self.pipe.write(Message::new(what)).await.unwrap();
    }
}

/// The reader has so many tensors, each of them what it was; `why` it borrows none.
fn has_all(child: &Child, count: u64, why: &str) {
    let heard = child.hear("read");
    let is_whole = heard.starts_with(&format!("{count} of {count}, "));
    assert!(is_whole && heard.ends_with(why), "{heard}");
}

fn is_in_use(memory: &Arc<dyn Memory>) -> bool {
    !memory.work().unwrap().unfinished().is_empty()
}

async fn comes_back(memory: &Arc<dyn Memory>) {
    let until = Instant::now() + Duration::from_secs(20);
    while is_in_use(memory) {
        assert!(Instant::now() < until, "it does not come back");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
