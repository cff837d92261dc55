//! Closing in good order: nothing is lost, and both sides know. Going away, and the end.

use crate::error::ResetCode;
use crate::proto::OpId;
use crate::proto::sim::{Pair, message};

#[test]
fn fin_follows_everything_that_was_written() {
    let mut pair = Pair::lazy();
    pair.a.write_times(20, &message("m").tensor(3000));
    pair.a.write(&message("hole"));
    pair.a.reset(20);
    pair.a.pipe.close();
    pair.run();
    assert!(!pair.b.fin, "messages wait for their reader");
    (0..20).for_each(|message| pair.read(message));
    pair.settle();
    assert_eq!(pair.b.delivered.len(), 20);
    assert!(pair.b.fin && pair.a.fin_ack);
    assert!(pair.a.pipe.is_fin_acked() && !pair.a.pipe.is_fin_received());
    assert!(pair.b.pipe.is_fin_received() && !pair.b.pipe.is_fin_acked());
}

#[test]
fn the_other_direction_stays_open() {
    let mut pair = Pair::new();
    pair.a.pipe.close();
    pair.run();
    pair.b.write(&message("late").tensor(500));
    pair.settle();
    assert_eq!(pair.a.delivered.len(), 1);
}

#[test]
fn nothing_is_written_after_close() {
    let mut pair = Pair::new();
    pair.a.pipe.close();
    let late = pair.a.pipe.write(b"late", &mut Default::default(), None);
    late.unwrap_err();
    pair.settle();
}

// A pipe that has ended lets go of everything, whatever was under way, and may still be asked and told things.

#[test]
fn numbers_stay_and_commands_that_come_late_do_nothing() {
    let mut pair = Pair::new().rate(2000);
    for _ in 0..10 {
        pair.a.write(&message("m").tensor(100_000));
        pair.b.write(&message("m").tensor(100_000));
    }
    pair.run_for(20);
    let pipe = &mut pair.a.pipe;
    pipe.abandon();
    assert_eq!((pipe.last_written(), pipe.unwritten()), (Some(9), 0));
    assert!(!pipe.is_writing(9) && !pipe.grant(0, &[]));
    assert!(!pipe.expect(OpId::incoming(0, 0), Vec::new(), 0));
    assert_eq!(pipe.part_len(OpId::incoming(0, 0)), None);
    for message in 0..12 {
        pipe.reset(message, ResetCode::Cancelled, "");
        pipe.refuse(message, ResetCode::Refused, "");
        pipe.finish(message);
    }
    assert!(pipe.poll_event().is_none());
}

// One end takes no more messages; the other knows which were taken.

#[test]
fn what_crosses_it_is_refused_and_what_came_before_is_served() {
    let mut pair = Pair::new().latency(5);
    pair.send(&message("before").tensor(3000));
    assert_eq!(pair.b.pipe.go_away("restarting"), 1);
    pair.a.write(&message("crosses").payload(30).tensor(3000));
    pair.a.write(&message("crosses too"));
    for end in [&mut pair.a, &mut pair.b] {
        end.pipe.close();
    }
    pair.settle();
    assert!(pair.a.fin_ack && pair.b.fin_ack);
    assert_eq!(pair.a.goaway, [1]);
    assert_eq!(pair.a.pipe.peer_ignores_from(), Some(1));
    let code = ResetCode::Closing;
    assert_eq!(pair.a.refused, [(1, code), (2, code)]);
    assert_eq!(pair.b.delivered.len(), 1);
    assert_eq!(pair.b.cancelled, [], "no channel ever heard of them");
}

#[test]
fn a_message_that_is_being_read_goes_on() {
    let mut pair = Pair::new().rate(2000);
    let sent = message("before").tensor(100_000);
    pair.a.write(&sent);
    pair.run_for(10);
    pair.b.pipe.go_away("restarting");
    pair.b.pipe.go_away("restarting");
    pair.settle();
    assert_eq!(pair.b.contents(), [sent.parts()]);
    assert_eq!(pair.a.goaway, [1], "said again it is no news");
}

#[test]
fn ignored_messages_get_no_memory_whatever_they_carry() {
    for split in [1, 50, usize::MAX] {
        let mut pair = Pair::reader(|limits| limits.window_ahead = 1 << 20);
        pair.b.split = split;
        pair.b.pipe.go_away("");
        pair.a
            .write_times(30, &message("m").payload(60).tensor(2000));
        pair.settle();
        assert_eq!(pair.a.refused.len(), 30);
        assert!(pair.b.ready.is_empty() && pair.b.delivered.is_empty());
    }
}
