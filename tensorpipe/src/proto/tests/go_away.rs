//! One end takes no more messages; the other knows which were looked at.

use crate::error::ResetCode;
use crate::proto::sim::{Pair, limits, message};

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
    let mut reader = limits();
    reader.window_ahead = 1 << 20;
    for split in [1, 50, usize::MAX] {
        let mut pair = Pair::with(limits(), reader, None);
        pair.b.split = split;
        pair.b.pipe.go_away("");
        for _ in 0..30 {
            pair.a.write(&message("m").payload(60).tensor(2000));
        }
        pair.settle();
        assert_eq!(pair.a.refused.len(), 30);
        assert!(pair.b.ready.is_empty() && pair.b.delivered.is_empty());
    }
}
