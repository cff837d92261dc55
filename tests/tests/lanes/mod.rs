//! Pipes whose peer's lane says whatever it likes, on each of the built-in channels: what the target `lanes` in `fuzz/` runs, and this
//! package's tests with inputs at random.
//!
//! One end, `near`, is honest. The far ends of its two pipes conspire: each says what the other has heard, too, and brings it to
//! near's exchange. Invariant: near reads what it is sent, or an error; and once the pipes are gone it holds nothing.

mod hostile;
mod input;

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, socket,
};
use tensorpipe::channels::{
    BasicChannel, Channel, CmaChannel, LeaseChannel, MptChannel, Pays, Threshold, XthChannel,
};
use tensorpipe::transports::MemoryTransport;
use tensorpipe::{Context, DType, Message, Pipe, Pool, PoolOptions, Tensor};
use tokio::runtime::Builder;

use self::hostile::HostileChannel;
use self::input::Input;

/// Longer than anything takes that is not stuck.
const STUCK: Duration = Duration::from_secs(10);

/// What is done in one meeting, at most.
const TURNS: usize = 60;

/// Lengths of tensors, in bytes: in the frame, copied on the spot, in chunks, and lent.
const LENGTHS: [usize; 5] = [1, 900, 20_000, 70_000, 300_000];

/// Lets two hostile lanes meet an honest context.
///
/// # Panics
/// Where something is left behind, or waits for ever.
pub(crate) fn lanes(data: &[u8]) {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(meet(&Input::new(data)));
}

