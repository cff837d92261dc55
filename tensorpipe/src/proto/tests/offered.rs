//! A message with one part that its channel sends at once, about which the channel's word is here, too: the reader's channel may
//! have the part for that word, and the message is here whole.

use crate::proto::OpId;
use crate::proto::sim::frames::{bulk, control, told, whole};
use crate::proto::sim::{Pair, message};
use crate::proto::wire::descriptor::Carriage;
use crate::proto::wire::frame::{Control, Kind};

/// One part of 3 bytes that rides, and one of 5 on channel 1.
fn parts() -> Vec<u8> {
    whole(&[(3, Carriage::Eager), (5, bulk(1, true))])
}

fn word(message: u64, part: u16) -> Vec<u8> {
    control([told(message, part, b"there")])
}

/// Channel 1 sends at once; the reader, which reads when it is told to, hears this.
fn heard(frames: &[Vec<u8>]) -> Pair {
    let mut pair = Pair::lazy().at_once();
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
    // Its word was used up: there is no other.
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
