//! A channel that needs no go-ahead: its parts leave with their message, and cost the reader nothing until it reads.

use super::hostile::{bulk, head};
use crate::error::{PeerFault, ResetCode};
use crate::proto::sim::{End, Pair, limits, message};
use crate::proto::wire::frame::{Control, Kind};
use crate::proto::{AtOnce, OpId};

/// Channel 1 sends at once; the reader reads when it is told to.
fn pair() -> Pair {
    let mut pair = Pair::with(limits(), limits(), None);
    for end in [&mut pair.a, &mut pair.b] {
        end.pipe.set_at_once(AtOnce::new([false, true]));
    }
    pair.b.eager_reader = false;
    pair
}

fn kinds(end: &End) -> Vec<u8> {
    end.frames.iter().map(|(kind, _)| *kind).collect()
}

#[test]
fn it_comes_without_a_word_from_the_reader() {
    let mut pair = pair();
    let sent = message("at once").tensor_on(1, 5000).tensor_on(1, 100);
    pair.a.write(&sent);
    pair.run();
    let channel = Kind::Channel as u8;
    assert_eq!(kinds(&pair.a), [Kind::Message as u8, channel, channel]);
    assert_eq!(pair.a.written, [0]);
    pair.b.read(0);
    pair.run();
    assert_eq!(pair.b.delivered[0].parts, sent.parts());
    assert!(pair.b.frames.is_empty(), "no credit comes back, either");
    pair.assert_clean();
}

#[test]
fn other_parts_of_its_message_still_wait() {
    let mut pair = pair();
    let sent = message("mixed").tensor(5000).tensor_on(1, 300).tensor(70);
    pair.a.write(&sent);
    pair.run();
    let started = |pair: &Pair| pair.a.started.iter().map(|op| op.part).collect::<Vec<_>>();
    assert_eq!(started(&pair), [1]);
    pair.b.read(0);
    pair.run();
    assert_eq!(started(&pair), [1, 0, 2]);
    assert_eq!(kinds(&pair.b), [Kind::Grant as u8]);
    assert_eq!(pair.b.delivered[0].parts, sent.parts());
    pair.assert_clean();
}

#[test]
fn taken_back_before_it_is_read_its_channel_hears_of_it() {
    for refused in [false, true] {
        let mut pair = pair();
        pair.a
            .write(&message("gone").tensor_on(1, 3000).tensor(2000));
        pair.run();
        if refused {
            pair.b.refuse(0, ResetCode::Refused);
        } else {
            pair.a.reset(0);
        }
        pair.run();
        // The first part was received; only the second one waits.
        assert!(pair.a.written.is_empty() && pair.b.delivered.is_empty());
        pair.assert_clean();
    }
}

#[test]
fn a_writer_that_breaks_its_rules_is_told_so() {
    let fault = |frames: &[u8]| {
        let mut pair = pair();
        pair.b.receive(frames, pair.now);
        pair.b.fault
    };
    let waits = fault(&head(&[(3000, bulk(1, false))]));
    assert!(
        matches!(waits, Some(PeerFault::Malformed { what, .. }) if what.contains("needs no go-ahead")),
        "{waits:?}"
    );
    let mut frames = head(&[(3000, bulk(1, true))]);
    assert_eq!(fault(&frames), None);
    let told = Control::Channel {
        op: OpId::incoming(0, 0).key(),
        yours: false,
        body: vec![1].into(),
    };
    told.put(&mut frames);
    assert_eq!(fault(&frames), None);
    told.put(&mut frames);
    let twice = fault(&frames);
    assert!(
        matches!(
            twice,
            Some(PeerFault::Unexpected {
                frame: "CHANNEL",
                ..
            })
        ),
        "{twice:?}"
    );
    // Bytes that nobody has asked for.
    let mut frames = head(&[(3000, bulk(1, true))]);
    frames.extend_from_slice(&[13, 0, 0, 0, Kind::Data as u8, 0, 0, 0]);
    frames.extend_from_slice(&[0; 13]);
    let data = PeerFault::UnknownMessage {
        frame: "DATA",
        message: 0,
    };
    assert_eq!(fault(&frames), Some(data));
}

#[test]
fn its_channel_may_speak_again_about_what_the_readers_lane_leaves_open() {
    let told = || Control::Channel {
        op: OpId::incoming(0, 0).key(),
        yours: false,
        body: vec![1].into(),
    };
    let frames = |control: Control| {
        let mut frames = Vec::new();
        control.put(&mut frames);
        frames
    };
    let op = OpId::incoming(0, 0);
    let answered = |expects: bool| {
        let mut pair = pair();
        pair.b.lanes_wait = true;
        let mut first = head(&[(3000, bulk(1, true))]);
        told().put(&mut first);
        pair.b.receive(&first, pair.now);
        if expects {
            // The lane has asked for the bytes.
            assert!(pair.b.pipe.expect(op, vec![0; 3000], 3000));
        }
        pair.b.pipe.channel(op, vec![2]);
        pair.b.receive(&frames(told()), pair.now);
        let fault = pair.b.fault.is_some();
        pair.b.receive(&frames(told()), pair.now);
        (fault, pair.b.fault.is_some())
    };
    assert_eq!(answered(false), (false, true), "once for each answer");
    assert_eq!(
        answered(true),
        (true, true),
        "bytes are to come, and nothing else"
    );
}
