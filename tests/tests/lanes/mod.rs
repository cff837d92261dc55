//! Pipes with a hostile lane at the peer, on each of the built-in channels. The fuzz target `lanes` in `fuzz/` runs this code, and this
//! package's tests run it with random inputs, with tensors in main memory and on devices.
//!
//! One end, `near`, is honest. The far ends of its two pipes conspire: each also sends what the other has heard, and brings it to near's
//! exchange. Invariant: if a lane was honest about a message, the message is read as it was written or not at all, whatever the lanes send
//! about other messages. No thread panics, and once the pipes are gone `near` holds nothing.

mod hostile;
mod input;

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use futures_util::FutureExt;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, socket,
};
use tensorpipe::channels::{
    BasicChannel, Channel, CmaChannel, LeaseChannel, MptChannel, Pays, Threshold, XthChannel,
};
use tensorpipe::transports::MemoryTransport;
use tensorpipe::{
    Context, ContextBuilder, DType, Message, MessageTensor, Pipe, Pool, PoolOptions, Tensor,
};
use tokio::runtime::Builder;

use self::hostile::{Lies, Name};
pub(crate) use self::input::Input;

/// Longer than anything takes that is not stuck.
const STUCK: Duration = Duration::from_secs(10);

/// What is done in one meeting, at most.
const TURNS: usize = 60;

/// Lengths of tensors, in bytes: in the frame, copied on the spot, in chunks, and lent.
const LENGTHS: [usize; 5] = [1, 900, 20_000, 70_000, 300_000];

/// Which channels a meeting may be about, and where its tensors lie.
pub(crate) trait Ground {
    /// One of the channels.
    fn channel(&self, input: &Input) -> Arc<dyn Channel>;

    /// With the devices on which tensors lie.
    fn on_devices(&self, builder: ContextBuilder) -> ContextBuilder {
        builder
    }

    /// A tensor of these bytes, for wherever.
    fn tensor(&self, context: &Context, bytes: Vec<u8>, input: &Input) -> MessageTensor;

    /// What a tensor holds that has come.
    fn bytes(&self, tensor: &Tensor) -> Vec<u8>;

    /// What of a context's memory is in use, in bytes, where tensors lie.
    fn held(&self, context: &Context) -> Vec<u64>;
}

/// Main memory.
struct Main;

impl Ground for Main {
    fn channel(&self, input: &Input) -> Arc<dyn Channel> {
        match input.below(5) {
            0 | 1 => Arc::new(LeaseChannel::also_within_process()),
            2 => Arc::new(CmaChannel::also_within_process()),
            3 => Arc::new(MptChannel::new()),
            _ => Arc::new(XthChannel::new()),
        }
    }

    /// Of ordinary memory, or the pool's.
    fn tensor(&self, context: &Context, bytes: Vec<u8>, input: &Input) -> MessageTensor {
        if input.below(2) == 0 {
            return Tensor::from(bytes).into();
        }
        let len = bytes.len() as u64;
        let mut tensor = context.pool().tensor(DType::U8, [len]).unwrap();
        tensor.make_mut::<u8>().unwrap().copy_from_slice(&bytes);
        tensor.into()
    }

    fn bytes(&self, tensor: &Tensor) -> Vec<u8> {
        tensor.as_bytes().unwrap().to_vec()
    }

    fn held(&self, context: &Context) -> Vec<u64> {
        let stats = context.pool().stats();
        let lendable = stats.lendable;
        vec![
            stats.outstanding_bytes,
            lendable.outstanding_bytes,
            lendable.lent_bytes,
        ]
    }
}

/// Lets two hostile lanes meet an honest context, with tensors in main memory.
///
/// # Panics
/// As [`on`].
pub(crate) fn lanes(data: &[u8]) {
    on(&Arc::new(Main), data);
}

/// The same, with tensors elsewhere.
///
/// # Panics
/// Where something arrives otherwise, is left behind, waits for ever, or panics.
pub(crate) fn on(ground: &Arc<impl Ground + Send + Sync + 'static>, data: &[u8]) {
    let before = panics();
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(meet(ground, &Input::new(data)));
    // A pipe catches those of its lanes, and whoever polls a task those of that.
    assert_eq!(panics(), before, "something has panicked");
}

