//! A pipe that has ended lets go of everything, whatever was under way, and may still be asked and told things.

use crate::error::ResetCode;
use crate::proto::OpId;
use crate::proto::sim::{Pair, message};

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
