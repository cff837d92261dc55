//! Connections between two ends of this process: bytes, deaths, forks, and the memory of an idle connection.

mod hostile;
mod idle;

use std::future::poll_fn;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::Waker;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use super::connection::{CAPACITY, ShmConnection};
use super::doorbell::REFUSED;
use super::*;
use crate::sys::fork::tests::{in_a_child, open_at_most, opens_files_anyway};
use crate::transports::Connection;

/// Two ends, open.
async fn pair() -> (ShmConnection, ShmConnection) {
    let (near, far) = UnixStream::pair().unwrap();
    opened(near, far).await
}

async fn opened(near: UnixStream, far: UnixStream) -> (ShmConnection, ShmConnection) {
    let mut near = ShmConnection::offer(near).unwrap();
    let mut far = ShmConnection::await_offer(far).unwrap();
    near.write_all(&[7]).await.unwrap();
    assert_eq!(far.read_u8().await.unwrap(), 7);
    (near, far)
}

/// Writes until there is no room; returns how much that was.
fn fill(writer: &mut ShmConnection, bytes: &[u8]) -> usize {
    let cx = &mut Context::from_waker(Waker::noop());
    let mut written = 0;
    while let Poll::Ready(wrote) = Pin::new(&mut *writer).poll_write(cx, &bytes[written..]) {
        let wrote = wrote.unwrap();
        if wrote == 0 {
            break;
        }
        written += wrote;
    }
    written
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

async fn read(reader: &mut ShmConnection, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    reader.read_exact(&mut bytes).await.unwrap();
    bytes
}

/// Lets the connection poll whether anything has come.
fn poll_for_bytes(connection: &mut ShmConnection) {
    let cx = &mut Context::from_waker(Waker::noop());
    let mut byte = [0];
    let read = Pin::new(connection).poll_read(cx, &mut ReadBuf::new(&mut byte));
    assert!(read.is_pending());
}

/// The copy stands for one that a forked child holds until it ends.
#[tokio::test]
async fn an_end_that_is_dropped_wakes_the_other_though_somebody_else_has_its_socket() {
    let soon = std::time::Duration::from_secs(5);
    for is_full in [false, true] {
        let (near, far) = UnixStream::pair().unwrap();
        let _childs = near.as_fd().try_clone_to_owned().unwrap();
        let (near, mut far) = opened(near, far).await;
        let waits = tokio::spawn(async move {
            match is_full {
                false => far.read(&mut [0]).await.map_err(|error| error.kind()),
                true => {
                    fill(&mut far, &pattern(4 << 20));
                    far.write(&[1]).await.map_err(|error| error.kind())
                }
            }
        });
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        drop(near);
        let ended = tokio::time::timeout(soon, waits).await;
        let expected = match is_full {
            false => Ok(0),
            true => Err(io::ErrorKind::BrokenPipe),
        };
        assert_eq!(ended.expect("it sleeps").unwrap(), expected);
    }
}

/// Nothing else would wake the sleeping end: its flag is already down.
#[tokio::test]
async fn a_wake_up_that_the_system_has_no_memory_for_is_made_up_for() {
    let soon = std::time::Duration::from_secs(5);
    for is_full in [false, true] {
        let (mut near, mut far) = pair().await;
        let reads = tokio::spawn(async move {
            // Asleep for bytes, or for room in a full ring.
            if is_full {
                far.write_all(&pattern(4 << 20)).await.unwrap();
            }
            far.read_u8().await
        });
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        REFUSED.set(3);
        if is_full {
            let all = tokio::time::timeout(soon, read(&mut near, 4 << 20));
            assert_eq!(all.await.expect("it sleeps"), pattern(4 << 20));
        }
        near.write_all(&[9]).await.unwrap();
        // Like a pipe, it waits for incoming bytes.
        let waits = tokio::spawn(async move { near.read_u8().await });
        let read = tokio::time::timeout(soon, reads).await;
        assert_eq!(read.expect("it sleeps").unwrap().unwrap(), 9);
        assert_eq!(REFUSED.get(), 0);
        waits.abort();
    }
}

/// The system cuts descriptors off that it has no room for.
#[tokio::test]
async fn memory_that_is_lost_for_want_of_descriptors_is_not_called_missing() {
    if opens_files_anyway() {
        return;
    }
    let (near, far) = UnixStream::pair().unwrap();
    let mut far = ShmConnection::await_offer(far).unwrap();
    let _near = ShmConnection::offer(near).unwrap();
    // Meanwhile, the runtime sees that there is something to read.
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert!(in_a_child(|| {
        open_at_most(0);
        let cx = &mut Context::from_waker(Waker::noop());
        let mut byte = [0];
        let read = Pin::new(&mut far).poll_read(cx, &mut ReadBuf::new(&mut byte));
        matches!(read, Poll::Ready(Err(error)) if error.raw_os_error() == Some(libc::EMFILE))
    }));
}

/// Polled where its memory is not mapped.
#[tokio::test]
async fn a_forked_childs_copy_of_a_connection_fails_and_the_parents_goes_on() {
    for polled in [false, true] {
        let (mut near, mut far) = pair().await;
        near.set_polled(polled);
        assert!(in_a_child(|| {
            let cx = &mut Context::from_waker(Waker::noop());
            let near = &mut near;
            near.set_polled(true);
            let mut byte = [0];
            let ready = near.is_ready() && near.is_ready_for(100);
            let read = Pin::new(&mut *near).poll_read(cx, &mut ReadBuf::new(&mut byte));
            let write = Pin::new(&mut *near).poll_write(cx, &byte);
            let shutdown = Pin::new(near).poll_shutdown(cx);
            let fails = |kind| kind == io::ErrorKind::NotConnected;
            ready
                && matches!(read, Poll::Ready(Err(error)) if fails(error.kind()))
                && matches!(write, Poll::Ready(Err(error)) if fails(error.kind()))
                && matches!(shutdown, Poll::Ready(Err(error)) if fails(error.kind()))
        }));
        near.write_all(b"still here").await.unwrap();
        assert_eq!(read(&mut far, 10).await, b"still here");
    }
}

#[tokio::test]
async fn everything_arrives_whatever_the_two_ends_do() {
    let (mut near, mut far) = pair().await;
    let bytes = pattern(24 << 20);
    let expected = bytes.clone();
    let writer = tokio::spawn(async move {
        let mut at = 0;
        for turn in 0.. {
            let len = [700, 300_000, 2_000_000, 64, 90_000][turn % 5].min(bytes.len() - at);
            if len == 0 {
                break;
            }
            near.write_all(&bytes[at..at + len]).await.unwrap();
            poll_for_bytes(&mut near);
            at += len;
        }
        near.shutdown().await.unwrap();
        near
    });
    let mut got = Vec::new();
    for turn in 0.. {
        let mut piece = vec![0; [1, 5000, 1 << 20, 70_000][turn % 4]];
        let len = far.read(&mut piece).await.unwrap();
        if len == 0 {
            break;
        }
        got.extend_from_slice(&piece[..len]);
        for _ in 0..turn % 3 {
            tokio::task::yield_now().await;
        }
    }
    assert!(got == expected, "{} bytes came", got.len());
    writer.await.unwrap();
}

#[tokio::test]
async fn what_was_written_arrives_though_its_writer_is_gone() {
    let (mut near, mut far) = pair().await;
    let bytes = pattern(2 << 20);
    assert_eq!(fill(&mut near, &bytes), CAPACITY);
    drop(near);
    assert_eq!(read(&mut far, CAPACITY).await, bytes[..CAPACITY]);
    let mut more = [0];
    let end = poll_fn(|cx| Pin::new(&mut far).poll_read(cx, &mut ReadBuf::new(&mut more))).await;
    assert!(end.is_ok());
}

#[test]
fn a_process_without_a_number_here_is_not_called_by_one() {
    let process = |pid| called(&PeerAddr::Process { pid, uid: 1000 });
    assert_eq!(process(Some(7)), "process 7");
    assert!(process(None).contains("another pid namespace"));
    assert!(!called(&PeerAddr::Unknown).contains("process 0"));
}

/// A failed `accept` makes a listener report that nobody can connect. Here only this peer cannot.
#[test]
#[allow(
    unsafe_code,
    reason = "of a process that is another user only a thread is at hand"
)]
fn whoever_is_not_let_in_is_no_failure_of_accept() {
    /// Switches only this thread to another user, or back to root.
    fn becomes(user: u32) -> bool {
        let same = u32::MAX;
        // SAFETY: it takes three numbers, and touches no memory.
        (unsafe { libc::syscall(libc::SYS_setresuid, same, user, same) }) == 0
    }

    if machine::user() != 0 || !std::thread::spawn(|| becomes(65_534)).join().unwrap() {
        println!("skipped: only root can be another user");
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let shm = ShmTransport::new();
        let mut acceptor = shm.listen("not let in").await.unwrap();
        let connects = std::thread::spawn(|| {
            let at = abstract_address("not let in").unwrap();
            let socket = socket().unwrap();
            assert!(becomes(65_534));
            socket.connect(&at).unwrap();
            socket
        });
        let error = poll_fn(|cx| acceptor.poll_accept(cx)).await;
        let Err(Error::System(error)) = error else {
            panic!("it is let in");
        };
        assert_eq!(error.call, "getsockopt");
        assert!(error.to_string().contains("uid 65534"), "{error}");
        drop(connects.join().unwrap());
    });
}
