//! A channel that needs no go-ahead: its parts leave with their message, and cost the reader nothing until it reads.

use crate::proto::OpId;
use crate::proto::sim::frames::{bulk, chunk, control, head, told};
use crate::proto::sim::{Pair, message};
use crate::proto::wire::frame::Kind;

/// Channel 1 sends at once; the reader reads when it is told to.
fn pair() -> Pair {
    Pair::lazy().at_once()
}

#[test]
fn it_comes_without_a_word_from_the_reader() {
    let mut pair = pair();
    let sent = message("at once").tensor_on(1, 5000).tensor_on(1, 100);
    pair.send(&sent);
    let kinds = [Kind::Message, Kind::Channel, Kind::Channel];
    assert_eq!(pair.a.kinds(0), kinds);
    assert_eq!(pair.a.written, [0]);
    pair.b.read(0);
    pair.settle();
    assert_eq!(pair.b.contents(), [sent.parts()]);
    assert!(pair.b.frames.is_empty(), "no credit comes back, either");
}

#[test]
fn other_parts_of_its_message_still_wait() {
    let mut pair = pair();
    let sent = message("mixed").tensor(5000).tensor_on(1, 300).tensor(70);
    pair.send(&sent);
    assert_eq!(pair.a.parts_started(), [1]);
    pair.b.read(0);
    pair.settle();
    assert_eq!(pair.a.parts_started(), [1, 0, 2]);
    assert_eq!(pair.b.kinds(0), [Kind::Grant]);
    assert_eq!(pair.b.contents(), [sent.parts()]);
}

#[test]
fn a_writer_that_breaks_its_rules_is_told_so() {
    let complaint = |frames: &[Vec<u8>]| {
        let mut pair = pair();
        pair.tell(&frames.concat());
        pair.b.complaint()
    };
    let waits = complaint(&[head(&[(3000, bulk(1, false))])]);
    assert!(waits.contains("that waits on a channel"), "{waits}");
    let ahead = || head(&[(3000, bulk(1, true))]);
    let told = || control([told(0, 0, &[1])]);
    assert_eq!(complaint(&[ahead(), told()]), "");
    let twice = complaint(&[ahead(), told(), told()]);
    assert!(twice.contains("a CHANNEL frame twice"), "{twice}");
    let bytes = complaint(&[ahead(), chunk(0, 0, 1)]);
    assert!(bytes.contains("a DATA frame names message 0"), "{bytes}");
}

#[test]
fn its_channel_may_speak_again_about_what_the_readers_lane_leaves_open() {
    let op = OpId::incoming(0, 0);
    let told = control([told(0, 0, &[1])]);
    let answered = |expects: bool| {
        let mut pair = pair();
        pair.b.lanes_wait = true;
        pair.tell(&head(&[(3000, bulk(1, true))]));
        pair.tell(&told);
        if expects {
            // The lane has asked for the bytes.
            assert!(pair.b.pipe.expect(op, Vec::new(), 3000));
        }
        pair.b.pipe.channel(op, &[2]);
        [(); 2].map(|()| {
            pair.tell(&told);
            pair.b.fault.is_some()
        })
    };
    assert_eq!(answered(false), [false, true], "once for each answer");
    let bytes = "bytes are to come, and nothing else";
    assert_eq!(answered(true), [true, true], "{bytes}");
}
