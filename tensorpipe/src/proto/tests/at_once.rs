//! A channel that needs no go-ahead: its parts leave with their message, and cost the reader nothing until it reads.

use crate::error::ResetCode;
use crate::proto::OpId;
use crate::proto::sim::frames::{bulk, chunk, control, head, told, whole};
use crate::proto::sim::{Msg, Pair, message};
use crate::proto::wire::descriptor::Carriage;
use crate::proto::wire::frame::{Control, Kind};

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
    let complaint = |frames: &[Vec<u8>]| heard(frames).b.complaint();
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

// A message with one part that its channel sends at once, and the channel's frame about it has come, too. By that frame the reader's
// channel may have the part; then the message is here whole.

/// One eager part of 3 bytes, and one of 5 on channel 1.
fn parts() -> Vec<u8> {
    whole(&[(3, Carriage::Eager), (5, bulk(1, true))])
}

fn word(message: u64, part: u16) -> Vec<u8> {
    control([told(message, part, b"there")])
}

/// Channel 1 sends at once; the reader, which reads when it is told to, hears this.
fn heard(frames: &[Vec<u8>]) -> Pair {
    let mut pair = pair();
    pair.tell(&frames.concat());
    pair
}

#[test]
fn what_its_channel_has_is_here_whole() {
    let mut pair = heard(&[parts(), word(0, 1), parts()]);
    assert_eq!(
        (&pair.b.adopted[..], &pair.b.ready[..]),
        (&[0][..], &[0, 1][..])
    );
    pair.b.read(0);
    let parts = vec![Some(b"eee".to_vec()), Some(b"there".to_vec())];
    assert_eq!(pair.b.contents(), [parts]);
    // The channel's frame was used up: there is no other.
    pair.tell(&[word(1, 1), word(1, 1)].concat());
    let twice = "it sent a CHANNEL frame twice";
    assert!(pair.b.complaint().starts_with(twice));
}

#[test]
fn what_it_does_not_have_comes_as_any_other_does() {
    let mut pair = Pair::lazy().at_once();
    pair.b.lanes_wait = true;
    let elsewhere = control([told(0, 1, b"elsewhere")]);
    pair.tell(&[parts(), elsewhere].concat());
    assert!(pair.b.adopted.is_empty());
    let told = (OpId::incoming(0, 1), b"elsewhere".to_vec());
    assert_eq!(pair.b.pieces, [told]);
}

#[test]
fn what_is_not_all_here_or_not_as_usual_is_not_offered() {
    let frames = [parts(), word(0, 1)].concat();
    for cut in 0..frames.len() {
        let pair = heard(&[frames[..cut].to_vec()]);
        assert!(pair.b.adopted.is_empty(), "{cut}");
    }
    let of_reader = Control::channel(OpId::incoming(0, 1), b"there");
    for other in [
        told(1, 1, b"there"),
        told(0, 0, b"eee"),
        of_reader,
        Control::Fin,
    ] {
        let pair = heard(&[parts(), control([other])]);
        assert!(pair.b.adopted.is_empty(), "{:?}", pair.b);
    }
    // Two parts that channels send; a channel that waits for a go-ahead.
    let at_once = (5, bulk(1, true));
    for parts in [[at_once, at_once], [at_once, (65, bulk(0, false))]] {
        let pair = heard(&[whole(&parts), word(0, 0)]);
        assert_eq!((pair.b.adopted.len(), pair.b.ready.len()), (0, 1));
    }
    let mut pair = Pair::lazy().at_once();
    pair.b.pipe.go_away("enough");
    pair.tell(&frames);
    assert!(pair.b.adopted.is_empty());
}

#[test]
fn more_than_its_credit_is_a_fault_there_too() {
    let frames: Vec<_> = (0..9)
        .map(|message| [parts(), word(message, 1)].concat())
        .collect();
    let pair = heard(&frames);
    assert_eq!(pair.b.adopted.len(), 8);
    assert_eq!(
        pair.b.complaint(),
        "it sent messages beyond its credit of 8"
    );
}

#[test]
fn an_answer_that_nobody_waits_for_leaves_when_there_is_time() {
    let mut pair = heard(&[parts(), word(0, 1)]);
    pair.b.through = true;
    pair.b.pipe.channel_delayed(OpId::incoming(0, 1), &[1]);
    pair.run();
    assert!(pair.b.frames.is_empty());
    pair.b.write(&message("first"));
    assert_eq!(pair.b.kinds(0), [Kind::Message], "it is in nobody's way");
    pair.b.pipe.send_delayed();
    pair.run();
    assert_eq!(pair.b.kinds(0), [Kind::Message, Kind::Channel]);
}

#[test]
fn two_ends_agree() {
    let mut pair = Pair::new().at_once();
    let sent = message("at once").tensor(20).tensor_on(1, 100).tensor(7);
    for _ in 0..50 {
        pair.send(&sent);
    }
    pair.settle();
    assert!(pair.b.adopted.len() > 10, "{:?}", pair.b.adopted);
    assert_eq!(pair.b.contents(), vec![sent.parts(); 50]);
}

// A channel with connections of its own: there parts overtake each other and the frames of the pipe.

fn four() -> Msg {
    (100..104).fold(message("four"), |message, len| message.tensor_on(1, len))
}

#[test]
fn a_part_comes_before_its_message_and_another_after_fin() {
    let mut pair = Pair::new().at_once().latency(5).own_lanes(10);
    pair.a.write(&four());
    pair.a.write(&four());
    pair.a.pipe.close();
    pair.run_for(3);
    assert!(pair.b.offered.is_none() && !pair.b.lane_in.is_empty());
    pair.run_for(5);
    assert!(pair.b.fin && pair.b.delivered.is_empty());
    pair.settle();
    assert_eq!(pair.b.contents(), [four().parts(), four().parts()]);
}

#[test]
fn what_comes_late_of_a_message_that_is_given_up_is_dropped() {
    for at_once in [false, true] {
        let mut pair = Pair::lazy().latency(2).own_lanes(10);
        if at_once {
            pair = pair.at_once();
        }
        pair.a.write_times(3, &four());
        pair.run_for(6);
        (0..3).for_each(|message| pair.b.read(message));
        pair.run_for(12);
        pair.b.refuse(0, ResetCode::Refused);
        pair.a.reset(1);
        pair.b.forget(2);
        pair.settle();
        assert!(pair.b.delivered.is_empty() && pair.b.lane_in.is_empty());
    }
}