/// How often something has panicked in this process, from the first call on.
fn panics() -> u64 {
    static PANICS: AtomicU64 = AtomicU64::new(0);
    static COUNTS: Once = Once::new();
    COUNTS.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.fetch_add(1, Ordering::Relaxed);
            others(panic);
        }));
    });
    PANICS.load(Ordering::Relaxed)
}

async fn meet(ground: &Arc<impl Ground + Send + Sync + 'static>, input: &Input) {
    let honest = ground.channel(input);
    let name = honest.name();
    let near = context(ground, "near", honest.clone());
    let lies = Lies::default();
    let hostile = hostile::in_place_of(honest, input.clone(), lies.clone());
    let far = context(ground, "far", hostile);
    let pipes = [pipes(&near, &far).await, pipes(&near, &far).await];
    let kept = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut readers = Vec::new();
    for (ours, theirs) in &pipes {
        for (pipe, kept) in [(ours, kept.clone()), (theirs, Arc::default())] {
            let (ground, lies) = (ground.clone(), lies.clone());
            readers.push(tokio::spawn(read(ground, pipe.clone(), kept, lies)));
        }
    }
    // The next message of each pipe, by near and by far.
    let mut next = [[0; 2]; 2];
    let mut exchange = None;
    for _ in 0..TURNS {
        if input.has_ended() {
            break;
        }
        let pipe = input.below(2);
        let (ours, theirs) = &pipes[pipe];
        match input.below(12) {
            0..=2 => say(
                &**ground,
                theirs,
                &far,
                input,
                (pipe, true, &mut next[pipe][1]),
            ),
            3..=5 => say(
                &**ground,
                ours,
                &near,
                input,
                (pipe, false, &mut next[pipe][0]),
            ),
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
    let held = || ground.held(&near);
    let gone = async {
        while held().iter().any(|bytes| *bytes > 0) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let gone = tokio::time::timeout(STUCK, gone).await;
    assert!(gone.is_ok(), "{name}: in use: {:?}", held());
}

fn context(ground: &Arc<impl Ground>, name: &str, channel: Arc<dyn Channel>) -> Context {
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
    ground.on_devices(context).build().unwrap()
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

/// Compares every byte of what comes, and keeps the last tensors.
async fn read(
    ground: Arc<impl Ground>,
    pipe: Pipe,
    kept: Arc<std::sync::Mutex<Vec<Tensor>>>,
    lies: Lies,
) {
    loop {
        match pipe.read().await {
            Ok(message) => {
                let name = named(&message.metadata);
                for (part, tensor) in message.tensors.into_iter().enumerate() {
                    let bytes = ground.bytes(&tensor.tensor);
                    let is_as_sent = bytes == contents(bytes.len(), name, part);
                    assert!(
                        is_as_sent || lies.are_about(name),
                        "part {part} of {name:?}: its {} bytes are others",
                        bytes.len()
                    );
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

/// A message with up to two tensors.
fn say(
    ground: &impl Ground,
    pipe: &Pipe,
    context: &Context,
    input: &Input,
    (number, by_far, next): (usize, bool, &mut u64),
) {
    let name = (number, by_far, *next);
    let mut message = Message::new(metadata(name));
    for part in 0..=input.below(2) {
        let len = LENGTHS[input.below(LENGTHS.len())];
        message = message.tensor(ground.tensor(context, contents(len, name, part), input));
    }
    // The pipe may have ended.
    if let Ok(id) = pipe.send(message) {
        assert_eq!(id, *next, "messages are numbered as they are sent");
        *next += 1;
    }
}

fn metadata((pipe, by_far, number): Name) -> Vec<u8> {
    [&[pipe as u8, by_far.into()], &number.to_le_bytes()[..]].concat()
}

/// The other way round.
fn named(metadata: &[u8]) -> Name {
    let number = metadata[2..].try_into().map(u64::from_le_bytes);
    (metadata[0].into(), metadata[1] == 1, number.unwrap())
}

/// Of a part: different for each, at both ends and in between.
fn contents(len: usize, (pipe, by_far, number): Name, part: usize) -> Vec<u8> {
    let seed = number << 3 | (pipe << 2) as u64 | u64::from(by_far) << 1 | part as u64;
    let mut bytes = vec![seed as u8 ^ 0x55; len];
    if len >= 16 {
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[len - 8..].copy_from_slice(&seed.to_be_bytes());
    }
    bytes
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
