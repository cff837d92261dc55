//! A huge tensor starves nobody.

use crate::proto::sim::{Pair, message};
use crate::proto::wire::frame::{Control, Kind};

/// A pair with a megabyte under way over a link that takes one chunk a tick.
fn busy() -> Pair {
    let mut pair = Pair::new().rate(1042);
    pair.a.write(&message("huge").tensor(1 << 20));
    pair.run_for(20);
    assert!(!pair.a.started.is_empty());
    pair
}

#[test]
fn a_control_frame_waits_for_one_chunk_at_most() {
    let mut pair = busy();
    let from = pair.a.frames.len();
    pair.a.reset(77);
    pair.b.pipe.outbox.control(Control::Ping(1));
    pair.a.pipe.flush(0);
    pair.run_for(4);
    let kinds = pair.a.kinds(from);
    assert_eq!(kinds[0], Kind::Flush);
    assert!(kinds[..4].contains(&Kind::Pong), "{kinds:?}");
}

#[test]
fn a_small_message_waits_for_one_chunk_at_most() {
    let mut pair = busy();
    let from = pair.a.frames.len();
    pair.a.write(&message("small"));
    pair.run_for(3);
    assert_eq!(pair.a.kinds(from)[0], Kind::Message);
    assert_eq!(pair.b.delivered.len(), 1);
    pair.settle();
    assert_eq!(pair.b.delivered.len(), 2);
}

#[test]
fn a_message_that_could_leave_at_once_waits_for_what_is_before_it() {
    let mut pair = Pair::new();
    pair.a.through = true;
    pair.a.pipe.outbox.control(Control::Ping(1));
    pair.a.write(&message("behind"));
    pair.settle();
    assert_eq!(pair.a.kinds(0), [Kind::Ping, Kind::Message]);
}

#[test]
fn two_streams_take_turns() {
    let mut pair = busy();
    pair.a.write(&message("short").tensor(10_000));
    let before = pair.a_to_b.sent;
    while pair.b.delivered.is_empty() {
        pair.step();
    }
    let spent = pair.a_to_b.sent - before;
    assert!(spent < 25_000, "ten chunks each, not {spent} bytes");
    pair.settle();
}

#[test]
fn small_messages_do_not_starve_bulk_either() {
    // Not for want of credit.
    let mut pair = Pair::reader(|limits| {
        limits.window_messages = 1000;
        limits.window_bytes = 1 << 24;
    })
    .rate(4000);
    pair.a.write(&message("bulk").tensor(20_000));
    pair.run_for(2);
    // An endless supply of messages.
    let mut written = 0;
    while !pair.a.written.contains(&0) {
        while pair.a.pipe.unwritten() < 20 {
            pair.a.write(&message(&"m".repeat(4000)));
            written += 1;
        }
        pair.step();
        assert!(written < 3000, "the bulk does not get through");
    }
    pair.settle();
}
