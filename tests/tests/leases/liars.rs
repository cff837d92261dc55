//! A writer with a hostile exchange. The reader maps no memory that it cannot rely on. It gets the bytes through the pipe, or an error that
//! names the peer's fault. Nothing hangs.

use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, accept, bind,
    listen, recvmsg, sendmsg, socket,
};
use tensorpipe::channels::{Channel, ChannelFault, LaneIo, LeaseChannel, OpId};
use tensorpipe::conformance::pattern;
use tensorpipe::{Buffer, Context, Error, Message, PeerFault, Pipe, Tensor};
use tensorpipe_tests::{Double, Says, pair};

use super::scene::{alone, check, offer, soon};

const LEN: usize = 100_000;

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    /// Nothing: so the stage is right.
    None,
    /// A segment without seals.
    Unsealed,
    /// One that others could write.
    Writable,
    /// One that is shorter than its tensor.
    Truncated,
    /// One of more memory than there is, with next to nothing in it.
    Vast,
    /// A file that has a name.
    File,
    /// A packet without the descriptor that belongs to it.
    NoDescriptor,
    /// A ledger of another size.
    ShortLedger,
    /// Another ledger than the one with the offer.
    OtherLedger,
    /// A packet that is none.
    Nonsense,
    /// The segment before the ledger.
    TooEarly,
    /// It does not know the segment.
    Denies,
    /// It closes when it is asked.
    Closes,
    /// It never answers.
    Silent,
    /// Nobody listens under its name.
    Absent,
    /// An offer of another length than the tensor's.
    WrongLength,
    /// An offer that is no offer.
    WildOffer,
    /// A slot that no ledger has.
    WildSlot,
    /// It sends back what it was never lent.
    NotItsOwn,
    /// An invitation, and another one.
    TwoInvitations,
}

const SEGMENT: [u8; 16] = [7; 16];
const INVITATION: [u8; 16] = [8; 16];

struct LiarsLane {
    lie: Lie,
    sources: HashMap<OpId, Buffer>,
}

impl Says for LiarsLane {
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        let len = source.len() as u64;
        self.sources.insert(op, source);
        match self.lie {
            Lie::NotItsOwn => io.control(op, self.offer(3, len)),
            _ => io.control(op, [&[4][..], &INVITATION].concat()),
        }
    }

    fn control(&mut self, op: OpId, body: &[u8], io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        match (body, self.sources.remove(&op)) {
            ([2], Some(source)) => io.stream(op, source),
            ([4], Some(source)) => {
                let offer = match self.lie {
                    Lie::TwoInvitations => vec![4; 17],
                    _ => self.offer(1, source.len() as u64),
                };
                self.sources.insert(op, source);
                io.control(op, offer);
            }
            ([1], _) => io.sent(op),
            _ => panic!("{body:?}"),
        }
        Ok(())
    }
}

impl LiarsLane {
    fn offer(&self, kind: u8, len: u64) -> Vec<u8> {
        let lies = |lie| self.lie == lie;
        let slot = u32::from(lies(Lie::WildSlot)) << 20;
        let len = len + u64::from(lies(Lie::WrongLength));
        let mut offer = offer(kind, SEGMENT, 0, len, slot, 4);
        if lies(Lie::WildOffer) {
            offer.truncate(20);
        }
        offer
    }
}

/// Memory of `len` bytes that begins with `bytes`.
fn memory(len: usize, bytes: &[u8], seals: SealFlag) -> OwnedFd {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let fd = memfd_create(c"liar", flags).unwrap();
    nix::unistd::ftruncate(&fd, len as i64).unwrap();
    let fits = bytes.len().min(len);
    nix::unistd::write(&fd, &bytes[..fits]).unwrap();
    fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    fd
}

fn fixed() -> SealFlag {
    SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL
}

