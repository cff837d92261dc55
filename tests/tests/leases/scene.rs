//! Setup of every test here: a parent that listens, and a child that connects and obeys messages.

use std::os::unix::process::CommandExt;
use std::sync::Arc;
use std::time::Duration;

use tensorpipe::channels::{Channel, LeaseChannel};
use tensorpipe::conformance::pattern;
use tensorpipe::transports::{ShmTransport, TcpTransport, Transport};
use tensorpipe::{
    Context, ContextBuilder, DType, Error, Message, MessageTensor, Payload, Pipe, Pool,
    PoolOptions, Tensor, device::LendableStats,
};
use tensorpipe_tests::{Fate, forbid, say};
pub(crate) use tensorpipe_tests::{Peer, alone, check, eventually, runtime, soon};

/// A context whose pool lends at most `lendable` bytes.
pub(crate) fn context(name: &str, lendable: u64) -> Context {
    builder(name, lendable).build().unwrap()
}

/// The same, whose pipes stay on tcp.
pub(crate) fn over_tcp(name: &str, lendable: u64) -> Context {
    let tcp: Arc<dyn Transport> = Arc::new(TcpTransport::new());
    builder(name, lendable).transports([tcp]).build().unwrap()
}

pub(crate) fn builder(name: &str, lendable: u64) -> ContextBuilder {
    let pool = Pool::new(PoolOptions {
        lendable,
        ..PoolOptions::default()
    });
    Context::builder().name(name).pool(pool)
}

/// A tensor of the pool's with `pattern(len, seed)`.
pub(crate) fn made(pool: &Pool, len: usize, seed: u64) -> Tensor {
    let mut tensor = pool.tensor(DType::U8, [len as u64]).unwrap();
    let bytes = tensor.make_mut::<u8>().unwrap();
    bytes.copy_from_slice(&pattern(len, seed));
    tensor
}

/// As a tensor's metadata.
pub(crate) fn seed_of(seed: u64) -> Vec<u8> {
    seed.to_le_bytes().to_vec()
}

pub(crate) fn lendable(pool: &Pool) -> LendableStats {
    pool.stats().lendable
}

/// What only these children do.
pub(crate) trait Keeps {
    /// Has it keep a tensor.
    async fn keeps(&self, tensor: &Tensor, seed: u64);

    /// Has it send back what it gets, without a copy or a handle of its own.
    async fn echoes(&self, tensor: &Tensor) -> Tensor;
}

impl Keeps for Peer {
    async fn keeps(&self, tensor: &Tensor, seed: u64) {
        let tensor = MessageTensor::from(tensor.clone()).with_metadata(seed_of(seed));
        let message = Message::new("keep").tensor(tensor);
        soon("a write", self.pipe.write(message)).await.unwrap();
    }

    async fn echoes(&self, tensor: &Tensor) -> Tensor {
        let message = Message::new("echo").tensor(tensor.clone());
        self.pipe.send(message).unwrap();
        let mut message = soon("an echo", self.pipe.read()).await.unwrap();
        message.tensors.remove(0).tensor
    }
}

