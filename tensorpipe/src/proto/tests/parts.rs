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
        .tensor(5000)
        .tensor_on(1, 3000)
        .tensor(64);
    let mut pair = Pair::new();
    pair.a.write(&all);
    pair.b.write(&all);
    pair.run();
    for end in [&pair.a, &pair.b] {
        assert_eq!(end.delivered[0].parts, all.parts());
        let bulk: Vec<_> = end.started.iter().map(|op| op.part).collect();
        assert_eq!(bulk, [2, 5, 6]);
    }
    pair.assert_clean();
}

#[test]
fn parts_ride_only_as_far_as_the_reader_allows() {
    // 256 bytes may ride in one message: four parts of 64.
    let many = (0..6).fold(message("many"), |message, _| message.payload(64));
    let mut pair = Pair::new();
    pair.a.write(&many);
    pair.run();
    let bulk: Vec<_> = pair.a.started.iter().map(|op| op.part).collect();
    assert_eq!(bulk, [4, 5]);
    assert_eq!(pair.b.delivered[0].parts, many.parts());
    pair.assert_clean();
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
    pair.run();
    assert!(pair.a.frames.is_empty());
    pair.assert_clean();
}
