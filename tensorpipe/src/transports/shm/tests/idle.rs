//! The memory of an idle connection.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream as StdUnixStream;

use tokio::task::JoinHandle;

use super::super::rings::IDLE;
use super::*;
use crate::ring;
use crate::sys::unix_fds;

/// Both ends, and the memory that they share.
struct Ends {
    near: ShmConnection,
    far: ShmConnection,
    memory: std::fs::File,
}

impl Ends {
    async fn open() -> Self {
        let (near, far) = StdUnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        let (memory, fd): (_, OwnedFd) = ring::create(CAPACITY).unwrap();
        unix_fds::send(near.as_fd(), b"TPSHM\0\0\x02", Some(fd.as_fd())).unwrap();
        let near = ShmConnection::over(UnixStream::from_std(near).unwrap(), memory);
        let far = ShmConnection::await_offer(UnixStream::from_std(far).unwrap());
        Self {
            near: near.unwrap(),
            far: far.unwrap(),
            memory: fd.into(),
        }
    }

    /// Fills and drains all of both rings.
    async fn talk(&mut self) {
        let bytes = pattern(CAPACITY);
        for _ in 0..2 {
            assert_eq!(fill(&mut self.near, &bytes), CAPACITY);
            assert_eq!(read(&mut self.far, CAPACITY).await, bytes);
            assert_eq!(fill(&mut self.far, &bytes), CAPACITY);
            assert_eq!(read(&mut self.near, CAPACITY).await, bytes);
        }
    }

    fn resident(&self) -> usize {
        self.memory.metadata().unwrap().blocks() as usize * 512
    }
}

/// Waits for bytes that nobody writes.
fn sleeps(mut connection: ShmConnection) -> JoinHandle<()> {
    tokio::spawn(async move { _ = connection.read_u8().await })
}

#[tokio::test(start_paused = true)]
async fn it_goes_back_after_a_while() {
    let mut ends = Ends::open().await;
    ends.talk().await;
    assert!(ends.resident() >= 2 * CAPACITY);
    let Ends { near, far, memory } = ends;
    let asleep = [sleeps(near), sleeps(far)];
    tokio::time::sleep(IDLE / 2).await;
    let resident = || memory.metadata().unwrap().blocks() as usize * 512;
    assert!(resident() >= 2 * CAPACITY, "it is kept for a while");
    tokio::time::sleep(IDLE).await;
    assert!(resident() <= 16 << 10, "{}", resident());
    asleep.iter().for_each(JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn what_is_said_afterwards_arrives_and_pings_do_not_count() {
    let mut ends = Ends::open().await;
    for _ in 0..3 {
        ends.talk().await;
        assert!(ends.resident() >= 2 * CAPACITY);
        for _ in 0..12 {
            poll_for_bytes(&mut ends.near);
            poll_for_bytes(&mut ends.far);
            tokio::time::sleep(IDLE / 6).await;
            tokio::task::yield_now().await;
            ends.near.write_all(b"ping").await.unwrap();
            assert_eq!(read(&mut ends.far, 4).await, b"ping");
        }
        // A page for the words, and one or two for the last ping.
        assert!(ends.resident() <= 16 << 10, "{}", ends.resident());
    }
}

#[tokio::test]
async fn little_traffic_takes_little_memory() {
    let mut ends = Ends::open().await;
    let bytes = pattern(1000);
    for _ in 0..2000 {
        ends.near.write_all(&bytes).await.unwrap();
        assert_eq!(read(&mut ends.far, 1000).await, bytes);
        ends.far.write_all(&bytes).await.unwrap();
        assert_eq!(read(&mut ends.near, 1000).await, bytes);
    }
    // A page for the words, and two for each ring.
    assert!(ends.resident() <= 20 << 10, "{}", ends.resident());
}

#[tokio::test(start_paused = true)]
async fn what_nobody_has_read_is_kept() {
    let mut ends = Ends::open().await;
    let bytes = pattern(CAPACITY);
    assert_eq!(fill(&mut ends.near, &bytes), CAPACITY);
    for _ in 0..4 {
        poll_for_bytes(&mut ends.near);
        tokio::time::sleep(IDLE).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(read(&mut ends.far, CAPACITY).await, bytes);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_talks_keeps_it() {
    let mut ends = Ends::open().await;
    ends.talk().await;
    for _ in 0..20 {
        poll_for_bytes(&mut ends.near);
        poll_for_bytes(&mut ends.far);
        tokio::time::sleep(IDLE / 8).await;
        tokio::task::yield_now().await;
        ends.near.write_all(&pattern(8 << 10)).await.unwrap();
        read(&mut ends.far, 8 << 10).await;
        ends.far.write_all(&pattern(8 << 10)).await.unwrap();
        read(&mut ends.near, 8 << 10).await;
    }
    assert!(ends.resident() >= 2 * CAPACITY, "{}", ends.resident());
}
