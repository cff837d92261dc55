//! A channel with connections of its own: there parts overtake each other and the frames of the pipe.

use crate::error::ResetCode;
use crate::proto::sim::{Msg, Pair, message};

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
        for _ in 0..3 {
            pair.a.write(&four());
        }
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
