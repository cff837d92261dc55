//! Closing in good order: nothing is lost, and both sides know.

use crate::proto::sim::{Pair, message};

#[test]
fn fin_follows_everything_that_was_written() {
    let mut pair = Pair::lazy();
    for _ in 0..20 {
        pair.a.write(&message("m").tensor(3000));
    }
    pair.a.write(&message("hole"));
    pair.a.reset(20);
    pair.a.pipe.close();
    pair.run();
    assert!(!pair.b.fin, "messages wait for their reader");
    (0..20).for_each(|message| pair.read(message));
    pair.settle();
    assert_eq!(pair.b.delivered.len(), 20);
    assert!(pair.b.fin && pair.a.fin_ack);
    assert!(pair.a.pipe.is_closed_out() && !pair.a.pipe.is_closed_in());
    assert!(pair.b.pipe.is_closed_in() && !pair.b.pipe.is_closed_out());
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
