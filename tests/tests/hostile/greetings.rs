//! What hostile peers say first.

use super::raw::{
    ANSWER, FIN, HELLO, HELLO as HELLO_KIND, MESSAGE, REJECT, Raw, SOON, frame, header, hello,
    hello_body, message, noise, preface, tensor, text,
};
use super::server::{Target, unharmed};
use super::stream::Way;

/// Each is cut off without waiting for the bound on handshakes: `tensorpipe/src/proto/tests/handshake.rs` has more.
#[test]
fn nonsense_is_cut_off_at_once() {
    for way in Way::ALL {
        let target = Target::start_with(way, &[("TEST_HANDSHAKE", "60000")]);
        let tls = [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &noise(1, 500)].concat();
        let behind_preface = |frame: Vec<u8>| [preface(), frame].concat();
        let cases: [(&str, Vec<u8>); 8] = [
            ("one byte that C++ dies of", vec![0xb8]),
            (
                "an HTTP request",
                b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
            ),
            ("a TLS hello", tls),
            (
                "a length prefix of 2^62",
                [&(1u64 << 62).to_le_bytes()[..], &[0xb8; 100]].concat(),
            ),
            (
                "a frame of 4 GiB",
                behind_preface(header(HELLO, u32::MAX, b"x")),
            ),
            (
                "a message instead of a hello",
                behind_preface(message(b"hi", &[], b"")),
            ),
            ("a kind that nobody knows", behind_preface(frame(200, b""))),
            ("an empty hello", behind_preface(frame(HELLO, b""))),
        ];
        for (what, bytes) in cases {
            let mut raw = Raw::connect(&target.pipes);
            raw.send(&bytes);
            let what = format!("{what} ({} bytes)", bytes.len());
            let came = raw.is_cut(&what, SOON);
            // A TLS client hears that this is no TLS, in its own words.
            let alert = [0x15, 3, 3, 0, 2, 2, 70];
            let is_alert = bytes.starts_with(&[0x16, 3]) && came == alert;
            assert!(
                came.is_empty() || came.starts_with(&preface()) || is_alert,
                "{what}: {came:02x?}"
            );
        }
        target.stays_unharmed();
    }
}

#[test]
fn a_hello_cut_at_every_byte_is_no_harm() {
    unharmed(|target| {
        let hello = hello();
        for len in 0..hello.len() {
            let mut raw = Raw::connect(&target.pipes);
            raw.send(&hello[..len]);
            raw.finish_sending();
            raw.is_cut(&format!("a hello cut after {len} bytes"), SOON);
        }
    });
}

#[test]
fn a_hello_with_any_byte_changed_is_answered_or_cut_off() {
    unharmed(|target| {
        let hello = hello();
        for at in 0..hello.len() {
            let mut changed = hello.clone();
            changed[at] ^= 0xff;
            let mut raw = Raw::connect(&target.pipes);
            raw.send(&changed);
            raw.finish_sending();
            raw.is_cut(&format!("byte {at} of a hello changed"), SOON);
        }
    });
}

#[test]
fn noise_is_no_harm() {
    unharmed(|target| {
        for seed in 1..40 {
            let noise = noise(seed, 3000);
            for before in [Vec::new(), preface(), hello()] {
                let mut raw = Raw::connect(&target.pipes);
                raw.send(&[before, noise.clone()].concat());
                raw.finish_sending();
                raw.is_cut(&format!("noise {seed}"), SOON);
            }
        }
    });
}

#[test]
fn another_version_is_told_so() {
    unharmed(|target| {
        let mut raw = Raw::connect(&target.pipes);
        raw.send(b"\x93TPIPE\r\n\x09\0\x07\0");
        raw.send(&frame(HELLO_KIND, b"whatever version 7 says"));
        raw.expect_preface();
        let reject = raw.frame().expect("a rejection");
        assert_eq!((reject.kind, reject.body[0]), (REJECT, 0), "{reject:?}");
        let reason = String::from_utf8(reject.body[3..].to_vec()).unwrap();
        println!("{reason}");
        assert!(reason.contains("versions 7 to 9"), "{reason}");
        raw.is_cut("another version", SOON);
    });
}

