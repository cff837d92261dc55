//! Handshakes whose bytes come late, in pieces, in another order, or from a hostile peer.

use super::proving::each;
use crate::device::{Device, DeviceKind};
use crate::error::PeerFault;
use crate::proto::handshake::{ClientHandshake, FirstFrame, Reply, ServerHandshake, select};
use crate::proto::sim::frames::frame;
use crate::proto::sim::{End, Pair, answer, hello, limits, message, reject};
use crate::proto::wire::frame::HEADER_LEN;
use crate::proto::wire::hello::{
    Brochure, CHANNEL_DEVICES_MAX, ChannelOffer, ChosenChannel, DEVICES_MAX, HANDSHAKE_MAX,
    OFFERS_MAX, Purpose, Reject, TransportOffer, put_stay,
};
use crate::proto::wire::{MAGIC, preface};

/// What a connector makes of it.
fn heard(bytes: &[u8]) -> (usize, Option<Reply>) {
    ClientHandshake::default().handle(bytes).unwrap()
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
    // 20 bytes are too many for the frame of a reader that takes 8.
    assert_eq!((pair.a.started.len(), pair.b.started.len()), (2, 1));
    // No chunk is longer than either side's.
    let longest = |end: &End| end.frames.iter().map(|(_, len)| *len).max().unwrap();
    let chunk = 8 + 12 + 1024;
    assert_eq!((longest(&pair.a), longest(&pair.b)), (chunk, chunk));
}

#[test]
fn a_join_may_be_followed_by_data() {
    for proof in [None, Some([8; 32])] {
        let token = [7; 16];
        let join = Purpose::Join { token, proof };
        let hello = ClientHandshake::hello(&join);
        let bytes = [&hello[..], b"data"].concat();
        let heard = ServerHandshake::default().handle(&bytes).unwrap();
        let join = FirstFrame::Hello(join);
        let mut server = ServerHandshake::default();
        assert_eq!(
            each(&hello, |input| server.handle(input)).as_ref(),
            Ok(&join)
        );
        assert_eq!(heard, (hello.len(), Some(join)));
    }
}

#[test]
fn a_connector_hears_of_all_pairs_of_as_many_devices_as_may_be_named() {
    let kind = DeviceKind::parse("fifteen_letters").unwrap();
    for count in [1, 8, 9, 44, CHANNEL_DEVICES_MAX as u8] {
        let devices = (0..count).map(|i| (Device::new(kind, i.into()), Vec::new()));
        let devices: Vec<_> = devices.collect();
        let all = (0..count).flat_map(|ours| (0..count).map(move |theirs| (ours, theirs)));
        let some = all
            .clone()
            .filter(|(ours, theirs)| u32::from(*ours) * 3 <= u32::from(*theirs));
        for pairs in [all.collect(), some.collect()] {
            let mut answer = answer(limits());
            for name in ["toy", "toy_ipc"] {
                answer.channels.push(ChosenChannel {
                    name: name.into(),
                    tokens: vec![[1; 16]],
                    devices: devices.clone(),
                    offered: count,
                    pairs: Vec::clone(&pairs),
                });
            }
            let bytes = ServerHandshake::answer(&answer);
            let reply = Reply::Answer(Box::new(answer));
            assert_eq!(heard(&bytes), (bytes.len(), Some(reply)));
        }
    }
}

