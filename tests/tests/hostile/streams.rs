//! Hostile bytes on an open pipe.

use super::raw::{
    CHANNEL, DATA, FIN, FIN_ACK, FLUSH, FLUSHED, GOAWAY, GRANT, HELLO, MESSAGE, PONG, REFUSE,
    RESET, Raw, SOON, STAY, WINDOW, data, frame, header, message, message_body, payload, reason,
    tensor,
};
use super::server::{Target, unharmed};
use super::stream::Way;

fn number(number: u64) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

fn grant(message: u64) -> Vec<u8> {
    frame(GRANT, &[number(message), vec![0, 0]].concat())
}

#[test]
fn every_fault_ends_its_pipe_and_no_other() {
    for way in Way::ALL {
        let target = Target::start_with(way, &[("TEST_HANDSHAKE", "60000")]);
        let with = |payloads: &[Vec<u8>], tensors: &[Vec<u8>], content: &[u8]| {
            frame(MESSAGE, &message_body(b"", payloads, tensors, content))
        };
        let mut metadata_of_4_gib = message_body(b"", &[], &[], b"");
        metadata_of_4_gib[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut parts_of_65535 = message_body(b"", &[], &[], b"");
        parts_of_65535[8..12].copy_from_slice(&[255; 4]);
        let mut fields_of_4_gib = message_body(b"", &[], &[], b"");
        fields_of_4_gib[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut bad_text = reason(RESET, 0, 0, b"??");
        let len = bad_text.len();
        bad_text[len - 2..].copy_from_slice(&[0xff, 0xfe]);
        let cases: Vec<(&str, Vec<u8>)> = vec![
            ("a kind that nobody knows", frame(99, b"x")),
            ("a hello on an open pipe", frame(HELLO, &[0; 40])),
            ("a stay on an open pipe", frame(STAY, &[0; 2])),
            ("a message of 4 GiB", header(MESSAGE, u32::MAX, &[])),
            ("data of 4 GiB", header(DATA, u32::MAX, &[])),
            ("a control frame of 16 MiB", header(PONG, 16 << 20, &[])),
            ("an empty message frame", frame(MESSAGE, b"")),
            (
                "fields longer than the frame",
                frame(MESSAGE, &fields_of_4_gib),
            ),
            ("metadata of 4 GiB", frame(MESSAGE, &metadata_of_4_gib)),
            (
                "metadata over the limit",
                header(MESSAGE, (1 << 20) + 200, &{
                    let mut body = message_body(b"", &[], &[], b"");
                    body[4..8].copy_from_slice(&((1 << 20) + 1u32).to_le_bytes());
                    body
                }),
            ),
            (
                "65535 payloads and tensors in 12 bytes",
                frame(MESSAGE, &parts_of_65535),
            ),
            (
                "more parts than allowed",
                with(&vec![payload(1, 0, 0); 4097], &[], b""),
            ),
            (
                "a payload of 2^63",
                with(&[payload(0, 0, 1 << 63)], &[], b""),
            ),
            (
                "a tensor of 2^63",
                with(&[], &[tensor(0, 0, 0, &[1 << 63])], b""),
            ),
            (
                "a shape that overflows",
                with(
                    &[],
                    &[tensor(0, 0, 11, &[u64::MAX, u64::MAX, u64::MAX])],
                    b"",
                ),
            ),
            (
                "a message whose sum overflows",
                with(&vec![payload(0, 0, 8 << 30); 17], &[], b""),
            ),
            (
                "33 dimensions",
                with(&[], &[tensor(1, 0, 0, &[1; 33])], b"x"),
            ),
            (
                "an unknown element type",
                with(&[], &[tensor(1, 0, 200, &[1])], b"x"),
            ),
            (
                "an unknown channel",
                with(&[], &[tensor(0, 7, 0, &[1])], b""),
            ),
            ("unknown flags", with(&[], &[tensor(0xf8, 0, 0, &[1])], b"")),
            (
                "an eager part of another length",
                with(&[payload(1, 0, 100)], &[], b"short"),
            ),
            (
                "more bytes than parts",
                with(&[payload(1, 0, 2)], &[], b"longer than said"),
            ),
            (
                "an eager part over the limit",
                header(MESSAGE, 26 + (64 << 10) + 1, &{
                    message_body(b"", &[payload(1, 0, (64 << 10) + 1)], &[], b"")
                }),
            ),
            (
                "an empty part that waits",
                with(&[payload(0, 0, 0)], &[], b""),
            ),
            (
                "data ahead beyond the window",
                with(&[payload(2, 0, (256 << 10) + 1)], &[], b""),
            ),
            (
                "small parts ahead, which cost more than their bytes",
                with(&vec![payload(2, 0, 1); 1100], &[], b""),
            ),
            ("data of no message", data(0, 0, b"x")),
            ("data of a message far ahead", data(u64::MAX, 0, b"x")),
            ("data cut short", frame(DATA, &[0; 11])),
            (
                "data of an eager part",
                [with(&[payload(1, 0, 2)], &[], b"ab"), data(0, 0, b"c")].concat(),
            ),
            (
                "data of a part that is not there",
                [
                    with(&[], &[tensor(0, 0, 0, &[5000])], b""),
                    data(0, 9, b"c"),
                ]
                .concat(),
            ),
            ("a go-ahead for nothing", grant(0)),
            (
                "a go-ahead cut short",
                frame(GRANT, &[number(0), vec![255, 255]].concat()),
            ),
            ("a refusal of nothing", reason(REFUSE, 0, 3, b"no")),
            (
                "a refusal of the last number",
                reason(REFUSE, u64::MAX, 3, b"no"),
            ),
            ("a reset of a message far ahead", reason(RESET, 5, 1, b"no")),
            (
                "a reset of the last number",
                reason(RESET, u64::MAX, 1, b"no"),
            ),
            ("a reset cut short", frame(RESET, &number(0))),
            ("a reset that is not UTF-8", bad_text),
            ("an answer to no refusal", {
                let mut frame = reason(RESET, 0, 1, b"");
                frame[5] = 4;
                frame
            }),
            ("a flush of nothing", frame(FLUSH, &number(0))),
            (
                "a flush of the last number",
                frame(FLUSH, &number(u64::MAX)),
            ),
            ("an answer to no flush", frame(FLUSHED, &number(0))),
            (
                "a going away from what was not sent",
                frame(GOAWAY, &[number(9), vec![0, 0]].concat()),
            ),
            ("an answer to no goodbye", frame(FIN_ACK, b"")),
            ("two goodbyes", [frame(FIN, b""), frame(FIN, b"")].concat()),
            (
                "a message after the goodbye",
                [frame(FIN, b""), message(b"more", &[], b"")].concat(),
            ),
            ("a window cut short", frame(WINDOW, &number(1))),
            (
                "a channel's word about nothing",
                frame(CHANNEL, &[number(0), vec![0, 0, 0, 0, 1]].concat()),
            ),
            ("a channel's word to a channel that has none", {
                let mut bytes = with(&[], &[tensor(0, 0, 0, &[5000])], b"");
                bytes.extend(frame(CHANNEL, &[number(0), vec![0, 0, 0, 0, 1]].concat()));
                bytes
            }),
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
