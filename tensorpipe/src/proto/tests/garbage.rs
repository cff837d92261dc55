//! Frames that make no sense together, and true ones with flipped bytes: acted on or refused, never a panic.

use proptest::prelude::*;

use super::hostile::{bulk, control, data, frame, head, reason, refuse};
use crate::proto::sim::{Pair, limits, message};
use crate::proto::wire::descriptor::Carriage;
use crate::proto::wire::frame::Control;

/// Frames that a careless or malicious peer might send, in a pipe whose application takes everything.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let number = 0u64..6;
    prop_oneof![
        (0u8..32, 0u8..8, prop::collection::vec(0u8.., 0..40))
            .prop_map(|(k, f, b)| frame(k, f, &b)),
        (number.clone(), 0u16..3, 0usize..600).prop_map(|(m, p, len)| data(m, p, len)),
        (number.clone(), any::<bool>()).prop_map(|(m, answer)| control(&[reason(m, answer)])),
        number
            .clone()
            .prop_map(|message| control(&[refuse(message)])),
        number
            .clone()
            .prop_map(|message| control(&[Control::Flush { message }])),
        number.prop_map(|message| control(&[Control::Grant {
            message,
            skip: vec![0]
        }])),
        prop::collection::vec((0u64..300, 0u8..4), 0..4).prop_map(|parts| {
            let carriage = |kind| match kind {
                0 => Carriage::Eager,
                kind => bulk(kind - 1, kind == 2),
            };
            let parts: Vec<_> = parts
                .iter()
                .map(|(len, kind)| (*len, carriage(*kind)))
                .collect();
            let mut bytes = head(&parts);
            let len = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
            bytes.resize(8 + len, 3);
            bytes
        }),
    ]
}

proptest! {
    #[test]
    fn any_frames_are_acted_on_or_refused(
        frames in prop::collection::vec(any_frame(), 1..40),
        split in 1usize..200,
        eager_reader: bool,
    ) {
        let mut reader = limits();
        reader.window_ahead = 1000;
        let mut pair = Pair::with(limits(), reader, None);
        pair.b.split = split;
        pair.b.eager_reader = eager_reader;
        for _ in 0..3 {
            pair.b.write(&message("m").tensor(3000));
        }
        // `a` says what we make up; `b`'s answers go nowhere.
        for bytes in frames {
            pair.step();
            pair.b.receive(&bytes, pair.now);
            prop_assert!(pair.b.pipe.incoming.messages.len() <= 8);
        }
    }

    #[test]
    fn a_true_conversation_with_flipped_bytes_is_acted_on_or_refused(
        flips in prop::collection::vec((0usize..9000, 0u8..), 1..4),
    ) {
        let mut pair = Pair::new();
        pair.a.record = Some(Vec::new());
        for sent in super::split::conversation() {
            pair.a.write(&sent);
        }
        pair.run();
        let mut bytes = pair.a.record.take().unwrap();
        for (at, value) in flips {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        let mut pair = Pair::new();
        pair.b.receive(&bytes, pair.now);
        pair.b.pipe.poll_event();
    }
}
