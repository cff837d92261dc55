//! Long streams of bytes, in pieces of every size.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Subject, assert_same, ended, expect, pattern, within, write};
use crate::transports::Connection;

/// Pieces of odd sizes arrive as one stream, whatever the sizes of reads.
pub async fn chunking(subject: Subject) {
    const LEN: usize = 4 << 20;
    let (mut client, mut server) = subject.pair().await;
    let bytes = Arc::new(pattern(LEN, 7));
    let sent = bytes.clone();
    let writer = tokio::spawn(async move {
        let mut rest = sent.as_slice();
        for len in (1..).map(|i: usize| (i * 7919) % 100_003) {
            let (piece, after) = rest.split_at(len.min(rest.len()));
            write(&mut client, piece).await;
            rest = after;
            if rest.is_empty() {
                return client;
            }
        }
        client
    });
    let mut found = vec![0; LEN];
    let mut at = 0;
    for len in (1..).map(|i: usize| 1 + (i * 6007) % 65_537) {
        let end = (at + len).min(LEN);
        let read = within("read", server.read(&mut found[at..end])).await;
        match read {
            Ok(0) => panic!("the stream ended after {at} bytes"),
            Ok(len) => at += len,
            Err(error) => panic!("read: {error}"),
        }
        if at == LEN {
            break;
        }
    }
    assert_same(&found, &bytes, "the stream");
    ended(writer).await;
}

/// One write of many megabytes; each poll takes what it can.
pub async fn large_write(subject: Subject) {
    let (mut client, mut server) = subject.pair().await;
    let bytes = Arc::new(pattern(16 << 20, 8));
    let sent = bytes.clone();
    let writer = tokio::spawn(async move {
        write(&mut client, &sent).await;
        client
    });
    expect(&mut server, &bytes).await;
    ended(writer).await;
}

/// A read into an empty buffer takes nothing, and does not look like the end.
pub async fn empty_buffer(subject: Subject) {
    let (mut client, mut server) = subject.pair().await;
    write(&mut client, b"abc").await;
    for _ in 0..3 {
        assert_eq!(within("read", server.read(&mut [])).await.ok(), Some(0));
    }
    expect(&mut server, b"abc").await;
}

/// Megabytes both ways at once: neither direction waits for the other.
pub async fn both_ways_at_once(subject: Subject) {
    let flushes = subject.has_sessions();
    let (client, server) = subject.pair().await;
    let end = |connection: Box<dyn Connection>, sends: u64, gets: u64| async move {
        let (mut reading, mut writing) = tokio::io::split(connection);
        let out = pattern(8 << 20, sends);
        let mut found = vec![0; 8 << 20];
        let write = async {
            writing.write_all(&out).await?;
            match flushes {
                true => writing.flush().await,
                false => Ok(()),
            }
        };
        let (written, read) = within("both directions", async {
            tokio::join!(write, reading.read_exact(&mut found))
        })
        .await;
        assert!(written.is_ok() && read.is_ok(), "{written:?} {read:?}");
        assert_same(&found, &pattern(8 << 20, gets), "one direction");
        // The other end may not have finished yet.
        (reading, writing)
    };
    drop(tokio::join!(end(client, 1, 2), end(server, 2, 1)));
}

/// Slices of a vectored write arrive in order, empty ones among them. A connection that claims to be vectored takes more than the first.
pub async fn vectored_writes(subject: Subject) {
    let (mut client, mut server) = subject.pair().await;
    let pieces: Vec<Vec<u8>> = (0..20).map(|i| pattern((i % 5) * 300, i as u64)).collect();
    let whole = pieces.concat();
    let mut sent = 0;
    let mut first = 0;
    while sent < whole.len() {
        let mut skip = sent;
        let mut slices = Vec::new();
        for piece in &pieces {
            let cut = skip.min(piece.len());
            skip -= cut;
            slices.push(IoSlice::new(&piece[cut..]));
        }
        let written = within("write", client.write_vectored(&slices)).await;
        match written {
            Ok(0) => panic!("nothing was taken of {} bytes", whole.len() - sent),
            Ok(len) => {
                first = if sent == 0 { len } else { first };
                sent += len;
            }
            Err(error) => panic!("write: {error}"),
        }
    }
    if client.is_write_vectored() {
        assert!(
            first > 300,
            "a vectored write took {first} bytes, one piece"
        );
    }
    write(&mut client, b"").await;
    expect(&mut server, &whole).await;
}

/// If the peer does not read, a writer waits after a bounded number of bytes, and goes on once the peer reads.
pub async fn a_full_peer_makes_the_writer_wait(subject: Subject) {
    let flushes = subject.has_sessions();
    let (mut client, mut server) = subject.pair().await;
    let piece = pattern(1 << 20, 11);
    let mut sent = 0;
    // More than any buffer that a transport should have.
    while sent < 256 << 20 {
        let write = client.write(&piece[sent % piece.len()..]);
        match tokio::time::timeout(Duration::from_millis(200), write).await {
            Ok(Ok(len)) => sent += len,
            Ok(Err(error)) => panic!("write: {error}"),
            Err(_) => break,
        }
    }
    assert!(sent < 256 << 20, "it takes everything and never waits");
    let mut found = vec![0; sent];
    let flush = async {
        match flushes {
            true => client.flush().await,
            false => Ok(()),
        }
    };
    let (read, flushed) = within("what it has taken", async {
        tokio::join!(server.read_exact(&mut found), flush)
    })
    .await;
    assert!(read.is_ok() && flushed.is_ok(), "{read:?} {flushed:?}");
    let wanted: Vec<u8> = piece.iter().copied().cycle().take(sent).collect();
    assert_same(&found, &wanted, "the stream");
    write(&mut client, b"and on").await;
    expect(&mut server, b"and on").await;
}