fn send(socket: RawFd, packet: &[u8], fd: Option<&OwnedFd>) {
    let raw: Vec<RawFd> = fd.iter().map(|fd| fd.as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() {
        &rights[..0]
    } else {
        &rights
    };
    let slices = [IoSlice::new(packet)];
    let _ = sendmsg::<()>(socket, &slices, control, MsgFlags::MSG_NOSIGNAL, None);
}

fn recv(socket: RawFd) -> Option<Vec<u8>> {
    let mut bytes = [0; 256];
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let len = recvmsg::<()>(socket, &mut slices, None, MsgFlags::empty())
        .ok()?
        .bytes;
    (len > 0).then(|| bytes[..len].to_vec())
}

/// Packets that came after the answer.
static ASKED_AGAIN: AtomicU64 = AtomicU64::new(0);

/// The exchange of a process that lies, on a thread; its name.
fn exchange(lie: Lie) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("tensorpipe-{:016x}{number:016x}", std::process::id());
    if matches!(lie, Lie::Absent | Lie::NotItsOwn) {
        return name;
    }
    let listener = socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .unwrap();
    let address = UnixAddr::new_abstract(name.as_bytes()).unwrap();
    bind(listener.as_raw_fd(), &address).unwrap();
    listen(&listener, Backlog::new(5).unwrap()).unwrap();
    std::thread::spawn(move || {
        let socket = accept(listener.as_raw_fd()).unwrap();
        let hello = recv(socket).unwrap();
        assert_eq!(hello, [b"\x01tple\x02", &INVITATION[..]].concat());
        answer(lie, socket);
        // Until the other side closes.
        while recv(socket).is_some() {
            ASKED_AGAIN.fetch_add(1, Ordering::SeqCst);
        }
        nix::unistd::close(socket).unwrap();
    });
    name
}

fn answer(lie: Lie, socket: RawFd) {
    let segment = [&[4][..], &SEGMENT].concat();
    // One loan of generation 4, offered.
    let word = if lie == Lie::OtherLedger { 0u32 } else { 5 };
    let ledger = |len| memory(len, &word.to_le_bytes(), fixed());
    let welcome = [b"\x03tple\x02", &INVITATION[..]].concat();
    let read_only = fixed() | SealFlag::F_SEAL_FUTURE_WRITE;
    let content = pattern(LEN, 1);
    let passed = match lie {
        Lie::Nonsense => return send(socket, b"\x09nonsense", None),
        Lie::Silent => return,
        Lie::TooEarly => {
            return send(socket, &segment, Some(&memory(LEN, &content, read_only)));
        }
        Lie::ShortLedger => return send(socket, &welcome, Some(&ledger(4096))),
        Lie::Unsealed => memory(LEN, &content, SealFlag::empty()),
        Lie::Writable => memory(LEN, &content, fixed()),
        Lie::Truncated => memory(4096, &content, read_only),
        Lie::Vast => memory(16 << 40, &content, read_only),
        Lie::File => std::fs::File::open("/proc/self/exe").unwrap().into(),
        _ => memory(LEN, &content, read_only),
    };
    send(socket, &welcome, Some(&ledger(4096 * (4 + 8))));
    // An honest reader asks for nothing that was not offered.
    let Some(fetch) = recv(socket) else { return };
    assert_eq!(fetch, [&[2][..], &SEGMENT].concat());
    match lie {
        Lie::Denies => send(socket, &[&[5][..], &SEGMENT].concat(), None),
        Lie::NoDescriptor => send(socket, &segment, None),
        Lie::Closes => {
            nix::sys::socket::shutdown(socket, nix::sys::socket::Shutdown::Both).unwrap();
        }
        _ => send(socket, &segment, Some(&passed)),
    }
}

/// A tensor of the liar's, and how the reading of it went.
async fn read_of(lie: Lie) -> (Result<Message, Error>, Pipe) {
    let (writer, reader) = pipe_of(lie).await;
    (read(&writer, &reader).await, reader)
}

