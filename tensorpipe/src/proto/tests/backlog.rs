//! Many writes before the first read: they wait at the writer, and arrive in order.

use crate::proto::sim::{Pair, message};

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

#[test]
fn reads_may_be_taken_in_any_order() {
    let mut pair = Pair::lazy();
    let sent: Vec<_> = (500..508).map(|len| message("any").tensor(len)).collect();
    for message in &sent {
        pair.send(message);
    }
    for message in [3, 7, 0, 1, 6, 2, 5, 4] {
        pair.b.read(message);
    }
    pair.settle();
    let parts: Vec<_> = sent.iter().map(|sent| sent.parts()).collect();
    assert_eq!(pair.b.contents(), parts);
}
