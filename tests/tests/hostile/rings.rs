//! A hostile peer at the socket of `shm`, which builds the ring's memory by hand from WIRE.md, correctly or not.

#![allow(unsafe_code, reason = "a hostile peer maps the memory of its rings")]

use std::fs::File;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use tensorpipe::Context;
use tensorpipe::transports::ShmTransport;

use super::logs::warnings;
use super::memory::{Purse, story};
use super::raw::{SOON, hello, noise, preface};
use super::server::Target;
use super::stream::Way;

const OFFER: &[u8; 8] = b"TPSHM\0\0\x02";
const CAPACITY: u64 = 64 << 10;

/// Where the connector's ring begins, and the listener's.
const OUT: u64 = 1024;
const BACK: u64 = 2048;
/// In both.
const WRITTEN: u64 = 0;
const ORIGIN: u64 = 8;
const READ: u64 = 128;
const DATA: u64 = 4096;
const DONE: u64 = 1 << 63;

/// All that a listener wants to see.
fn seals() -> SealFlag {
    SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL
}

fn memory(len: u64, seals: SealFlag) -> File {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = File::from(memfd_create(c"hostile peer", flags).unwrap());
    file.set_len(len).unwrap();
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    file
}

fn rings() -> File {
    memory(DATA + 2 * CAPACITY, seals())
}

pub(crate) fn knock(url: &str) -> (UnixStream, Purse) {
    let purse = Purse::at(url);
    let name = url.strip_prefix("shm://").unwrap();
    let name = format!("tensorpipe/shm/{name}");
    let address = SocketAddr::from_abstract_name(name).unwrap();
    (UnixStream::connect_addr(&address).unwrap(), purse)
}

pub(crate) fn offer(socket: &UnixStream, bytes: &[u8], fds: &[i32]) -> bool {
    let rights = [ControlMessage::ScmRights(fds)];
    let rights = if fds.is_empty() { &[][..] } else { &rights };
    let (fd, flags) = (socket.as_raw_fd(), MsgFlags::MSG_NOSIGNAL);
    sendmsg::<()>(fd, &[IoSlice::new(bytes)], rights, flags, None).is_ok()
}

struct HostilePeer {
    purse: Purse,
    socket: UnixStream,
    rings: File,
    sent: u64,
}

impl HostilePeer {
    /// A good beginning.
    fn enter(url: &str) -> Self {
        let ((socket, purse), rings) = (knock(url), rings());
        assert!(offer(&socket, OFFER, &[rings.as_raw_fd()]));
        Self {
            purse,
            socket,
            rings,
            sent: 0,
        }
    }

    fn set(&self, at: u64, value: u64) {
        self.rings.write_all_at(&value.to_le_bytes(), at).unwrap();
        self.wake();
    }

    fn counter(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.rings.read_exact_at(&mut bytes, at).unwrap();
        u64::from_le_bytes(bytes)
    }

    fn wake(&self) {
        let _ = (&self.socket).write(&[1]);
    }

    /// As far as the other side reads.
    fn send(&mut self, mut bytes: &[u8]) {
        let begun = Instant::now();
        while !bytes.is_empty() && begun.elapsed() < SOON {
            let room = self.counter(OUT + READ) & !DONE;
            let room = (room + CAPACITY - self.sent).min(CAPACITY - self.sent % CAPACITY);
            let (now, later) = bytes.split_at(bytes.len().min(room as usize));
            let at = DATA + self.sent % CAPACITY;
            self.purse.pays(now.len());
            self.rings.write_all_at(now, at).unwrap();
            self.sent += now.len() as u64;
            self.set(OUT + WRITTEN, self.sent);
            bytes = later;
        }
    }

    /// Whether the other side reads on, and so much can be written.
    fn has_room(&self, len: u64) -> bool {
        let has_room = || self.sent + len <= (self.counter(OUT + READ) & !DONE) + CAPACITY;
        (0..4).any(|_| {
            let has_room = has_room();
            if !has_room {
                std::thread::sleep(Duration::from_millis(1));
            }
            has_room
        })
    }