async fn meet(input: &Input) {
    let honest: Arc<dyn Channel> = match input.below(5) {
        0 | 1 => Arc::new(LeaseChannel::also_within_process()),
        2 => Arc::new(CmaChannel::also_within_process()),
        3 => Arc::new(MptChannel::new()),
        _ => Arc::new(XthChannel::new()),
    };
    let name = honest.name();
    let near = context("near", honest.clone());
    let far = context("far", Arc::new(HostileChannel::new(honest, input.clone())));
    let pipes = [pipes(&near, &far).await, pipes(&near, &far).await];
    let kept = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut readers = Vec::new();
    for (ours, theirs) in &pipes {
        readers.push(tokio::spawn(read(ours.clone(), kept.clone())));
        readers.push(tokio::spawn(read(theirs.clone(), Arc::default())));
    }
    let mut exchange = None;
    for _ in 0..TURNS {
        if input.has_ended() {
            break;
        }
        let (ours, theirs) = &pipes[input.below(2)];
        match input.below(12) {
            0..=2 => say(theirs, &far, input),
            3..=5 => say(ours, &near, input),
            6 => packet(&mut exchange, input),
            7 => {
                let mut kept = kept.lock().unwrap();
                if !kept.is_empty() {
                    let at = input.below(kept.len());
                    drop(kept.swap_remove(at));
                }
            }
            8 => {
                // Writing to what is borrowed copies it.
                if let Some(tensor) = kept.lock().unwrap().last_mut() {
                    let _ = tensor.make_mut::<u8>();
                }
            }
            9 if input.below(8) == 0 => drop(theirs.go_away("enough")),
            10 => tokio::time::sleep(Duration::from_millis(1)).await,
            _ => {
                for _ in 0..8 {
                    tokio::task::yield_now().await;
                }
            }
        }
    }
    for (ours, theirs) in pipes {
        let _ = theirs.close_within(Duration::ZERO).await;
        drop(theirs);
        let ended = soon("the pipe's end", ours.ended()).await.to_string();
        assert!(!ended.contains("panicked"), "{ended}");
    }
    for reader in readers {
        soon("a reader's end", reader).await.unwrap();
    }
    kept.lock().unwrap().clear();
    drop(exchange);
    let held = || {
        let stats = near.pool().stats();
        let lendable = stats.lendable;
        [
            stats.outstanding_bytes,
            lendable.outstanding_bytes,
            lendable.lent_bytes,
        ]
    };
    let gone = async {
        while held() != [0; 3] {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let gone = tokio::time::timeout(STUCK, gone).await;
    assert!(gone.is_ok(), "{name}: in use, lendable, lent: {:?}", held());
}

fn context(name: &str, channel: Arc<dyn Channel>) -> Context {
    let everything = Threshold::new(Pays::From(1));
    let lendable = 8 << 20;
    let pool = Pool::new(PoolOptions {
        lendable,
        ..PoolOptions::default()
    });
    let context = Context::builder()
        .name(name)
        .pool(pool)
        .transports([Arc::new(MemoryTransport::new()) as _])
        .threshold(channel.name(), everything)
        .channels([channel, Arc::new(BasicChannel::new())]);
    context.build().unwrap()
}

async fn pipes(near: &Context, far: &Context) -> (Pipe, Pipe) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let url = format!("memory://lanes-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let listener = near.listen([url]).await.unwrap();
    let (theirs, ours) = tokio::join!(far.connect(listener.url()), listener.accept());
    (ours.unwrap(), theirs.unwrap())
}

async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(STUCK, work).await;
    done.unwrap_or_else(|_| panic!("{what} does not come"))
}

/// Reads every byte of what comes, and keeps the last ones.
async fn read(pipe: Pipe, kept: Arc<std::sync::Mutex<Vec<Tensor>>>) {
    loop {
        match pipe.read().await {
            Ok(message) => {
                for tensor in message.tensors {
                    let bytes = tensor.tensor.as_bytes().unwrap();
                    std::hint::black_box(bytes.iter().fold(0u8, |all, byte| all ^ byte));
                    let mut kept = kept.lock().unwrap();
                    kept.push(tensor.tensor);
                    if kept.len() > 8 {
                        kept.remove(0);
                    }
                }
            }
            Err(_) if pipe.ended().now_or_never().is_some() => return,
            // One message that is given up.
            Err(_) => tokio::task::yield_now().await,
        }
    }
}

/// A message with up to two tensors, of ordinary memory or the pool's.
fn say(pipe: &Pipe, context: &Context, input: &Input) {
    let mut message = Message::new("");
    for _ in 0..=input.below(2) {
        let len = LENGTHS[input.below(LENGTHS.len())];
        let tensor = match input.below(2) {
            0 => Tensor::from(vec![7u8; len]),
            _ => context.pool().tensor(DType::U8, [len as u64]).unwrap(),
        };
        message = message.tensor(tensor);
    }
    // The pipe may have ended.
    let _ = pipe.send(message);
}

/// Sends a packet to the exchange of this process, as whoever was told of it may.
fn packet(exchange: &mut Option<OwnedFd>, input: &Input) {
    let devices = LeaseChannel::new().devices();
    let Some(name) = devices.first().and_then(|(_, descriptor)| {
        let at = descriptor
            .windows(11)
            .position(|bytes| bytes == b"tensorpipe-")?;
        Some(descriptor[at..].to_vec())
    }) else {
        return;
    };
    if exchange.is_none() || input.below(4) == 0 {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let made = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
        let address = UnixAddr::new_abstract(&name).unwrap();
        if connect(made.as_raw_fd(), &address).is_err() {
            return;
        }
        *exchange = Some(made);
    }
    let Some(socket) = exchange.as_ref().map(AsRawFd::as_raw_fd) else {
        return;
    };
    let words = input.words();
    let token = words.get(1..17).unwrap_or(&words);
    let magic: &[u8] = if input.below(4) > 0 { b"tple\x02" } else { b"" };
    let packet = [&[input.byte() % 10], magic, token].concat();
    let _ = send(socket, &packet, MsgFlags::MSG_NOSIGNAL);
    let mut answer = [0; 256];
    while let Ok(len @ 1..) = recv(socket, &mut answer, MsgFlags::MSG_DONTWAIT) {
        input.heard(&answer[..len]);
    }
}