/// The liar's end, and the reader's.
async fn pipe_of(lie: Lie) -> (Pipe, Pipe) {
    let honest: Arc<dyn Channel> = Arc::new(LeaseChannel::new());
    // The place of this process, but for its id and its exchange.
    let place = &honest.devices()[0].1[..37];
    let place = [place, &[0x5a; 16], exchange(lie).as_bytes()].concat();
    let liar = Double::liar(LeaseChannel::new(), move |_| LiarsLane {
        lie,
        sources: HashMap::new(),
    });
    let liar = liar.at(place).channel();
    let writer = Context::builder().name("liar").channels([liar]);
    let reader = Context::builder().name("reader").channels([honest]);
    let (writer, reader) = (writer.build().unwrap(), reader.build().unwrap());
    pair(&writer, &reader, "tcp://127.0.0.1:0").await
}

async fn read(writer: &Pipe, reader: &Pipe) -> Result<Message, Error> {
    let tensor = Tensor::from_vec(pattern(LEN, 1), [LEN as u64]).unwrap();
    let sent = writer.write(Message::new("m").tensor(tensor));
    let read = soon("the read", reader.read()).await;
    if read.is_ok() {
        soon("the write", sent).await.unwrap();
    }
    read
}

#[test]
fn the_stage_is_right() {
    alone(async || {
        let (read, pipe) = read_of(Lie::None).await;
        check(&read.unwrap().tensors[0].tensor, 1);
        assert_eq!(pipe.stats().bytes_borrowed, LEN as u64);
    });
}

#[test]
fn what_cannot_be_relied_on_is_not_mapped_and_the_bytes_come_another_way() {
    for lie in [
        Lie::Unsealed,
        Lie::Writable,
        Lie::Vast,
        Lie::File,
        Lie::NoDescriptor,
        Lie::ShortLedger,
        Lie::OtherLedger,
        Lie::Nonsense,
        Lie::TooEarly,
        Lie::Denies,
        Lie::Closes,
        Lie::Absent,
        Lie::NotItsOwn,
        Lie::Silent,
    ] {
        alone(async || {
            let (read, pipe) = read_of(lie).await;
            let message = read.unwrap_or_else(|error| panic!("{lie:?}: {error}"));
            check(&message.tensors[0].tensor, 1);
            assert_eq!(pipe.stats().bytes_borrowed, 0, "{lie:?}");
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let mapped = maps.lines().filter(|line| line.contains("memfd:liar"));
            // The ledger, where that one was right, and the segment, where that was.
            let right = if lie == Lie::OtherLedger { 2 } else { 1 };
            assert!(mapped.count() <= right, "{lie:?}:\n{maps}");
        });
    }
}

#[test]
fn an_exchange_that_failed_is_left_alone_for_a_while() {
    alone(async || {
        ASKED_AGAIN.store(0, Ordering::SeqCst);
        let (writer, reader) = pipe_of(Lie::Unsealed).await;
        for _ in 0..5 {
            let message = read(&writer, &reader).await.unwrap();
            check(&message.tensors[0].tensor, 1);
        }
        assert_eq!(ASKED_AGAIN.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn an_offer_that_cannot_be_true_ends_the_pipe_with_the_peers_fault() {
    for (lie, word) in [
        (Lie::Truncated, "outside its segment"),
        (Lie::WrongLength, "instead of"),
        (Lie::WildOffer, "no sense"),
        (Lie::WildSlot, "no sense"),
        (Lie::TwoInvitations, "another invitation"),
    ] {
        alone(async || {
            let (read, pipe) = read_of(lie).await;
            let error = read.unwrap_err();
            let fault = |error: &Error| {
                matches!(
                    error,
                    Error::Peer { fault: PeerFault::Channel { channel: "lease", what }, .. }
                        if what.contains(word)
                )
            };
            assert!(fault(&error), "{lie:?}: {error}");
            assert!(fault(&pipe.ended().await), "{lie:?}");
        });
    }
}
