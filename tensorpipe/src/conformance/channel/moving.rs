//! Tensors of every size, one and many at once, arrive unchanged, where their reader wants them.

use super::{Subject, within};
use crate::message::{Allocation, Message, Place};

/// Sizes around every limit that a channel may have.
const SIZES: [usize; 9] = [
    1,
    7,
    4096,
    4097,
    65_536,
    65_537,
    (1 << 20) - 1,
    3 << 20,
    (9 << 20) + 5,
];

/// Tensors of many sizes from the end that connected.
pub async fn client_to_server(subject: Subject) {
    let (client, server) = subject.pair().await;
    for (i, len) in SIZES.into_iter().enumerate() {
        subject
            .move_parts(&client, &server, &[(len, i as u64)])
            .await;
    }
}

/// Tensors of many sizes from the end that accepted.
pub async fn server_to_client(subject: Subject) {
    let (client, server) = subject.pair().await;
    for (i, len) in SIZES.into_iter().enumerate() {
        subject
            .move_parts(&server, &client, &[(len, i as u64)])
            .await;
    }
}

/// Many tensors in one message, of different sizes.
pub async fn send_multiple_tensors(subject: Subject) {
    let (client, server) = subject.pair().await;
    let parts: Vec<_> = (0..40).map(|i| (1 + i * 4099, i as u64)).collect();
    subject.move_parts(&client, &server, &parts).await;
}

/// Both ends send at once.
pub async fn send_tensors_both_ways(subject: Subject) {
    let (client, server) = subject.pair().await;
    for round in 0..4 {
        let there = [(2 << 20, round), (100, round + 10)];
        let back = [(3 << 20, round + 20), (5000, round + 30)];
        tokio::join!(
            subject.move_parts(&client, &server, &there),
            subject.move_parts(&server, &client, &back),
        );
    }
}

/// A tensor without bytes arrives with its type and shape.
pub async fn empty_tensor(subject: Subject) {
    let (client, server) = subject.pair().await;
    subject.move_parts(&client, &server, &[(0, 0)]).await;
    subject
        .move_parts(&server, &client, &[(0, 0), (0, 0)])
        .await;
}

/// Tensors with and without bytes in one message.
pub async fn empty_and_nonempty_tensors(subject: Subject) {
    let (client, server) = subject.pair().await;
    let parts = [(0, 0), (5000, 1), (0, 0), (0, 0), (1 << 20, 2), (0, 0)];
    subject.move_parts(&client, &server, &parts).await;
}

/// Memory without bytes at both ends, brought by the reader.
pub async fn null_pointer(subject: Subject) {
    let (client, server) = subject.pair().await;
    let message = Message::new("m").tensor(subject.tensor(0, 0));
    let read = async {
        let incoming = server.read_descriptor().await?;
        let allocation = Allocation {
            tensors: vec![Place::Into((subject.room)(0))],
            ..Allocation::default()
        };
        incoming.read_into(allocation).await
    };
    let (written, read) = within("a message", async {
        tokio::join!(client.write(message), read)
    })
    .await;
    written.unwrap_or_else(|error| panic!("write: {error}"));
    let message = read.unwrap_or_else(|error| panic!("read: {error}"));
    subject.check(&message, &[(0, 0)]).await;
}

/// Memory that the reader brings is filled and returned; other parts arrive in memory of the channel or the pool.
pub async fn into_memory_of_the_readers(subject: Subject) {
    let (client, server) = subject.pair().await;
    for len in [1, 70_000, 5 << 20] {
        let parts = [(len, 1), (len / 2 + 1, 2), (len, 3)];
        let read = async {
            let incoming = server.read_descriptor().await?;
            let allocation = Allocation {
                tensors: vec![
                    Place::Into((subject.room)(parts[0].0)),
                    Place::Pool,
                    Place::Into((subject.room)(parts[2].0)),
                ],
                ..Allocation::default()
            };
            incoming.read_into(allocation).await
        };
        let (written, read) = within("a message", async {
            tokio::join!(client.write(subject.message(&parts)), read)
        })
        .await;
        written.unwrap_or_else(|error| panic!("write: {error}"));
        let message = read.unwrap_or_else(|error| panic!("read: {error}"));
        subject.check(&message, &parts).await;
    }
}

/// Many messages are written before one is read; reads start together and may end in any order.
pub async fn many_messages_under_way(subject: Subject) {
    let (client, server) = subject.pair().await;
    let parts = |i: u64| [((i as usize % 7) * 60_000 + 1, i), (10, i + 100)];
    let writes: Vec<_> = (0..20)
        .map(|i| client.write(subject.message(&parts(i))))
        .collect();
    let mut reads = Vec::new();
    for _ in 0..20 {
        let incoming = within("a descriptor", server.read_descriptor()).await;
        reads.push(incoming.unwrap_or_else(|error| panic!("{error}")).read());
    }
    for (i, read) in reads.into_iter().enumerate().rev() {
        let message = within("a read", read).await;
        let message = message.unwrap_or_else(|error| panic!("read: {error}"));
        subject.check(&message, &parts(i as u64)).await;
    }
    for write in writes {
        let written = within("a write", write).await;
        written.unwrap_or_else(|error| panic!("write: {error}"));
    }
}