#[test]
fn a_rejection_and_a_stay_say_why() {
    let (_, reply) = heard(&ServerHandshake::reject(&reject()));
    assert_eq!(reply, Some(Reply::Reject(reject())));
    let mut stay = Vec::new();
    put_stay(&mut stay, "no route", None);
    for cut in 0..stay.len() {
        let heard = ServerHandshake::handle_stay(&stay[..cut], None);
        assert_eq!(heard, Ok((0, None)));
    }
    let whole = Ok((stay.len(), Some("no route".to_owned())));
    assert_eq!(ServerHandshake::handle_stay(&stay, None), whole);
    // If the pipe has a key, STAY proves that it is the connector's.
    let mut proved = Vec::new();
    put_stay(&mut proved, "no route", Some(&[7; 32]));
    let whole = Ok((proved.len(), Some("no route".to_owned())));
    assert_eq!(ServerHandshake::handle_stay(&proved, Some(&[7; 32])), whole);
    for (stay, wanted) in [(&stay, [7; 32]), (&proved, [8; 32])] {
        let fault = ServerHandshake::handle_stay(stay, Some(&wanted));
        assert!(matches!(fault, Err(PeerFault::Unproven { .. })));
    }
}

#[test]
fn a_connection_that_joins_hears_one_word_and_data_may_follow_it() {
    let said = [ServerHandshake::joined(None), b"data".to_vec()].concat();
    for cut in 0..said.len() - 4 {
        let (used, reply) = ClientHandshake::joining(None).handle(&said[..cut]).unwrap();
        assert!(reply.is_none() && used <= cut, "{cut}");
    }
    let (used, reply) = ClientHandshake::joining(None).handle(&said).unwrap();
    assert_eq!(reply, Some(Reply::Joined));
    assert_eq!(&said[used..], b"data");
    // Each word has its connection.
    let instead = |mut handshake: ClientHandshake, said: &[u8]| {
        handshake.handle(said).unwrap_err().to_string()
    };
    let joined = instead(ClientHandshake::default(), &said);
    assert_eq!(joined, "it sent a JOINED frame instead of an answer");
    let answer = ServerHandshake::answer(&answer(limits()));
    let answer = instead(ClientHandshake::joining(None), &answer);
    assert_eq!(answer, "it sent a ANSWER frame instead of JOINED");
    let reject = Reject {
        transient: false,
        reason: "late".into(),
    };
    let bytes = ServerHandshake::reject(&reject);
    let (_, reply) = ClientHandshake::joining(None).handle(&bytes).unwrap();
    assert_eq!(reply, Some(Reply::Reject(reject)));
}

