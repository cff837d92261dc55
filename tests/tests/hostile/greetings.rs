//! What hostile peers say first.

use super::raw::{
    ANSWER, FIN, HELLO, HELLO as HELLO_KIND, MESSAGE, PING, REJECT, Raw, SOON, frame, header,
    hello, hello_body, message, noise, preface, tensor, text,
};
use super::server::{Target, unharmed};
use super::stream::Way;

/// Each of these is cut off, without waiting for the bound on handshakes.
#[test]
fn nonsense_is_cut_off_at_once() {
    for way in Way::ALL {
        let target = Target::start_with(way, &[("TEST_HANDSHAKE", "60000")]);
        let hello_with = |body: Vec<u8>| [preface(), frame(HELLO, &body)].concat();
        let whole = hello_body(&["tcp"], &["basic"]);
        let at = |needle: &[u8]| {
            whole
                .windows(needle.len())
                .position(|window| window == needle)
                .unwrap()
        };
        let changed = |at: usize, bytes: &[u8]| {
            let mut body = whole.clone();
            body[at..at + bytes.len()].copy_from_slice(bytes);
            hello_with(body)
        };
        // Limits begin behind purpose, name and process.
        let limits = 1 + 2 + 8 + 16;
        let cases: Vec<(&str, Vec<u8>)> = vec![
            ("one byte that C++ dies of", vec![0xb8]),
            (
                "an HTTP request",
                b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
            ),
            (
                "an HTTP/2 preface",
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            ),
            (
                "a TLS hello",
                [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &noise(1, 500)].concat(),
            ),
            ("an SSH greeting", b"SSH-2.0-OpenSSH_9.6\r\n".to_vec()),
            (
                "a length prefix of 2^62",
                [&(1u64 << 62).to_le_bytes()[..], &[0xb8; 100]].concat(),
            ),
            ("zeros", vec![0; 5000]),
            (
                "a preface whose line ends were translated",
                b"\x93TPIPE\n\n\x01\0\x01\0".to_vec(),
            ),
            (
                "a frame of 4 GiB",
                [preface(), header(HELLO, u32::MAX, b"x")].concat(),
            ),
            (
                "a frame one byte too long",
                [preface(), header(HELLO, (32 << 10) + 1, &noise(2, 4000))].concat(),
            ),
            (
                "a message instead of a hello",
                [preface(), message(b"hi", &[], b"")].concat(),
            ),
            (
                "an answer instead of a hello",
                [preface(), frame(ANSWER, &whole)].concat(),
            ),
            (
                "a rejection instead of a hello",
                [preface(), frame(REJECT, b"\0\0\0")].concat(),
            ),
            (
                "a kind that nobody knows",
                [preface(), frame(200, b"")].concat(),
            ),
            ("a ping", [preface(), frame(PING, &[0; 8])].concat()),
            ("an empty hello", hello_with(Vec::new())),
            ("a purpose that means nothing", changed(0, &[9])),
            ("a name that is not UTF-8", changed(3, &[0xff, 0xfe])),
            ("a name longer than the frame", changed(1, &[0xff, 0xff])),
            ("limits cut short", changed(limits, &67u16.to_le_bytes())),
            (
                "limits under which nothing can be sent",
                changed(limits + 2, &[0; 4]),
            ),
            (
                "more transports than there are",
                changed(at(b"tcp") - 3, &[255]),
            ),
            (
                "more channels than there are",
                changed(at(b"basic") - 3, &[255]),
            ),
            (
                "more devices than there are",
                changed(at(b"basic") + 6, &[255]),
            ),
            ("half a token", hello_with(vec![1, 2, 3])),
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