/// The child: connects, and does what it is told.
pub(crate) fn play() {
    runtime().block_on(async {
        let lendable = std::env::var("TEST_LENDABLE").ok();
        let lendable = lendable.map_or(64 << 20, |bytes| bytes.parse().unwrap());
        if std::env::var("TEST_NO_MEMFD").is_ok() {
            forbid(libc::SYS_memfd_create, None, Fate::Fails(libc::ENOSYS));
        }
        if let Ok(bytes) = std::env::var("TEST_FILE_SIZE") {
            let (_, hard) = nix::sys::resource::getrlimit(FSIZE).unwrap();
            nix::sys::resource::setrlimit(FSIZE, bytes.parse().unwrap(), hard).unwrap();
        }
        let mut context = builder("child", lendable);
        if std::env::var("TEST_ANY_USER").is_ok() {
            context = context.prefer_transport(ShmTransport::new().any_user());
        }
        let context = context.build().unwrap();
        let url = std::env::var("TEST_URL").unwrap();
        let pipe = context.connect(&url).await.unwrap();
        let mut kept = Vec::new();
        let mut eaten = Vec::new();
        loop {
            let message = match pipe.read().await {
                Ok(message) => message,
                // Taken back.
                Err(Error::Reset { .. }) => continue,
                Err(_) => break,
            };
            let text = String::from_utf8(message.metadata.to_vec()).unwrap();
            let words: Vec<&str> = text.split(' ').collect();
            let answer = match words[..] {
                ["keep"] => {
                    kept.extend(message.tensors);
                    continue;
                }
                ["check"] => {
                    for tensor in &kept {
                        let seed = tensor.metadata[..].try_into().unwrap();
                        check(&tensor.tensor, u64::from_le_bytes(seed));
                    }
                    format!("{} are the same", kept.len())
                }
                ["forget", count] => {
                    kept.drain(..count.parse::<usize>().unwrap());
                    format!("{} are kept", kept.len())
                }
                ["stats"] => {
                    let stats = pipe.stats();
                    format!("{} {}", stats.bytes_borrowed, stats.bytes_copied)
                }
                ["give", "heap", len, seed] => {
                    let (len, seed): (usize, u64) = (len.parse().unwrap(), seed.parse().unwrap());
                    let tensor = Tensor::from_vec(pattern(len, seed), [len as u64]).unwrap();
                    pipe.send(Message::new("given").tensor(tensor)).unwrap();
                    continue;
                }
                ["give", "payload", len, seed] => {
                    let bytes = pattern(len.parse().unwrap(), seed.parse().unwrap());
                    let message = Message::new("given").payload(Payload::new(bytes));
                    pipe.send(message).unwrap();
                    continue;
                }
                ["give", len, seed] => {
                    let tensor = made(context.pool(), len.parse().unwrap(), seed.parse().unwrap());
                    pipe.send(Message::new("given").tensor(tensor)).unwrap();
                    continue;
                }
                ["swap", len, seed] => {
                    kept.extend(message.tensors);
                    kept.drain(..kept.len().saturating_sub(3));
                    let tensor = made(context.pool(), len.parse().unwrap(), seed.parse().unwrap());
                    pipe.send(Message::new("given").tensor(tensor)).unwrap();
                    continue;
                }
                ["echo"] => {
                    let tensor = message.tensors.into_iter().next().unwrap();
                    pipe.send(Message::new("echoed").tensor(tensor)).unwrap();
                    continue;
                }
                ["eat", "descriptors"] => {
                    let (_, hard) = nix::sys::resource::getrlimit(NOFILE).unwrap();
                    nix::sys::resource::setrlimit(NOFILE, 128, hard).unwrap();
                    while let Ok(file) = std::fs::File::open("/dev/null") {
                        eaten.push(file);
                    }
                    "eaten".to_owned()
                }
                ["eat", "all", "descriptors", "but", few] => {
                    let (_, hard) = nix::sys::resource::getrlimit(NOFILE).unwrap();
                    nix::sys::resource::setrlimit(NOFILE, 128, hard).unwrap();
                    while let Ok(file) = std::fs::File::open("/dev/null") {
                        eaten.push(file);
                    }
                    let few: usize = few.parse().unwrap();
                    eaten.truncate(eaten.len() - few);
                    "eaten".to_owned()
                }
                ["route"] => pipe.route().to_string(),
                ["descriptor"] => {
                    let (_, descriptor) = LeaseChannel::new().devices().remove(0);
                    descriptor.iter().map(|b| format!("{b:02x}")).collect()
                }
                ["pool"] => {
                    let stats = self::lendable(context.pool());
                    format!("{} {}", stats.fallbacks, stats.refused)
                }
                ["diverted"] => pipe.stats().bytes_diverted.to_string(),
                ["reach", url] => {
                    let refused = context.connect(url).await.unwrap_err();
                    let listened = context.listen([url]).await.unwrap_err();
                    format!("{refused} | {listened}")
                }
                ["give", len, seed, "and", "leave"] => {
                    let tensor = made(context.pool(), len.parse().unwrap(), seed.parse().unwrap());
                    let message = Message::new("given").tensor(tensor);
                    pipe.write(message).await.unwrap();
                    break;
                }
                ["become", program, argument] => {
                    let mut program = std::process::Command::new(program);
                    panic!("{text}: {}", program.arg(argument).exec());
                }
                ["leave"] => break,
                _ => panic!("told `{text}`"),
            };
            pipe.send(Message::new(answer)).unwrap();
        }
        let _ = pipe.close().await;
        hammer(&context, pipe).await;
    });
}

const NOFILE: nix::sys::resource::Resource = nix::sys::resource::Resource::RLIMIT_NOFILE;
const FSIZE: nix::sys::resource::Resource = nix::sys::resource::Resource::RLIMIT_FSIZE;

/// The pipe is gone, and what was sent over it may be held: the pool is used until everything is back.
async fn hammer(context: &Context, pipe: Pipe) {
    drop(pipe);
    say("left", lendable(context.pool()).lent_bytes);
    let mut round = 0;
    loop {
        round += 1;
        let tensors: Vec<_> = (0..4)
            .map(|i| made(context.pool(), 3 << 20, 1000 + i))
            .collect();
        drop(tensors);
        if round == 20 {
            say("hammered", lendable(context.pool()).recycled);
        }
        if round > 20 && lendable(context.pool()).lent_bytes == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    say("back", round);
    tokio::time::sleep(Duration::from_secs(100)).await;
}

/// Mappings of this package's shared memory in this process.
pub(crate) fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|line| line.contains("memfd:tensorpipe"))
        .count()
}

/// What a lane says of memory: where it lies in its segment, and as which loan (slot and generation), without a number.
pub(crate) fn offer(
    kind: u8,
    segment: [u8; 16],
    offset: u64,
    len: u64,
    slot: u32,
    generation: u32,
) -> Vec<u8> {
    let mut offer = vec![kind];
    offer.extend_from_slice(&segment);
    offer.extend_from_slice(&offset.to_le_bytes());
    offer.extend_from_slice(&len.to_le_bytes());
    offer.extend_from_slice(&slot.to_le_bytes());
    offer.extend_from_slice(&generation.to_le_bytes());
    offer.extend_from_slice(&[0; 8]);
    offer
}