#[test]
fn hostile_peers_are_recognised_by_their_first_byte() {
    let first = |bytes: &[u8]| ServerHandshake::default().handle(bytes).map(|_| ());
    for text in [
        &b"GET / HTTP/1.1"[..],
        b"\x16\x03\x01",
        b"SSH-2.0",
        b"PRI * HTTP/2.0",
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
    for kind in [2, 3, 4, 5, 16, 24] {
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
    // One of the longest message is enough.
    let mut least = limits();
    least.window_messages = 1;
    least.window_bytes = u64::from(least.frame_max());
    let hello = hello("a", least, Brochure::default());
    ServerHandshake::default().handle(&hello).unwrap();
}

#[test]
fn fields_of_a_hello_mean_nothing() {
    let whole = hello("ab", limits(), Brochure::default());
    let purpose = preface().len() + HEADER_LEN;
    let name = purpose + 1;
    let limits = name + 2 + 2 + 16;
    for (at, bytes, expected) in [
        (purpose, [9, 2], "a purpose that is neither"),
        (name, [0xff; 2], "is cut short"),
        (name + 2, [0xff, 0xfe], "text that is not UTF-8"),
        (limits, [67, 0], "is cut short"),
    ] {
        let mut changed = whole.clone();
        changed[at..at + 2].copy_from_slice(&bytes);
        let said = hear(&changed).unwrap_err().to_string();
        assert!(said.contains(expected), "{said}");
    }
}

// What a hostile peer's HELLO may cost, and what becomes of the words in it.

fn transports(names: impl IntoIterator<Item = String>) -> Vec<TransportOffer> {
    let offer = |name| TransportOffer {
        name,
        domain: Vec::new(),
    };
    names.into_iter().map(offer).collect()
}

/// A channel with so many devices.
fn channel(name: String, devices: usize) -> ChannelOffer {
    ChannelOffer {
        name,
        connections: 0,
        devices: vec![(Device::CPU, Vec::new()); devices],
    }
}

fn hear(bytes: &[u8]) -> Result<(String, Brochure), PeerFault> {
    match ServerHandshake::default().handle(bytes)? {
        (_, Some(FirstFrame::Hello(Purpose::Pipe { name, brochure, .. }))) => Ok((name, brochure)),
        (_, other) => panic!("{other:?}"),
    }
}

#[test]
fn as_much_as_a_process_has_may_be_offered_and_no_more() {
    let names = |count| transports((0..count).map(|i| i.to_string()));
    let offer = |transports, devices: &[usize]| {
        let channels = devices.iter().map(|count| channel("c".into(), *count));
        let brochure = Brochure {
            transports,
            channels: channels.collect(),
        };
        match hear(&hello("a", limits(), brochure.clone())) {
            Ok((_, heard)) => {
                assert_eq!(heard, brochure);
                true
            }
            Err(PeerFault::Malformed { .. }) => false,
            Err(other) => panic!("{other}"),
        }
    };
    assert!(offer(names(OFFERS_MAX), &[1; OFFERS_MAX]));
    assert!(!offer(names(OFFERS_MAX + 1), &[]));
    assert!(!offer(vec![], &[0; OFFERS_MAX + 1]));
    let half = DEVICES_MAX / 4;
    for (devices, fits) in [
        (&[half; 4][..], true),
        (&[half, half, half, half, 1], false),
    ] {
        assert_eq!(offer(vec![], devices), fits);
        let channels = devices.iter().map(|count| channel("c".into(), *count));
        let purpose = Purpose::Pipe {
            name: String::new(),
            process: [0; 16],
            limits: limits(),
            brochure: Brochure {
                transports: Vec::new(),
                channels: channels.collect(),
            },
        };
        assert_eq!(purpose.check_size().is_ok(), fits);
    }
}

#[test]
fn words_of_a_hostile_peer_move_no_cursor() {
    let name = "\x1b[2Jtcp\n".to_owned();
    let brochure = Brochure {
        transports: transports([name.clone()]),
        channels: vec![channel(name, 0)],
    };
    let (_, heard) = hear(&hello("a", limits(), brochure)).unwrap();
    let refusals = select("tcp", &[], &[], &heard).refusals;
    assert_eq!(refusals.len(), 2);
    for (candidate, reason) in refusals {
        assert!(!candidate.contains(char::is_control), "{candidate:?}");
        assert!(!reason.contains(char::is_control), "{reason:?}");
    }
}

#[test]
fn of_a_long_name_as_much_is_kept_as_is_said() {
    // What stands for a control character is longer than it.
    for name in ["\n".repeat(3000), "ä".repeat(3000), "a".repeat(3000)] {
        let (kept, _) = hear(&hello(&name, limits(), Brochure::default())).unwrap();
        assert!((1020..=1024).contains(&kept.len()), "{}", kept.len());
        let (again, _) = hear(&hello(&kept, limits(), Brochure::default())).unwrap();
        assert_eq!(again, kept, "it is kept whole the next time");
    }
}

#[test]
fn whatever_is_offered_the_answer_is_one_that_can_be_taken() {
    let long = |i: usize| format!("{i}{}", "x".repeat(490));
    let brochure = Brochure {
        transports: transports((0..32).map(long)),
        channels: (0..32).map(|i| channel(long(i), 0)).collect(),
    };
    let bytes = hello("a", limits(), brochure);
    assert!(bytes.len() > HANDSHAKE_MAX as usize * 9 / 10);
    let (_, heard) = hear(&bytes).unwrap();
    let mut answer = answer(limits());
    answer.refusals = select("tcp", &[], &[], &heard).refusals;
    let heard = ClientHandshake::default().handle(&ServerHandshake::answer(&answer));
    let (_, reply) = heard.unwrap();
    assert_eq!(reply, Some(Reply::Answer(Box::new(answer))));
}
