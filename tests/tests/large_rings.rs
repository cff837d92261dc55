//! Large rings between two processes: who has them, and when their memory goes back.
//!
//! Bare connections, on which nothing is said but what a test writes: pipes would ping.
#![allow(missing_docs, reason = "a test")]

use std::future::poll_fn;
use std::time::Duration;

use tensorpipe::transports::{Connection, ShmTransport, Transport};
use tensorpipe_tests::{Child, eventually, runtime, say, soon};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// So many are there for one direction.
const MOST: usize = 4;

/// A transfer, in bytes: a large ring is full of it more than once.
const LEN: usize = 4 << 20;

/// Reads slowly what comes over each connection.
#[test]
fn child() {
    match tensorpipe_tests::role().as_deref() {
        None => {}
        Some("reads") => runtime().block_on(reads()),
        Some(role) => panic!("no role {role}"),
    }
}

async fn reads() {
    let name = format!("large-rings-{}", std::process::id());
    let mut acceptor = ShmTransport::new().listen(&name).await.unwrap();
    say("name", name);
    loop {
        let mut connection = poll_fn(|cx| acceptor.poll_accept(cx)).await.unwrap();
        tokio::spawn(async move {
            let (mut bytes, mut sum) = (vec![0; 64 << 10], 0);
            while let Ok(len @ 1..) = connection.read(&mut bytes).await {
                let right = (sum..sum + len).map(|at| (at % 251) as u8);
                assert!(right.eq(bytes[..len].iter().copied()), "byte {sum}");
                sum += len;
                if sum.is_multiple_of(LEN) {
                    say("read", sum);
                }
                // Not as fast as they come.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
    }
}

/// Large rings that a process has mapped.
fn mapped(process: u32) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    let rings = maps.lines().filter(|line| line.contains("large ring"));
    rings.count()
}

async fn transfer(connection: &mut Box<dyn Connection>) {
    let bytes: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
    let write = connection.write_all(&bytes);
    soon("a transfer", write).await.unwrap();
}

#[test]
fn those_of_idle_connections_serve_others_and_go_back() {
    let child = Child::start("reads", &[]);
    let (name, ours) = (child.hear("name"), std::process::id());
    runtime().block_on(async {
        let transport = ShmTransport::new();
        for _ in 0..MOST {
            let mut connection = transport.connect(&name).await.unwrap();
            transfer(&mut connection).await;
            // Beside what is not read yet it waits for an answer, which never comes.
            tokio::spawn(async move { connection.read_u8().await });
        }
        (0..MOST).for_each(|_| drop(child.hear("read")));
        assert_eq!((mapped(ours), mapped(child.id())), (MOST, MOST));
        let mut connection = transport.connect(&name).await.unwrap();
        transfer(&mut connection).await;
        child.hear("read");
        assert_eq!(mapped(ours), MOST, "there are no more");
        assert_eq!(mapped(child.id()), MOST + 1, "the last one got none");
        tokio::spawn(async move { connection.read_u8().await });
        eventually("their memory", || mapped(ours) + mapped(child.id()) == 0).await;
    });
}
