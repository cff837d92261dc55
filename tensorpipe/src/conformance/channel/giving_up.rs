//! One end gives a message up at any moment, and the pipe goes on.

use super::devices::Held;
use super::{Subject, eventually, within};
use crate::context::Context;
use crate::error::{Error, ResetCode};
use crate::message::{Allocation, Place};

/// A skipped tensor becomes an empty one; its neighbours arrive.
pub async fn skipped_tensors_are_not_sent(subject: Subject) {
    let (client, server) = subject.pair().await;
    let write = client.write(subject.message(&[(1 << 20, 1), (2 << 20, 2), (1000, 3)]));
    let read = async {
        let incoming = server.read_descriptor().await?;
        let allocation = Allocation {
            tensors: vec![Place::Pool, Place::Skip, Place::Pool],
            ..Allocation::default()
        };
        incoming.read_into(allocation).await
    };
    let (written, read) = within("a message", async { tokio::join!(write, read) }).await;
    written.unwrap_or_else(|error| panic!("write: {error}"));
    let mut message = read.unwrap_or_else(|error| panic!("read: {error}"));
    assert!(message.tensors.remove(1).tensor.is_empty());
    let parts = [(1 << 20, 1), (1000, 3)];
    subject.check(&message, &parts).await;
    subject.move_parts(&client, &server, &[(4000, 4)]).await;
}

/// The writer of a refused message gets the reason; the next message arrives.
pub async fn refusing_leaves_the_pipe_going(subject: Subject) {
    let (client, server) = subject.pair().await;
    let write = client.write(subject.message(&[(3 << 20, 1)]));
    let incoming = within("a descriptor", server.read_descriptor()).await;
    incoming
        .unwrap_or_else(|error| panic!("{error}"))
        .refuse("no room");
    match within("the refusal", write).await {
        Err(Error::Refused { code, reason }) => {
            assert_eq!((code, &*reason), (ResetCode::Refused, "no room"));
        }
        other => panic!("{other:?}"),
    }
    subject.move_parts(&client, &server, &[(1 << 20, 2)]).await;
}

/// A write is cancelled before, at, and after the reader's go-ahead; the pipe goes on each time.
pub async fn cancel_of_the_writer_leaves_the_pipe_going(subject: Subject) {
    let (client, server) = subject.pair().await;
    for turns in 0..12 {
        let write = client.write(subject.message(&[(6 << 20, 1), (6 << 20, 2)]));
        let incoming = within("a descriptor", server.read_descriptor()).await;
        let read = incoming.unwrap_or_else(|error| panic!("{error}")).read();
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        write.cancel();
        match within("the read", read).await {
            Ok(message) => {
                let parts = [(6 << 20, 1), (6 << 20, 2)];
                subject.check(&message, &parts).await;
            }
            Err(Error::Reset { code, .. }) => assert_eq!(code, ResetCode::Cancelled),
            Err(other) => panic!("{other}"),
        }
        subject.move_parts(&client, &server, &[(50_000, 3)]).await;
    }
}

/// A read is dropped before, at, and after its first bytes; the pipe goes on each time, and the reader's memory comes back.
pub async fn dropped_reads_leave_the_pipe_going(subject: Subject) {
    let (client, server) = subject.pair().await;
    for turns in 0..12 {
        let write = client.write(subject.message(&[(6 << 20, 1), (20_000, 2)]));
        let incoming = within("a descriptor", server.read_descriptor()).await;
        let read = incoming.unwrap_or_else(|error| panic!("{error}")).read();
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        drop(read);
        match within("the write", write).await {
            Ok(()) | Err(Error::Refused { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        subject.move_parts(&client, &server, &[(50_000, 3)]).await;
    }
    eventually("memory back", || {
        server.pool().stats().outstanding_bytes == 0
    })
    .await;
}

/// Either end gives a message up, before, at, and after its first bytes, while the device stands still or not. All memory that lanes took
/// from the pools of both ends comes back.
pub async fn memory_comes_back_from_what_is_given_up(subject: Subject) {
    let contexts = [subject.context("client"), subject.context("server")];
    let (client, server) = subject.connect(&contexts[0], &contexts[1]).await;
    for turns in 0..12 {
        let hold = subject.hold.as_ref().filter(|_| turns % 2 == 1);
        let held = hold.map(|hold| Held::new(hold()));
        let release = async {
            if let Some(held) = held {
                held.release().await;
            }
        };
        let write = client.write(subject.message(&[(6 << 20, 1), (20_000, 2)]));
        let incoming = within("a descriptor", server.read_descriptor()).await;
        let read = incoming.unwrap_or_else(|error| panic!("{error}")).read();
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        if turns % 4 < 2 {
            drop(read);
            release.await;
            // It does not matter here whether it was sent in time.
            let _ = within("the write", write).await;
        } else {
            write.cancel();
            release.await;
            let _ = within("the read", read).await;
        }
        let in_use = |context: &Context| {
            let device = context.allocator(subject.device).ok();
            let device = device.map_or(0, |pool| pool.stats().outstanding_bytes);
            context.pool().stats().outstanding_bytes + device
        };
        eventually("memory back", || {
            contexts.iter().map(in_use).sum::<u64>() == 0
        })
        .await;
    }
    subject.move_parts(&client, &server, &[(50_000, 3)]).await;
}
