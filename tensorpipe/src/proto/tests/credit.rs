//! A slow reader bounds what is under way, in messages and in bytes: the rest waits at the writer, and arrives in order. What
//! it finishes comes back as credit. Whoever keeps to it is not blamed, however much there is to say about many small parts.

use crate::proto::OpId;
use crate::proto::sim::{Msg, Pair, limits, message};
use crate::proto::wire::frame::Kind;

#[test]
fn writes_wait_for_reads_and_keep_their_order() {
    let mut pair = Pair::lazy();
    let messages: Vec<_> = (0..50)
        .map(|i| message(&format!("{i}")).payload(i).tensor(i * 100))
        .collect();
    for message in &messages {
        pair.a.write(message);
    }
    pair.run();
    let credit: Vec<_> = (0..8).collect();
    assert_eq!(pair.b.ready, credit, "as many as there is credit for");
    let unwritten = pair.a.pipe.unwritten();
    assert_eq!(unwritten, 49, "only the first needs no go-ahead");
    for (i, message) in messages.iter().enumerate() {
        pair.read(i as u64);
        let delivered = pair.b.delivered.last().unwrap();
        assert_eq!(delivered.message, i as u64);
        assert_eq!(delivered.parts, message.parts());
    }
    pair.settle();
    assert_eq!(pair.a.written, (0..50).collect::<Vec<_>>());
    let windows = pair.b.sent(Kind::Window);
    assert_eq!(windows, 12, "one for each half of a window");
}

#[test]
fn one_message_that_is_never_read_does_not_pile_up_what_was_handed_over_behind_it() {
    let mut pair = Pair::lazy();
    pair.send(&message("stuck").tensor(1000));
    for i in 1..=200 {
        pair.send(&message("passes"));
        pair.read(i);
        assert_eq!(pair.a.pipe.unwritten(), 1);
    }
    pair.b.read(0);
    pair.settle();
}

/// WIRE.md says what a message takes. Both ends count the same, to the last byte.
#[test]
fn what_rides_and_what_names_parts_takes_credit() {
    let metadata = "m".repeat(100);
    let mut pair = Pair::lazy();
    let several = message(&metadata).payload(10).tensor(20).tensor(3000);
    let mut parts = several.outgoing(pair.a.pipe.peer_limits());
    for (part, len) in parts.iter_mut().zip([1, 3, 7]) {
        part.metadata = vec![0; len].into();
    }
    (pair.a.pipe)
        .write(metadata.as_bytes(), &mut parts, None)
        .unwrap();
    pair.run();
    let outstanding = pair.b.pipe.receive_window.outstanding();
    let expected = (10 + 20) + (100 + 1 + 3 + 7) + 64 * (1 + 3);
    assert_eq!(outstanding.bytes, expected);
    // Three more fit exactly, and a fourth does not.
    let each = 64 + 64 + 100 + 2 + 64 * 3;
    let mut pair = Pair::reader(|limits| limits.window_bytes = 3 * each).told();
    pair.a
        .write_times(4, &message(&metadata).payload(64).payload(64));
    pair.run();
    assert_eq!(pair.b.pipe.receive_window.outstanding().bytes, 3 * each);
    assert_eq!(pair.b.ready, [0, 1, 2]);
    (0..4).for_each(|message| pair.read(message));
    pair.settle();
}

#[test]
fn the_largest_message_always_gets_its_credit() {
    // A window of exactly one largest message: no freed byte may be kept back.
    let mut limits = limits();
    limits.window_bytes = u64::from(limits.frame_max());
    limits.window_messages = 1000;
    let mut pair = Pair::with(limits, limits, None);
    let mut largest = message(&"m".repeat(4096 - 16));
    largest.payloads = vec![vec![7; 16]; 16];
    for _ in 0..20 {
        pair.a.write(&message(&"s".repeat(1000)));
        pair.send(&largest);
    }
    pair.settle();
    assert_eq!(pair.b.delivered.len(), 40);
}

/// A pair whose credit is for 20 messages of 4000 small parts, on a channel that sends a frame about each.
fn wide() -> (Pair, Msg) {
    let mut wide = limits();
    (wide.parts, wide.metadata) = (4000, 1 << 20);
    (wide.window_messages, wide.window_bytes) = (20, 1 << 23);
    let many = (0..4000).fold(message("many"), |many, _| many.tensor_on(1, 65));
    (Pair::with(wide, wide, None).told(), many)
}

#[test]
fn a_reader_that_lets_all_it_has_begin_at_once_is_not_blamed_for_how_much_that_is() {
    let (mut pair, many) = wide();
    pair.a.write_times(20, &many);
    pair.run();
    (0..20).for_each(|message| pair.b.read(message));
    // The go-aheads come in one piece, and the link takes a thousandth of what they set off.
    pair.a_to_b.bytes_per_tick = Some(5000);
    pair.step();
    pair.b.write(&message("hello"));
    pair.step();
    assert_eq!(pair.a.complaint(), "");
    assert_eq!(pair.a.contents(), [message("hello").parts()]);
    pair.a_to_b.bytes_per_tick = None;
    pair.settle();
    assert_eq!(pair.b.delivered.len(), 20);
}

#[test]
fn a_writer_is_not_blamed_for_the_answers_about_all_that_it_may_send() {
    let (mut pair, many) = wide();
    pair.a.write_times(20, &many);
    pair.run();
    pair.b_to_a.stalled = true;
    for message in 0..20 {
        pair.b.read(message);
        let answers = (0..4000).map(|part| OpId::incoming(message, part));
        answers.for_each(|op| pair.b.pipe.channel(op, b"taken"));
    }
    pair.a.pipe.flush(19);
    pair.step();
    assert_eq!(pair.b.complaint(), "");
}

#[test]
fn whoever_takes_back_much_at_once_blames_nobody() {
    let mut pair = Pair::new();
    (0..70_000).for_each(|_| _ = pair.send(&message("asks")));
    (0..70_000).for_each(|message| pair.a.reset(message));
    pair.b.write(&message("hello"));
    pair.a_to_b.stalled = true;
    pair.step();
    assert_eq!(pair.a.complaint(), "");
    assert_eq!(pair.a.contents(), [message("hello").parts()]);
}
