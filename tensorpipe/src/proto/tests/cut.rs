//! Bytes come in any pieces. The connection is cut after every byte of a conversation, or stalls there: what arrived is whole and in
//! order.

use crate::proto::sim::{End, Msg, Pair, limits, message};

fn talking() -> Pair {
    let mut pair = Pair::connecting(limits(), limits());
    for end in [&mut pair.a, &mut pair.b] {
        end.on_open = conversation();
        end.close_after = true;
    }
    pair
}

/// What one end has is a part of what the other wrote, each message once and unharmed.
fn assert_prefix(end: &End, other: &End) {
    assert_eq!(end.fault, None);
    let sent = conversation();
    let got = end.in_order();
    for delivered in &got {
        let original = &sent[delivered.message as usize];
        assert_eq!(delivered.metadata, original.metadata);
        assert_eq!(delivered.parts, original.parts());
    }
    if other.fin_ack {
        assert_eq!(got.len(), sent.len(), "FIN_ACK promises that all is there");
    }
}

#[test]
fn cut_at_every_byte() {
    let mut whole = talking();
    whole.settle();
    assert!(whole.a.fin_ack && whole.b.fin_ack);
    let (a_to_b, b_to_a) = (whole.a_to_b.sent, whole.b_to_a.sent);
    assert!(a_to_b > 3000 && b_to_a > 3000);
    for at in 0..=a_to_b.max(b_to_a) {
        for both in [false, true] {
            let mut pair = talking();
            pair.a_to_b.cut_at = Some(at);
            pair.b_to_a.cut_at = both.then_some(at);
            pair.run();
            assert_prefix(&pair.a, &pair.b);
            assert_prefix(&pair.b, &pair.a);
        }
    }
}

#[test]
fn a_stall_at_any_point_is_only_a_delay() {
    for ticks in 0..60 {
        let mut pair = talking().rate(100);
        pair.b_to_a.bytes_per_tick = Some(170);
        pair.run_for(ticks);
        pair.a_to_b.stalled = true;
        pair.run_for(30);
        pair.b_to_a.stalled = true;
        pair.a_to_b.stalled = false;
        pair.run_for(30);
        pair.b_to_a.stalled = false;
        pair.settle();
        assert_eq!(pair.a.delivered.len(), conversation().len());
        assert_eq!(pair.b.delivered.len(), conversation().len());
    }
}

// Bytes may come in any pieces.

pub(super) fn conversation() -> Vec<Msg> {
    vec![
        message(""),
        message("hello").payload(0).payload(10).tensor(64),
        message("bulk").tensor(2500).payload(100),
        message("channel").tensor_on(1, 300).tensor(70),
        message("bye"),
    ]
}
