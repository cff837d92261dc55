//! Handshakes whose bytes come late, in pieces, in another order, or from a stranger.

use crate::device::{Device, DeviceKind};
use crate::error::PeerFault;
use crate::proto::handshake::{ClientHandshake, Reply, ServerHandshake};
use crate::proto::sim::frames::frame;
use crate::proto::sim::{End, Pair, answer, hello, limits, message};
use crate::proto::wire::hello::{
    Answer, Brochure, ChosenChannel, HANDSHAKE_MAX, Purpose, Reject, Token, put_stay,
};
use crate::proto::wire::{MAGIC, preface};

fn answer_with(chosen: ChosenChannel) -> Answer {
    Answer {
        channels: vec![chosen],
        ..answer(limits())
    }
}

/// What a connector makes of it.
fn heard(bytes: &[u8]) -> (usize, Option<Reply>) {
    ClientHandshake::default().handle(bytes).unwrap()
}

/// Feeds a listener byte by byte. Returns what it understood and the bytes that it did not use.
fn listen(bytes: &[u8]) -> (Option<Purpose>, Vec<u8>) {
    let mut server = ServerHandshake::default();
    let mut input = Vec::new();
    for (i, byte) in bytes.iter().enumerate() {
        input.push(*byte);
        let (used, purpose) = server.handle(&input).unwrap();
        input.drain(..used);
        if purpose.is_some() {
            input.extend_from_slice(&bytes[i + 1..]);
            return (purpose, input);
        }
    }
    (None, input)
}

#[test]
fn limits_are_exchanged_and_the_first_message_may_follow_at_once() {
    let mut small = limits();
    small.eager_part = 8;
    small.chunk = 2048;
    let mut pair = Pair::connecting(limits(), small);
    for end in [&mut pair.a, &mut pair.b] {
        end.on_open = vec![message("first").tensor(20).tensor(3000)];
        end.split = 13;
    }
    pair.settle();
    // 20 bytes do not ride to a reader that takes 8.
    assert_eq!((pair.a.started.len(), pair.b.started.len()), (2, 1));
    // No chunk is longer than either side's.
    let longest = |end: &End| end.frames.iter().map(|(_, len)| *len).max().unwrap();
    let chunk = 8 + 12 + 1024;
    assert_eq!((longest(&pair.a), longest(&pair.b)), (chunk, chunk));
}

#[test]
fn joins_may_arrive_in_any_order_and_may_be_followed_by_data() {
    let tokens: Vec<Token> = (1..=4).map(|i| [i; 16]).collect();
    let orders = [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]];
    for order in orders {
        let mut missing = tokens.clone();
        for i in order {
            let mut bytes = ClientHandshake::hello(&Purpose::Join(tokens[i]));
            bytes.extend_from_slice(b"data");
            let (purpose, rest) = listen(&bytes);
            let Some(Purpose::Join(token)) = purpose else {
                panic!("not a join: {purpose:?}");
            };
            let place = missing.iter().position(|expected| *expected == token);
            missing.remove(place.unwrap());
            assert_eq!(rest, b"data");
        }
        assert!(missing.is_empty());
    }
}

#[test]
fn a_connector_hears_of_more_device_pairs_than_a_byte_can_count() {
    let devices: Vec<_> = (0..16).map(|i| Device::new(DeviceKind::CUDA, i)).collect();
    let pairs: Vec<_> = devices
        .iter()
        .flat_map(|a| devices.iter().map(|b| (*a, *b)))
        .collect();
    let chosen = ChosenChannel {
        name: "cuda_ipc".into(),
        tokens: vec![[1; 16]],
        devices: devices.iter().map(|device| (*device, Vec::new())).collect(),
        pairs: [pairs, vec![(Device::CPU, Device::CPU)]].concat(),
    };
    let answer = answer_with(chosen);
    let bytes = ServerHandshake::answer(&answer);
    let (used, reply) = heard(&bytes);
    assert_eq!(used, bytes.len());
    assert!(matches!(reply, Some(Reply::Answer(heard)) if *heard == answer));
}

#[test]
fn a_rejection_and_a_stay_say_why() {
    let reject = Reject {
        transient: true,
        reason: "full".into(),
    };
    let (_, reply) = heard(&ServerHandshake::reject(&reject));
    assert!(matches!(reply, Some(Reply::Reject(heard)) if heard == reject));
    let mut stay = Vec::new();
    put_stay(&mut stay, "no route");
    for cut in 0..stay.len() {
        assert_eq!(ServerHandshake::handle_stay(&stay[..cut]), Ok((0, None)));
    }
    let whole = (stay.len(), Some("no route".to_owned()));
    assert_eq!(ServerHandshake::handle_stay(&stay), Ok(whole));
}