    /// An open pipe: HELLO is in our ring, the ANSWER in theirs.
    fn open(url: &str) -> Self {
        let mut hostile = Self::enter(url);
        hostile.send(&hello());
        let begun = Instant::now();
        while hostile.counter(BACK + WRITTEN) < 100 {
            assert!(begun.elapsed() < SOON, "no answer");
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut found = [0; 12];
        let answer = DATA + CAPACITY;
        hostile.rings.read_exact_at(&mut found, answer).unwrap();
        assert_eq!(found.to_vec(), preface());
        hostile
    }

    fn is_cut(&self, what: &str) {
        is_cut(&self.socket, what, SOON);
    }

    /// Waits until the other side has read beyond the first `before` bytes, or has let go of the socket.
    fn was_met(&mut self, before: u64) -> bool {
        let begun = Instant::now();
        self.socket.set_nonblocking(true).unwrap();
        while begun.elapsed() < SOON {
            let is_gone = match self.socket.read(&mut [0; 4096]) {
                Ok(len) => len == 0,
                Err(error) => error.kind() != ErrorKind::WouldBlock,
            };
            if is_gone || self.counter(OUT + READ) & !DONE > before {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }
}

/// Waits until the other side lets go of the socket.
fn is_cut(mut socket: &UnixStream, what: &str, within: Duration) {
    let begun = Instant::now();
    let mut piece = [0; 4096];
    loop {
        let left = within.saturating_sub(begun.elapsed());
        assert!(!left.is_zero(), "{what}: it still stands after {within:?}");
        socket.set_read_timeout(Some(left)).unwrap();
        match socket.read(&mut piece) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                _ => return,
            },
        }
    }
}

#[test]
fn an_offer_that_is_none_is_cut_off_at_once() {
    // No bound of time ends what is accepted by mistake.
    let bounds = [("TEST_HANDSHAKE", "60000"), ("TEST_GREETING", "60000")];
    let target = Target::start_with(Way::Shm, &bounds);
    let socket = UnixStream::pair().unwrap().0;
    let file = File::open("/proc/self/exe").unwrap();
    let half = SealFlag::F_SEAL_GROW;
    let unfit = |len| memory(len, seals());
    let offers: [(&str, &[u8], Vec<OwnedFd>); 14] = [
        ("an HTTP request", b"GET / HTTP/1.1\r\n\r\n", vec![]),
        ("one byte", b"T", vec![]),
        ("noise", &noise(1, 3000), vec![]),
        ("no memory", OFFER, vec![]),
        ("another version", b"TPSHM\0\0\x03", vec![rings().into()]),
        ("a file", OFFER, vec![file.into()]),
        ("a socket", OFFER, vec![socket.into()]),
        (
            "memory that can shrink",
            OFFER,
            vec![memory(DATA + 2 * CAPACITY, half).into()],
        ),
        ("no bytes at all", OFFER, vec![unfit(0).into()]),
        ("half a page", OFFER, vec![unfit(2048).into()]),
        (
            "rings of an odd size",
            OFFER,
            vec![unfit(DATA + 2 * CAPACITY + 2).into()],
        ),
        ("rings of 2 KiB", OFFER, vec![unfit(DATA + 4096).into()]),
        (
            "rings of 1 GiB",
            OFFER,
            vec![unfit(DATA + (2 << 30)).into()],
        ),
        (
            "memory that cannot be written",
            OFFER,
            vec![memory(DATA + 2 * CAPACITY, seals() | SealFlag::F_SEAL_WRITE).into()],
        ),
    ];
    for (what, bytes, fds) in offers {
        let (socket, _purse) = knock(&target.pipes);
        let fds: Vec<i32> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        assert!(offer(&socket, bytes, &fds));
        is_cut(&socket, what, SOON);
    }
    // Nothing, and gone.
    drop(knock(&target.pipes));
    target.stays_unharmed();
}

/// The connector only sees the end of the connection.
#[test]
fn why_memory_is_not_taken_is_a_warning() {
    let _story = story!();
    let url = format!("shm://why {}", std::process::id());
    let warnings = warnings(async {
        let context = Context::builder().transports([Arc::new(ShmTransport::new()) as _]);
        let context = context.build().unwrap();
        let listener = context.listen([&*url]).await.unwrap();
        // One goes without a word.
        drop(knock(&url));
        let (socket, _purse) = knock(&url);
        let open = memory(DATA + 2 * CAPACITY, SealFlag::empty());
        assert!(offer(&socket, OFFER, &[open.as_raw_fd()]));
        let cut = tokio::task::spawn_blocking(move || is_cut(&socket, "open memory", SOON));
        cut.await.unwrap();
        listener
    });
    let [warning] = &warnings[..] else {
        panic!("{warnings:?}");
    };
    assert!(warning.contains("lacks the seals"), "{warning}");
}

/// What else it brings is closed, and does not stay open at the server's cost.
#[test]
fn memory_by_the_dozen_is_closed() {
    let target = Target::start(Way::Shm);
    let before = target.descriptors();
    for many in [2, 4, 5, 64] {
        let (socket, _purse) = knock(&target.pipes);
        let fds: Vec<File> = (0..many).map(|_| rings()).collect();
        let fds: Vec<i32> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        assert!(offer(&socket, OFFER, &fds));
        std::thread::sleep(Duration::from_millis(50));
        drop(socket);
    }
    let begun = Instant::now();
    while target.descriptors() > before {
        assert!(
            begun.elapsed() < SOON,
            "{} more",
            target.descriptors() - before
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    target.stays_unharmed();
}

#[test]
fn whoever_offers_nothing_is_cut_off_at_the_bound() {
    let target = Target::start(Way::Shm);
    let silent: Vec<_> = (0..50).map(|_| knock(&target.pipes)).collect();
    let offered: Vec<_> = (0..50).map(|_| HostilePeer::enter(&target.pipes)).collect();
    target.serves();
    for (socket, _purse) in silent {
        is_cut(&socket, "a silent hostile peer", 2 * SOON);
    }
    for hostile in offered {
        is_cut(&hostile.socket, "one with an empty ring", 2 * SOON);
    }
    target.stays_unharmed();
}

#[test]
fn counters_that_cannot_be_end_their_pipe_and_no_other() {
    let target = Target::start_with(Way::Shm, &[("TEST_HANDSHAKE", "60000")]);
    let hello = hello().len() as u64;
    let cases = [
        (
            "more written than fits",
            OUT + WRITTEN,
            hello + CAPACITY + 1,
        ),
        ("very much written", OUT + WRITTEN, DONE - 1),
        ("less written than before", OUT + WRITTEN, hello - 1),
        ("nothing written, and the end", OUT + WRITTEN, DONE),
        ("the end", OUT + WRITTEN, hello | DONE),
    ];
    for (what, at, value) in cases {
        let hostile = HostilePeer::open(&target.pipes);
        hostile.set(at, value);
        hostile.is_cut(what);
    }
    // More read than was written, and that nobody reads any more, is seen when there is no room for what is to be written.
    for value in [1 << 40, DONE - 1, DONE] {
        let mut hostile = HostilePeer::open(&target.pipes);
        hostile.set(BACK + READ, value);
        let echoes = super::raw::message(&[7; 1000], &[], b"").repeat(100);
        hostile.send(&echoes);
        hostile.is_cut(&format!("{value:x} bytes read"));
    }
    target.stays_unharmed();
}

/// The server's own counters are in memory that the hostile peer can write, too; it does not look at them.
#[test]
fn a_servers_own_counters_are_not_believed() {
    let target = Target::start(Way::Shm);
    let mut hostile = HostilePeer::open(&target.pipes);
    for at in [OUT + READ, BACK + WRITTEN] {
        hostile.set(at, 1 << 40);
    }
    // No room, if one believed it oneself.
    hostile.set(OUT + READ, hostile.sent);
    hostile.send(&super::raw::message(b"still here", &[], b""));
    let begun = Instant::now();
    let mut all = vec![0; CAPACITY as usize];
    loop {
        let back = DATA + CAPACITY;
        hostile.rings.read_exact_at(&mut all, back).unwrap();
        if all.windows(10).any(|window| window == b"still here") {
            break;
        }
        assert!(begun.elapsed() < SOON, "no echo");
        std::thread::sleep(Duration::from_millis(2));
    }
    target.stays_unharmed();
}

/// Bytes on the socket say only: look again.
#[test]
fn wake_ups_by_the_million_are_no_harm() {
    let target = Target::start(Way::Shm);
    target.serves();
    let before = target.resident();
    let hostile = HostilePeer::open(&target.pipes);
    let bound = Some(Duration::from_millis(500));
    hostile.socket.set_write_timeout(bound).unwrap();
    let begun = Instant::now();
    let mut sent = 0;
    while sent < 4 << 20 && begun.elapsed() < Duration::from_secs(3) {
        match (&hostile.socket).write(&[1; 4096]) {
            Ok(len) => sent += len,
            Err(_) => break,
        }
    }
    println!("{sent} wake-ups");
    assert!(sent > 1000);
    target.serves();
    target.shrinks_to(before, 8 << 20, "wake-ups");
    drop(hostile);
    target.stays_unharmed();
}

/// What a thread of a hostile peer writes all the time.
#[derive(Clone, Copy, Debug)]
enum Rewrites {
    /// Bytes of the ring, of frames that are being read.
    Bytes,
    /// How much is written: what can be, and what cannot, in turn.
    Written,
    /// Where they lie.
    Origin,
    /// How much is read, likewise.
    Read,
}

/// The memory of the rings, as words.
struct Words(&'static [AtomicU64]);

impl Words {
    fn of(rings: &File) -> Self {
        let len = (DATA + 2 * CAPACITY) as usize;
        let length = NonZeroUsize::new(len).unwrap();
        let flags = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the system's choice touches no memory of anybody else.
        let at = unsafe { mmap(None, length, flags, MapFlags::MAP_SHARED, rings, 0) }.unwrap();
        // SAFETY: the mapping has so many words, begins on a page, and is taken away when this is dropped. Others write to it.
        Self(unsafe { std::slice::from_raw_parts(at.cast().as_ptr(), len / 8) })
    }

    fn set(&self, at: u64, value: u64) {
        self.0[at as usize / 8].store(value, Ordering::Release);
    }

    fn rewrites(&self, what: Rewrites, sent: &AtomicU64, round: u64) {
        let sent = sent.load(Ordering::Relaxed);
        match what {
            Rewrites::Bytes => {
                let noise = round.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                self.set(DATA + 8 * (noise >> 40) % CAPACITY, noise);
            }
            Rewrites::Written => {
                let bad = [0, sent + 3 * CAPACITY][round as usize / 8 % 2];
                let is_bad = round.is_multiple_of(8);
                self.set(OUT + WRITTEN, if is_bad { bad } else { sent });
            }
            Rewrites::Origin => self.set(OUT + ORIGIN, round.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            Rewrites::Read => {
                self.set(BACK + READ, 0);
                self.set(BACK + READ, 1 << 40);
            }
        }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        let start = NonNull::from(self.0).cast();
        // SAFETY: nobody has a reference to the mapping any more.
        let _ = unsafe { munmap(start, size_of_val(self.0)) };
    }
}

/// What is decided by memory that its writer still changes is decided on a copy.
#[test]
fn rings_that_are_rewritten_all_the_time_are_no_harm() {
    let target = Target::start(Way::Shm);
    let message = super::raw::message(&[7; 1000], &[], b"");
    for (what, connections) in [
        (Rewrites::Bytes, 10),
        (Rewrites::Written, 300),
        (Rewrites::Origin, 20),
        (Rewrites::Read, 20),
    ] {
        for _ in 0..connections {
            let mut hostile = HostilePeer::open(&target.pipes);
            let words = Words::of(&hostile.rings);
            let before = hostile.sent;
            let (over, sent) = (AtomicBool::new(false), AtomicU64::new(before));
            let was_met = std::thread::scope(|scope| {
                scope.spawn(|| {
                    for round in 0.. {
                        if over.load(Ordering::Relaxed) {
                            break;
                        }
                        words.rewrites(what, &sent, round);
                    }
                });
                // More than fits: the server looks for room, too.
                for _ in 0..150 {
                    if !hostile.has_room(message.len() as u64) {
                        break;
                    }
                    hostile.send(&message);
                    sent.store(hostile.sent, Ordering::Relaxed);
                }
                let was_met = hostile.was_met(before);
                over.store(true, Ordering::Relaxed);
                was_met
            });
            assert!(was_met, "nobody reads what has {what:?} rewritten");
        }
    }
    target.stays_unharmed();
}

/// The memory of one connection, brought to others.
#[test]
fn memory_that_is_offered_again_harms_nobody_else() {
    let target = Target::start(Way::Shm);
    let hostile = HostilePeer::open(&target.pipes);
    let again: Vec<_> = (0..20)
        .map(|_| {
            let (socket, purse) = knock(&target.pipes);
            assert!(offer(&socket, OFFER, &[hostile.rings.as_raw_fd()]));
            (socket, purse)
        })
        .collect();
    target.serves();
    drop((again, hostile));
    target.stays_unharmed();
}
