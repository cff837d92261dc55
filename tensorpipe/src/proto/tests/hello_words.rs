//! What a hostile peer's HELLO may cost, and what becomes of the words in it.

use crate::device::Device;
use crate::error::PeerFault;
use crate::proto::handshake::{ClientHandshake, Heard, Reply, ServerHandshake, select};
use crate::proto::sim::{answer, hello, limits};
use crate::proto::wire::hello::{
    Brochure, ChannelOffer, DEVICES_MAX, HANDSHAKE_MAX, OFFERS_MAX, Purpose, TransportOffer,
};

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
        (_, Some(Heard::Hello(Purpose::Pipe { name, brochure, .. }))) => Ok((name, brochure)),
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
    assert!(offer(vec![], &[half; 4]));
    assert!(!offer(vec![], &[half, half, half, half, 1]));
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

/// It is used as it is, and stands in routes and logs where the move fails.
#[test]
fn an_address_to_move_to_has_no_control_characters() {
    let to = |address: &str| {
        let mut answer = answer(limits());
        answer.moved = Some(("shm".to_owned(), address.to_owned(), [3; 16]));
        let heard = ClientHandshake::default().handle(&ServerHandshake::answer(&answer));
        heard.map(|(_, reply)| reply == Some(Reply::Answer(Box::new(answer))))
    };
    assert_eq!(to("ein Ort: ä"), Ok(true));
    for address in ["s1\n  channel cma: all well", "\x1b[2J", "\0", "\u{85}"] {
        let fault = to(address).unwrap_err();
        assert!(matches!(fault, PeerFault::Malformed { .. }), "{fault}");
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