#[test]
fn a_token_that_nobody_gave_out_is_rejected() {
    unharmed(|target| {
        let mut raw = Raw::connect(&target.pipes);
        raw.send(&[preface(), frame(HELLO, &[&[1][..], &[0x33; 16]].concat())].concat());
        raw.expect_preface();
        let reject = raw.frame().expect("a rejection");
        assert_eq!(reject.kind, REJECT, "{reject:?}");
        assert!(String::from_utf8_lossy(&reject.body).contains("token"));
        raw.is_cut("an unknown token", SOON);
    });
}

/// Whoever shares nothing gets a pipe without channels, says no word for which one would be needed, and is cut off when it does.
#[test]
fn a_brochure_without_anything_in_common_makes_a_pipe_without_channels() {
    unharmed(|target| {
        let brochures: [(&[&str], &[&str]); 4] = [
            (&["smoke"], &["mirrors"]),
            (&[], &[]),
            (&["tcp"], &[]),
            (&[], &["xth"]),
        ];
        for (transports, channels) in brochures {
            let mut raw = Raw::connect(&target.pipes);
            raw.send(&[preface(), frame(HELLO, &hello_body(transports, channels))].concat());
            raw.expect_preface();
            let answer = raw.frame().expect("an answer");
            assert_eq!(answer.kind, ANSWER, "{answer:?}");
            raw.send(&message(b"small things ride", &[], b""));
            let echo = raw.frame_of(MESSAGE);
            assert!(echo.body.ends_with(b"small things ride"), "{echo:?}");
            // A tensor for a pair of devices without a channel.
            raw.send(&message(b"", &[tensor(0, 0, 0, &[1000])], b""));
            raw.is_cut("a tensor over no channel", SOON);
        }
    });
}

/// How many descriptors a pipe holds is for this side's channels to say.
#[test]
fn a_channel_that_wants_many_connections_is_not_chosen() {
    unharmed(|target| {
        let mut body = hello_body(&["tcp"], &["basic"]);
        let at = body
            .windows(5)
            .position(|window| window == b"basic")
            .unwrap();
        body[at + 5] = 255;
        let mut raw = Raw::connect(&target.pipes);
        raw.send(&[preface(), frame(HELLO, &body)].concat());
        raw.expect_preface();
        let answer = raw.frame().expect("an answer");
        assert_eq!(answer.kind, ANSWER);
        let why = text(b"channel basic");
        assert!(
            answer.body.windows(why.len()).any(|window| window == why),
            "it is refused: {answer:?}"
        );
        raw.send(&frame(FIN, b""));
    });
}

/// A pipe's table of channels has a place for each device that is said to reach this one, other names or the same one.
#[test]
fn a_brochure_of_many_devices_costs_no_more_than_its_bytes_pay_for() {
    const PEERS: usize = 100;
    unharmed(|target| {
        for many_names in [true, false] {
            let mut body = hello_body(&["tcp"], &[]);
            *body.last_mut().unwrap() = 1;
            body.extend(text(b"basic"));
            body.extend([0, 255]);
            for index in 0..255u32 {
                match many_names {
                    true => body.extend([&b"\x01d"[..], &index.to_le_bytes()].concat()),
                    false => body.push(0),
                }
                body.extend(text(b"any"));
            }
            let hello = [preface(), frame(HELLO, &body)].concat();
            let before = target.resident();
            let peers: Vec<_> = (0..PEERS)
                .map(|_| {
                    let mut raw = Raw::connect(&target.pipes);
                    raw.send(&hello);
                    raw.expect_preface();
                    assert_eq!(raw.frame().expect("an answer").kind, ANSWER);
                    raw
                })
                .collect();
            let each = target.resident().saturating_sub(before) / PEERS as u64;
            println!("{} KiB for each HELLO of {} bytes", each >> 10, hello.len());
            drop(peers);
        }
    });
}
