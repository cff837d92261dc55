//! Many writes before the first read: they wait at the writer, and arrive in order.

use crate::proto::sim::{Pair, message};

#[test]
fn writes_wait_for_reads_and_keep_their_order() {
    let mut pair = Pair::new();
    pair.b.eager_reader = false;
    let messages: Vec<_> = (0..50)
        .map(|i| message(&format!("{i}")).payload(i).tensor(i * 100))
        .collect();
    for message in &messages {
        pair.a.write(message);
    }
    pair.run();
    assert_eq!(
        pair.b.ready,
        (0..8).collect::<Vec<_>>(),
        "as many as there is credit for"
    );
    assert_eq!(
        pair.a.pipe.unwritten(),
        49,
        "only the first needs no go-ahead"
    );
    for (i, message) in messages.iter().enumerate() {
        pair.b.read(i as u64);
        pair.run();
        let delivered = pair.b.delivered.last().unwrap();
        assert_eq!(delivered.message, i as u64);
        assert_eq!(delivered.parts, message.parts());
    }
    assert_eq!(pair.a.written, (0..50).collect::<Vec<_>>());
    pair.assert_clean();
}

#[test]
fn one_message_that_is_never_read_does_not_pile_up_what_was_handed_over_behind_it() {
    let mut pair = Pair::new();
    pair.b.eager_reader = false;
    pair.a.write(&message("stuck").tensor(1000));
    pair.run();
    pair.b.ready.clear();
    for i in 1..=200 {
        pair.a.write(&message("passes"));
        pair.run();
        pair.b.read(i);
        pair.run();
        assert_eq!(pair.a.pipe.unwritten(), 1);
    }
    pair.b.read(0);
    pair.run();
    pair.assert_clean();
}

#[test]
fn reads_may_be_taken_in_any_order() {
    let mut pair = Pair::new();
    pair.b.eager_reader = false;
    for i in 0..8 {
        pair.a.write(&message("any").tensor(500 + i));
    }
    pair.run();
    for message in [3, 7, 0, 1, 6, 2, 5, 4] {
        pair.b.read(message);
    }
    pair.run();
    assert_eq!(pair.b.delivered.len(), 8);
    for delivered in &pair.b.delivered {
        let len = delivered.parts[0].as_ref().unwrap().len();
        assert_eq!(len as u64, 500 + delivered.message);
    }
    pair.assert_clean();
}
