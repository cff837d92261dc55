//! A hostile peer whose lane sends wrong messages: the read fails with the peer's fault, or the bytes come through the pipe.

use std::sync::Arc;

use tensorpipe::channels::{ChannelFault, CmaChannel, LaneIo, OpId, Want};
use tensorpipe::{Buffer, BufferMut, Error, Message, PeerFault, Pipe};
use tensorpipe_tests::{Double, Says};

use super::scene::{alone, check, made, soon, with_channels};

const LEN: usize = 2 << 20;

/// What it says instead of the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    /// An export of another length than the tensor's.
    WrongLength,
    /// A slot that no table of exports has.
    WildSlot,
    /// A number that means nothing.
    NoNumber,
    /// Bytes that are no export.
    Nonsense,
    /// A slot of the reader's own table of exports, where nothing stands.
    NothingThere,
    /// As a reader: bytes that are no answer.
    NoAnswer,
    /// As a reader: it wants bytes, now and later.
    AlwaysBytes,
    /// As a reader: the same, and then it says that it has read what it was not shown.
    ReadTheUnreadable,
}

struct LyingLane {
    lie: Lie,
    source: Option<Buffer>,
    /// Asked for, and not told of.
    wanted: Option<OpId>,
    /// Told of before anybody asked for it.
    kept: Option<(OpId, Vec<u8>)>,
}

impl LyingLane {
    /// What it says of a tensor that somebody wants.
    fn answer(&self, op: OpId, body: &[u8], io: &mut LaneIo<'_>) {
        match self.lie {
            Lie::NoAnswer => io.control(op, vec![9; 10]),
            Lie::ReadTheUnreadable if body == [2] => io.control(op, vec![1]),
            _ => {
                io.expect(op, BufferMut::zeroed(LEN));
                io.control(op, vec![3, b'n', b'o']);
            }
        }
    }
}

fn export(slot: u32, number: u64, len: u64) -> Vec<u8> {
    let fields = [
        &slot.to_le_bytes()[..],
        &number.to_le_bytes(),
        &len.to_le_bytes(),
    ];
    [&[1], &fields.concat()[..]].concat()
}

impl Says for LyingLane {
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        let len = source.len() as u64;
        self.source = Some(source);
        let body = match self.lie {
            Lie::WrongLength => export(0, 1, len + 1),
            Lie::WildSlot => export(1024, 1, len),
            Lie::NoNumber => export(0, 0, len),
            Lie::NothingThere => export(1023, 1, len),
            _ => vec![9; 100],
        };
        io.control(op, body);
    }

    fn recv(&mut self, op: OpId, _: Want, io: &mut LaneIo<'_>) {
        match self.kept.take_if(|(kept, _)| *kept == op) {
            Some((_, body)) => self.answer(op, &body, io),
            None => self.wanted = Some(op),
        }
    }

    fn control(&mut self, op: OpId, body: &[u8], io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        if op.outgoing {
            // The reader wants the bytes.
            io.stream(op, self.source.take().unwrap());
        } else if self.wanted.take_if(|wanted| *wanted == op).is_some() {
            self.answer(op, body, io);
        } else {
            self.kept = Some((op, body.to_vec()));
        }
        Ok(())
    }
}

/// An honest end, and one that lies.
async fn pair(lie: Lie) -> (Pipe, Pipe) {
    let honest = with_channels("honest", vec![Arc::new(CmaChannel::also_within_process())]);
    let liar = Double::liar(CmaChannel::also_within_process(), move |_| LyingLane {
        lie,
        source: None,
        wanted: None,
        kept: None,
    });
    let liar = with_channels("liar", vec![liar.channel()]);
    let (theirs, ours) = tensorpipe_tests::pair(&liar, &honest, "tcp://127.0.0.1:0").await;
    (ours, theirs)
}

#[track_caller]
fn assert_blamed(error: &Error, word: &str) {
    match error {
        Error::Peer {
            fault: PeerFault::Channel { channel, what },
            ..
        } => assert!(*channel == "cma" && what.contains(word), "{what}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn exports_that_make_no_sense_are_the_writers_fault() {
    alone(async || {
        for (lie, word) in [
            (Lie::WrongLength, "bytes instead of"),
            (Lie::WildSlot, "no sense"),
            (Lie::NoNumber, "no sense"),
            (Lie::Nonsense, "no sense"),
        ] {
            let (honest, liar) = pair(lie).await;
            liar.send(Message::new("m").tensor(made(LEN, 1))).unwrap();
            let error = soon("the read", honest.read()).await.unwrap_err();
            assert_blamed(&error, word);
            assert_eq!(honest.pool().stats().outstanding_bytes, 0);
        }
    });
}

#[test]
fn an_export_that_is_not_there_is_asked_for_as_bytes() {
    alone(async || {
        let (honest, liar) = pair(Lie::NothingThere).await;
        liar.send(Message::new("m").tensor(made(LEN, 1))).unwrap();
        let message = soon("the read", honest.read()).await.unwrap();
        check(&message.tensors[0].tensor, 1);
        assert!(honest.stats().bytes_in > LEN as u64);
    });
}

#[test]
fn answers_that_make_no_sense_are_the_readers_fault() {
    alone(async || {
        let (honest, liar) = pair(Lie::NoAnswer).await;
        let write = honest.write(Message::new("m").tensor(made(LEN, 1)));
        let (written, _) = soon("the end", async { tokio::join!(write, liar.read()) }).await;
        assert_blamed(&written.unwrap_err(), "no sense");
    });
}

#[test]
fn a_reader_that_never_can_gets_bytes_and_is_in_the_route() {
    alone(async || {
        let (honest, liar) = pair(Lie::AlwaysBytes).await;
        for seed in 0..2 {
            let write = honest.write(Message::new("m").tensor(made(LEN, seed)));
            let (written, read) =
                soon("a message", async { tokio::join!(write, liar.read()) }).await;
            written.unwrap();
            check(&read.unwrap().tensors[0].tensor, seed);
        }
        let route = honest.route().to_string();
        let words = "; sends nothing: the peer cannot read this process: no";
        assert!(route.contains(words), "{route}");
    });
}

#[test]
fn a_reader_cannot_have_read_what_was_not_shown() {
    alone(async || {
        let (honest, liar) = pair(Lie::ReadTheUnreadable).await;
        let write = honest.write(Message::new("m").tensor(made(LEN, 1)));
        let (written, read) = soon("a message", async { tokio::join!(write, liar.read()) }).await;
        written.unwrap();
        check(&read.unwrap().tensors[0].tensor, 1);
        let write = honest.write(Message::new("m").tensor(made(LEN, 2)));
        let (written, _) = soon("the end", async { tokio::join!(write, liar.read()) }).await;
        assert_blamed(&written.unwrap_err(), "not shown");
    });
}
