//! Empty, eager and bulk parts, payloads and tensors, on two channels, in one message.

use crate::proto::sim::{Pair, message};

#[test]
fn every_kind_of_part_arrives_as_it_was() {
    let all = message("all")
        .payload(0)
        .payload(64)
        .payload(65)
        .tensor(0)
        .tensor(1)
        .tensor(1 << 20)
        .tensor_on(1, 3000)
        .tensor(64);
    let mut pair = Pair::new();
    pair.a.write(&all);
    pair.b.write(&all);
    pair.settle();
    for end in [&pair.a, &pair.b] {
        assert_eq!(end.contents(), [all.parts()]);
        assert_eq!(end.parts_started(), [2, 5, 6]);
    }
}

#[test]
fn a_small_message_is_one_frame() {
    let mut pair = Pair::new();
    pair.a.write(&message("small").payload(10).tensor(20));
    pair.settle();
    assert_eq!(pair.a.frames.len(), 1);
    assert!(pair.b.frames.is_empty(), "nothing needs an answer");
}

#[test]
fn parts_ride_only_as_far_as_the_reader_allows() {
    // 256 bytes may ride in one message: four parts of 64.
    let many = (0..6).fold(message("many"), |message, _| message.payload(64));
    let mut pair = Pair::new();
    pair.a.write(&many);
    pair.settle();
    assert_eq!(pair.a.parts_started(), [4, 5]);
    assert_eq!(pair.b.contents(), [many.parts()]);
}

#[test]
fn a_message_that_the_peer_would_not_take_is_not_sent() {
    let mut pair = Pair::new();
    let too_many = (0..17).fold(message(""), |message, _| message.payload(1));
    for message in [
        message(&"m".repeat(4100)),
        too_many,
        message("").payload((1 << 20) + 1),
    ] {
        let mut parts = message.outgoing(pair.a.pipe.peer_limits());
        let refused = pair.a.pipe.write(&message.metadata, &mut parts, None);
        refused.unwrap_err();
    }
    // Each of these is small enough, and all of them are not.
    let many = (0..5).fold(message(""), |message, _| message.payload(64));
    let mut parts = many.outgoing(pair.a.pipe.peer_limits());
    parts[4].channel = None;
    let refused = pair.a.pipe.write(b"", &mut parts, None).unwrap_err();
    assert!(
        refused.to_string().contains("what rides of 320"),
        "{refused}"
    );
    parts[4].channel = Some(0);
    for part in &mut parts {
        part.metadata = vec![0; 1000].into();
    }
    let refused = pair.a.pipe.write(b"", &mut parts, None).unwrap_err();
    assert!(
        refused.to_string().contains("metadata of 5000"),
        "{refused}"
    );
    pair.settle();
    assert!(pair.a.frames.is_empty());
}

/// Whatever channel it was meant for: a reader has nothing to wait for.
#[test]
fn what_is_empty_rides() {
    let mut pair = Pair::new();
    let mut parts = message("").payload(0).outgoing(pair.a.pipe.peer_limits());
    parts[0].channel = Some(0);
    pair.a.pipe.write(b"", &mut parts, None).unwrap();
    pair.settle();
    assert_eq!(pair.b.contents(), [[Some(Vec::new())]]);
}

/// What rides is here with its message: only bulk is to come.
#[test]
fn what_is_to_come_is_the_bulk() {
    let mut pair = Pair::lazy();
    pair.send(
        &message("")
            .payload(64)
            .payload(0)
            .tensor(5000)
            .tensor_on(1, 300),
    );
    assert_eq!(pair.b.pipe.bytes_to_come(0), 5300);
    pair.b.read(0);
    pair.settle();
}
