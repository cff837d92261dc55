//! A message goes out, an answer comes back.

use crate::proto::sim::{Pair, message};

#[test]
fn a_message_and_its_answer() {
    let mut pair = Pair::new();
    let (ping, pong) = (message("ping"), message("pong").payload(10));
    for round in 0..100 {
        assert_eq!(pair.send(&ping), round);
        assert_eq!(pair.b.delivered.pop().unwrap().metadata, ping.metadata);
        assert_eq!(pair.b.write(&pong), round);
        pair.run();
        let answer = pair.a.delivered.pop().unwrap();
        assert_eq!((answer.message, answer.parts), (round, pong.parts()));
    }
    pair.settle();
    assert_eq!(pair.a.written, (0..100).collect::<Vec<_>>());
}

#[test]
fn a_small_message_is_one_frame() {
    let mut pair = Pair::new();
    pair.a.write(&message("ping").payload(10).tensor(20));
    pair.settle();
    assert_eq!(pair.a.frames.len(), 1);
    assert!(pair.b.frames.is_empty(), "nothing needs an answer");
}