#[test]
fn a_connection_that_joins_hears_one_word_and_data_may_follow_it() {
    let said = [ServerHandshake::joined(), b"data".to_vec()].concat();
    for cut in 0..said.len() - 4 {
        let (used, reply) = ClientHandshake::joining().handle(&said[..cut]).unwrap();
        assert!(reply.is_none() && used <= cut, "{cut}");
    }
    let (used, reply) = ClientHandshake::joining().handle(&said).unwrap();
    assert!(matches!(reply, Some(Reply::Joined)));
    assert_eq!(&said[used..], b"data");
    // Each word has its connection.
    let unexpected =
        |result: Result<_, PeerFault>| matches!(result, Err(PeerFault::Unexpected { .. }));
    assert!(unexpected(ClientHandshake::default().handle(&said)));
    let answer = ServerHandshake::answer(&answer(limits()));
    assert!(unexpected(ClientHandshake::joining().handle(&answer)));
    let reject = ServerHandshake::reject(&Reject {
        transient: false,
        reason: "late".into(),
    });
    let (_, reply) = ClientHandshake::joining().handle(&reject).unwrap();
    assert!(matches!(reply, Some(Reply::Reject(reject)) if reject.reason == "late"));
}

#[test]
fn strangers_are_recognised_by_their_first_byte() {
    let first = |bytes: &[u8]| ServerHandshake::default().handle(bytes).map(|_| ());
    for text in [
        &b"GET / HTTP/1.1"[..],
        b"\x16\x03\x01",
        b"SSH-2.0",
        b"\0",
        b"\x93TPIPE\n",
    ] {
        let fault = first(text);
        assert!(matches!(fault, Err(PeerFault::BadMagic { .. })), "{text:?}");
    }
    let said = first(b"GET / HTTP/1.1\r\n").unwrap_err().to_string();
    let wanted = r#"its first bytes are "GET / HTTP/1.1\r\n", that is an HTTP request"#;
    assert!(said.contains(wanted), "{said}");
    let version = |high: u16, low: u16| {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&high.to_le_bytes());
        bytes.extend_from_slice(&low.to_le_bytes());
        first(&bytes)
    };
    // A later version that still speaks ours.
    assert_eq!(version(9, 1), Ok(()));
    for (high, low) in [(9, 2), (0, 0), (1, 2)] {
        assert!(matches!(version(high, low), Err(PeerFault::Version { .. })));
    }
}

#[test]
fn a_frame_that_does_not_belong_or_is_too_long_ends_it() {
    let said = |kind: u8, flags: u8, len: usize| {
        let bytes = [&preface()[..], &frame(kind, flags, &vec![0; len])].concat();
        let client = ClientHandshake::default().handle(&bytes).map(|_| ());
        let server = ServerHandshake::default().handle(&bytes).map(|_| ());
        client.unwrap_err();
        server.unwrap_err().to_string()
    };
    let limit = HANDSHAKE_MAX as usize;
    let long = "a HELLO frame of 32769 bytes exceeds the limit of 32768";
    assert_eq!(said(1, 0, limit + 1), long);
    for kind in [16, 4, 5] {
        assert!(said(kind, 0, 0).ends_with("instead of HELLO"));
    }
    assert!(said(99, 1, 0).ends_with("during the handshake"));
    assert!(said(99, 0, 0).ends_with("unknown kind 99"));
}

#[test]
fn limits_under_which_nothing_could_be_sent_are_refused() {
    let mut bad = [limits(); 3];
    bad[0].chunk = 1000;
    bad[1].window_messages = 0;
    bad[2].window_bytes = 10;
    for limits in bad {
        let hello = hello("a", limits, Brochure::default());
        let fault = ServerHandshake::default().handle(&hello).unwrap_err();
        assert!(matches!(fault, PeerFault::Malformed { .. }), "{fault}");
    }
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_understood_or_refused(body in proptest::collection::vec(0u8.., 0..300), kind in 0u8..7) {
        let bytes = [&preface()[..], &frame(kind, 0, &body)].concat();
        let _ = ServerHandshake::default().handle(&bytes);
        let _ = ClientHandshake::default().handle(&bytes);
        let _ = ClientHandshake::joining().handle(&bytes);
        let _ = ServerHandshake::handle_stay(&bytes[12..]);
    }

    #[test]
    fn a_flipped_byte_in_an_answer_is_understood_or_refused(at in 12usize..200, value in 0u8..) {
        let chosen = ChosenChannel {
            name: "basic".into(),
            tokens: vec![[1; 16]],
            devices: vec![(Device::CPU, vec![1, 2])],
            pairs: vec![(Device::CPU, Device::new(DeviceKind::CUDA, 1))],
        };
        let mut bytes = ServerHandshake::answer(&answer_with(chosen));
        if let Some(byte) = bytes.get_mut(at) { *byte = value; }
        let _ = ClientHandshake::default().handle(&bytes);
    }
}
