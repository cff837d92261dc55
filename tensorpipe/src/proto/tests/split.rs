//! Bytes may come in any pieces.

use crate::proto::sim::{Msg, Pair, limits, message};

pub(super) fn conversation() -> Vec<Msg> {
    vec![
        message(""),
        message("hello").payload(0).payload(10).tensor(64),
        message("bulk").tensor(2500).payload(100),
        message("channel").tensor_on(1, 300).tensor(70),
        message("bye"),
    ]
}

#[test]
fn every_size_of_piece_gives_the_same_messages() {
    for split in (1..40).chain([100, 1023, 1034, 4096]) {
        let mut pair = Pair::connecting(limits(), limits());
        for end in [&mut pair.a, &mut pair.b] {
            end.split = split;
            end.on_open = conversation();
        }
        pair.settle();
        let sent: Vec<_> = conversation().iter().map(Msg::parts).collect();
        for end in [&pair.a, &pair.b] {
            assert_eq!(end.contents(), sent, "pieces of {split}");
            assert_eq!(end.written.len(), sent.len());
        }
    }
}
