//! A hostile peer whose lane sends wrong messages: the read fails with the peer's fault, or the bytes come through the pipe.

use std::sync::{Arc, Mutex};

use tensorpipe::channels::{Channel, ChannelFault, CmaChannel, LaneIo, OpId, Want};
use tensorpipe::{Buffer, BufferMut, Error, Message, PeerFault, Pipe};
use tensorpipe_tests::{Double, Says};

use super::scene::{Peer, alone, builder, check, eventually, made, soon, with_channels};

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

/// A reader that hears of an export and leaves it where it is.
struct Overhears(Arc<Mutex<Vec<u8>>>);

impl Says for Overhears {
    fn recv(&mut self, _: OpId, _: Want, _: &mut LaneIo<'_>) {}

    fn control(&mut self, _: OpId, body: &[u8], _: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        *self.0.lock().unwrap() = body.to_vec();
        Ok(())
    }
}

/// A writer that passes another process's export off as its own.
struct PassesOff(Vec<u8>, Option<Buffer>);

impl Says for PassesOff {
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        self.1 = Some(source);
        io.control(op, self.0.clone());
    }

    fn control(&mut self, op: OpId, _: &[u8], io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        match self.1.take() {
            Some(source) => io.stream(op, source),
            None => io.sent(op),
        }
        Ok(())
    }
}

/// Its writer, or somebody on the way, names a third process of the same user in the place of the writer's.
#[test]
fn a_process_that_has_not_the_pipe_s_key_is_not_read() {
    alone(async || {
        let export = Arc::new(Mutex::new(Vec::new()));
        let heard = export.clone();
        let hears = Double::of(Arc::new(CmaChannel::new()));
        let hears = hears.with_lanes(move |_| Overhears(heard.clone()));
        let third = Peer::start(&with_channels("parent", vec![hears.channel()]), &[]).await;
        let descriptor = third.told("descriptor").await;
        let digits = descriptor.as_bytes().as_chunks::<2>().0.iter();
        let digits = digits.map(|pair| str::from_utf8(pair).unwrap());
        let bytes = digits.map(|pair| u8::from_str_radix(pair, 16).unwrap());
        let descriptor: Vec<u8> = bytes.collect();
        let give = Message::new(format!("give {LEN} 3"));
        third.pipe.send(give).unwrap();
        eventually("an export", || !export.lock().unwrap().is_empty()).await;
        let export = export.lock().unwrap().clone();
        for has_key in [false, true] {
            let with = |channel: Arc<dyn Channel>| {
                let builder = builder("", vec![channel]);
                match has_key {
                    true => builder.token("tests", [7; 16]).build().unwrap(),
                    false => builder.build().unwrap(),
                }
            };
            let said = export.clone();
            let liar = Double::of(Arc::new(CmaChannel::new())).at(descriptor.clone());
            let liar = liar.with_lanes(move |_| PassesOff(said.clone(), None));
            let (liar, honest) = (with(liar.channel()), with(Arc::new(CmaChannel::new())));
            let pipes = tensorpipe_tests::pair(&liar, &honest, "tcp://127.0.0.1:0");
            let (liar, honest) = pipes.await;
            liar.send(Message::new("m").tensor(made(LEN, 1))).unwrap();
            let message = soon("the read", honest.read()).await.unwrap();
            // Without a key, the peer's word is all there is.
            check(&message.tensors[0].tensor, if has_key { 1 } else { 3 });
        }
    });
}
