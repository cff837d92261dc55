//! Hostile bytes on an open pipe.

use super::raw::{
    CHANNEL, DATA, FIN_ACK, FLUSH, FLUSHED, GRANT, HELLO, MESSAGE, REFUSE, RESET, Raw, SOON,
    WINDOW, data, frame, header, message, reason, tensor,
};
use super::server::{Target, unharmed};
use super::stream::Way;

fn number(number: u64) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

fn grant(message: u64) -> Vec<u8> {
    frame(GRANT, &[number(message), vec![0, 0]].concat())
}

/// One of each kind of frame: `tensorpipe/src/proto/tests/hostile.rs` has the rest.
#[test]
fn every_fault_ends_its_pipe_and_no_other() {
    for way in Way::ALL {
        let target = Target::start_with(way, &[("TEST_HANDSHAKE", "60000")]);
        let of = |tensor| message(b"", &[tensor], b"");
        let word = frame(CHANNEL, &[number(0), vec![0, 0, 0, 0, 1]].concat());
        let cases: [(&str, Vec<u8>); 13] = [
            ("a kind that nobody knows", frame(99, b"x")),
            ("a hello on an open pipe", frame(HELLO, &[0; 40])),
            ("data of 4 GiB", header(DATA, u32::MAX, &[])),
            ("a tensor of 2^63", of(tensor(0, 0, 0, &[1 << 63]))),
            ("data of no message", data(0, 0, b"x")),
            ("a go-ahead for nothing", grant(0)),
            ("a refusal of nothing", reason(REFUSE, 0, 3, b"no")),
            ("a reset of what is far ahead", reason(RESET, 5, 1, b"no")),
            ("a flush of nothing", frame(FLUSH, &number(0))),
            ("an answer to no flush", frame(FLUSHED, &number(0))),
            ("an answer to no goodbye", frame(FIN_ACK, b"")),
            ("a window cut short", frame(WINDOW, &number(1))),
            (
                "a word to a channel that has none",
                [of(tensor(0, 0, 0, &[5000])), word].concat(),
            ),
        ];
        for (what, bytes) in cases {
            let mut raw = Raw::open(&target.pipes);
            raw.send(&bytes);
            raw.is_cut(what, SOON);
        }
        target.stays_unharmed();
    }
}

/// The heap overflow of C++: 8 MiB for a tensor of 1000 bytes.
#[test]
fn a_tensor_longer_than_announced_is_cut_off() {
    unharmed(|target| {
        for surplus in [1, 8 << 20] {
            let mut raw = Raw::open(&target.pipes);
            raw.send(&message(b"", &[tensor(0, 0, 0, &[1000])], b""));
            raw.frame_of(GRANT);
            let mut left = 1000 + surplus;
            while left > 0 {
                let piece = left.min(256 << 10);
                if !raw.send(&data(0, 0, &vec![0x41; piece])) {
                    break;
                }
                left -= piece;
            }
            raw.is_cut("a tensor longer than announced", SOON);
            // In two steps, the second of them too long.
            let mut raw = Raw::open(&target.pipes);
            raw.send(&message(b"", &[tensor(0, 0, 0, &[1000])], b""));
            raw.frame_of(GRANT);
            raw.send(&data(0, 0, &[0x41; 999]));
            raw.send(&data(0, 0, &[0x41; 2]));
            raw.is_cut("a tensor one byte longer than announced", SOON);
        }
    });
}

#[test]
fn a_go_ahead_twice_is_cut_off() {
    unharmed(|target| {
        let mut raw = Raw::open(&target.pipes);
        raw.send(&message(b"", &[tensor(0, 0, 0, &[100_000])], b""));
        raw.frame_of(GRANT);
        raw.send(&data(0, 0, &[7; 100_000]));
        // It comes back, and waits for our go-ahead.
        raw.frame_of(MESSAGE);
        raw.send(&[grant(0), grant(0)].concat());
        let came = raw.is_cut("a go-ahead twice", SOON);
        assert!(came.len() <= 100_100, "{} bytes", came.len());
    });
}

/// Credit is for what was announced; a peer that takes more is cut off, one that takes all and does not read is held up.
#[test]
fn messages_beyond_the_credit_are_cut_off() {
    unharmed(|target| {
        let mut raw = Raw::open(&target.pipes);
        // Each waits for a go-ahead, or for its echo to be read: none is ever done with.
        let one = message(b"x", &[tensor(0, 0, 0, &[100_000])], b"");
        raw.send(&one.repeat(1100));
        raw.is_cut("more messages than there is credit for", SOON);
    });
}

#[test]
fn a_message_cut_at_every_byte_is_no_harm() {
    unharmed(|target| {
        let whole = [
            message(b"meta", &[tensor(1, 0, 8, &[2, 3])], &[9; 24]),
            message(b"", &[tensor(0, 0, 0, &[1000])], b""),
            data(1, 0, &[1; 100]),
            reason(RESET, 1, 1, b"enough"),
        ]
        .concat();
        for len in 0..whole.len() {
            let mut raw = Raw::open(&target.pipes);
            raw.send(&whole[..len]);
            raw.finish_sending();
            raw.is_cut(&format!("cut after {len} bytes"), SOON);
        }
    });
}

/// What comes behind the end of a pipe is not looked at: not even what was sent with it.
#[test]
fn frames_behind_a_fault_of_a_channel_find_nobody() {
    unharmed(|target| {
        let channel = |message: u64| {
            let mut body = message.to_le_bytes().to_vec();
            body.extend_from_slice(&[0, 0, 0, 0, 1, 2, 3]);
            frame(CHANNEL, &body)
        };
        let bulk = || message(b"", &[tensor(0, 0, 0, &[1000])], b"");
        // The eager part divides what is looked at at once.
        let eager = message(b"", &[tensor(1, 0, 0, &[5])], b"eager");
        let bytes = [
            bulk(),
            channel(0),
            eager,
            bulk(),
            channel(2),
            bulk(),
            channel(3),
        ]
        .concat();
        let mut raw = Raw::open(&target.pipes);
        raw.send(&bytes);
        raw.is_cut("a channel's bytes that make no sense", SOON);
    });
}
