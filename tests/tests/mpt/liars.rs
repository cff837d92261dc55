//! A hostile peer whose lane breaks the rules: the pipe ends with an error that names the fault, and nothing else happens.

use std::sync::Arc;

use tensorpipe::channels::{ConnectionSource, LaneIo, MptChannel, OpId, Want};
use tensorpipe::transports::TcpTransport;
use tensorpipe::{
    Buffer, Error, Message, PeerFault, Tensor,
    channels::{Pays, Threshold},
};
use tensorpipe_tests::{Double, Says};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::scene::{builder, context, soon};

const CHUNK: u64 = 512 << 10;
/// Two chunks and a bit.
const LEN: u64 = 2 * CHUNK + 7;

#[derive(Clone)]
enum Lie {
    /// Instead of anything sensible on the pipe's connection.
    Control(Vec<u8>),
    /// On a further connection.
    Bytes(Vec<u8>),
}

fn frame(kind: u8, len: u64, offset: u64) -> Vec<u8> {
    let mut out = vec![kind, 0, 0, 0];
    out.extend((len as u32).to_le_bytes());
    // The first message, the first part, all of it.
    out.extend([0; 12]);
    out.extend(offset.to_le_bytes());
    out
}

struct LiarLane(Lie, ConnectionSource);

impl LiarLane {
    fn lie(&self, op: OpId, says: u8, io: &mut LaneIo<'_>) {
        let ConnectionSource::Expects(expect) = &self.1 else {
            panic!("the liar accepts");
        };
        match self.0.clone() {
            Lie::Control(body) => io.control(op, body),
            Lie::Bytes(bytes) => {
                let expected = expect().unwrap();
                io.control(op, [&[says][..], &expected.token].concat());
                io.spawn(async move {
                    let mut connection = expected.connection.await.unwrap();
                    connection.write_all(&bytes).await.unwrap();
                    // Until the other end has had enough.
                    let mut rest = Vec::new();
                    let _ = connection.read_to_end(&mut rest).await;
                });
            }
        }
    }
}

impl Says for LiarLane {
    fn send(&mut self, op: OpId, _: Buffer, io: &mut LaneIo<'_>) {
        self.lie(op, 1, io);
    }

    fn recv(&mut self, op: OpId, _: Want, io: &mut LaneIo<'_>) {
        self.lie(op, 0, io);
    }
}

/// What the honest end, which connected, makes of a liar's tensor, or of what it says about one of its own.
async fn verdict(lie: Lie, liar_writes: bool) -> String {
    let liar = Double::liar(MptChannel::new(), move |link| {
        LiarLane(lie.clone(), link.further)
    });
    let server = context("liar", liar.channel(), TcpTransport::new());
    let honest = Arc::new(MptChannel::new());
    let client = builder("client", honest, TcpTransport::new())
        .threshold("mpt", Threshold::new(Pays::From(LEN)))
        .build()
        .unwrap();
    let listener = server.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let (client, server) = tokio::join!(client.connect(listener.url()), listener.accept());
    let (client, server) = (client.unwrap(), server.unwrap());
    let tensor = Tensor::from(vec![1u8; LEN as usize]);
    let message = Message::new("").tensor(tensor);
    let error = soon("the end", async {
        if liar_writes {
            let _written = server.write(message);
            client.read().await.unwrap_err()
        } else {
            let written = client.write(message);
            let _reading = server.read_descriptor().await.unwrap().read();
            written.await.unwrap_err()
        }
    })
    .await;
    let Error::Peer { fault, .. } = error else {
        panic!("{error}");
    };
    let PeerFault::Channel { channel, what } = fault else {
        panic!("{fault}");
    };
    assert_eq!(channel, "mpt");
    what
}

#[tokio::test]
async fn a_writer_that_lies_about_chunks() {
    let lies = [
        (frame(9, 1, 0), "unknown kind"),
        (frame(1, 0, 0), "a chunk of 0 bytes"),
        (frame(1, CHUNK + 1, 0), "a chunk of 524289 bytes"),
        (frame(1, CHUNK, 3 * CHUNK), "at 1572864 of a tensor"),
        (frame(1, 8, 2 * CHUNK), "8 bytes at 1048576"),
        (frame(1, 7, CHUNK), "7 bytes at 524288"),
        (frame(1, CHUNK, 1), "at 1 of a tensor"),
        (frame(1, 7, u64::MAX), "of a tensor"),
        (frame(2, 1, 0), "1 chunks confirmed, of 0 sent"),
    ];
    for (bytes, expected) in lies {
        let what = verdict(Lie::Bytes(bytes), true).await;
        assert!(what.contains(expected), "{what}");
    }
}

#[tokio::test]
async fn a_writer_that_says_nonsense() {
    for (body, expected) in [
        (vec![], "of 0 bytes"),
        (vec![77], "of kind 77"),
        (vec![1], "of kind 1"),
        (vec![1; 18], "of 18 bytes"),
        (vec![1; 1 + 17 * 16], "of 273 bytes"),
        (vec![5], "from the wrong end"),
        (vec![0], "from the wrong end"),
    ] {
        let what = verdict(Lie::Control(body), true).await;
        assert!(what.contains(expected), "{what}");
    }
}

#[tokio::test]
async fn a_reader_that_lies() {
    for (body, expected) in [
        (vec![5], "was not sent yet"),
        (vec![4], "was not asked to stream"),
        (vec![3], "from the wrong end"),
        (vec![1; 17], "from the wrong end"),
    ] {
        let what = verdict(Lie::Control(body), false).await;
        assert!(what.contains(expected), "{what}");
    }
    let what = verdict(Lie::Bytes(frame(2, 9, 0)), false).await;
    assert!(what.contains("9 chunks confirmed"), "{what}");
}
