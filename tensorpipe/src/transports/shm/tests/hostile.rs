//! A peer that writes anything into the memory, and sends anything over the socket, between any two polls: the connection goes
//! on or ends with an error.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

use proptest::prelude::*;

use super::super::connection::{WAKE_READS, WAKES};
use super::*;
use crate::ring;
use crate::sys::{memfd, unix_fds};
use crate::transports::Connection;

/// The peer, by hand.
struct HostilePeer {
    memory: std::fs::File,
    socket: StdUnixStream,
    passed: Vec<OwnedFd>,
}

#[derive(Clone, Debug)]
enum Act {
    /// A word of either control block.
    Set(u64, u64, u64),
    /// A packet, with a descriptor beside it that nobody asked for.
    Send(usize, Option<usize>),
    Read(usize),
    Write(usize),
    Polled(bool),
    Hour,
}

fn act() -> impl Strategy<Value = Act> {
    let words = prop::sample::select(vec![0u64, 8, 128, 136, 256, 384]);
    let value = prop_oneof![
        4 => 0u64..6,
        4 => (0u64..9).prop_map(|n| n << 14),
        2 => 0u64..3_000_000,
        1 => any::<u64>(),
    ];
    let word = (prop::sample::select(vec![1024u64, 2048]), words, value);
    prop_oneof![
        6 => word.prop_map(|(block, word, value)| Act::Set(block, word, value)),
        2 => (1usize..100, prop::option::of(0usize..3)).prop_map(|(len, fd)| Act::Send(len, fd)),
        3 => (1usize..200_000).prop_map(Act::Read),
        3 => (1usize..2_000_000).prop_map(Act::Write),
        1 => any::<bool>().prop_map(Act::Polled),
        1 => Just(Act::Hour),
    ]
}

impl HostilePeer {
    /// And the connection that accepted it.
    async fn enter() -> (Self, ShmConnection) {
        let (near, far) = StdUnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        let (_, memory) = ring::create(64 << 10).unwrap();
        unix_fds::send(near.as_fd(), b"TPSHM\0\0\x02", Some(memory.as_fd())).unwrap();
        let mut connection =
            ShmConnection::await_offer(UnixStream::from_std(far).unwrap()).unwrap();
        let cx = &mut Context::from_waker(Waker::noop());
        while connection.awaits_offer() {
            let read = Pin::new(&mut connection).poll_read(cx, &mut ReadBuf::new(&mut [0]));
            assert!(read.is_pending());
            tokio::task::yield_now().await;
        }
        let (_, other) = ring::create(64 << 10).unwrap();
        let open = memfd::create(c"test", 1 << 20, false).unwrap();
        let nothing = std::fs::File::open("/dev/null").unwrap().into();
        let hostile = Self {
            memory: memory.into(),
            socket: near,
            passed: vec![other, open, nothing],
        };
        (hostile, connection)
    }

    fn set(&self, at: u64, value: u64) {
        self.memory.write_all_at(&value.to_ne_bytes(), at).unwrap();
    }
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Polls on a thread where no runtime bounds how much one poll does. Returns whether the poll has asked for another one.
fn polled_on_a_thread(connection: &mut ShmConnection, reads: bool) -> bool {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let poll = || {
        let cx = &mut Context::from_waker(&waker);
        match reads {
            true => Pin::new(connection)
                .poll_read(cx, &mut ReadBuf::new(&mut [0]))
                .is_pending(),
            false => Pin::new(connection).poll_write(cx, &[0]).is_pending(),
        }
    };
    let is_pending = std::thread::scope(|scope| scope.spawn(poll).join().unwrap());
    assert!(is_pending, "the ring has nothing for it");
    woken.0.load(Ordering::Relaxed)
}

#[tokio::test]
async fn a_peer_that_floods_with_wake_ups_keeps_no_thread() {
    for reads in [true, false] {
        let (mut hostile, mut connection) = HostilePeer::enter().await;
        if !reads {
            fill(&mut connection, &pattern(1 << 20));
        }
        let mut flood = 0;
        while let Ok(sent) = hostile.socket.write(&[1; WAKES * WAKE_READS]) {
            flood += sent;
        }
        assert!(flood > 10 * WAKES * WAKE_READS, "{flood}");
        let mut polls = 0;
        for _ in 0..10_000 {
            match polled_on_a_thread(&mut connection, reads) {
                true => polls += 1,
                false if polls > 0 => break,
                // The reactor has not seen the flood yet.
                false => tokio::time::sleep(std::time::Duration::from_millis(1)).await,
            }
        }
        assert!(
            polls * WAKES * WAKE_READS >= flood - WAKES * WAKE_READS,
            "{polls} polls for {flood} wake-ups"
        );
    }
}

async fn story(acts: Vec<Act>) {
    let (hostile, mut connection) = HostilePeer::enter().await;
    let cx = &mut Context::from_waker(Waker::noop());
    let mut bytes = vec![0; 2_000_000];
    for act in acts {
        match act {
            Act::Set(block, word, value) => hostile.set(block + word, value),
            Act::Send(len, fd) => {
                let fd = fd.map(|number| hostile.passed[number].as_fd());
                let _ = unix_fds::send(hostile.socket.as_fd(), &bytes[..len], fd);
                tokio::task::yield_now().await;
            }
            Act::Read(len) => {
                let mut buf = ReadBuf::new(&mut bytes[..len]);
                let _ = Pin::new(&mut connection).poll_read(cx, &mut buf);
            }
            Act::Write(len) => {
                let wrote = Pin::new(&mut connection).poll_write(cx, &bytes[..len]);
                assert!(!matches!(wrote, Poll::Ready(Ok(wrote)) if wrote > len));
            }
            Act::Polled(polled) => {
                connection.set_polled(polled);
                connection.is_ready();
                connection.is_ready_for(1000);
            }
            Act::Hour => tokio::time::sleep(std::time::Duration::from_secs(3600)).await,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_hostile_peer_does_anything(acts in prop::collection::vec(act(), 1..60)) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(story(acts));
    }
}
