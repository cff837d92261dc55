//! Frames that make no sense together are acted on or refused, never a panic. The tests of `fuzzing` flip bytes of true ones.

use proptest::prelude::*;

use crate::proto::sim::frames::{bulk, chunk, control, frame, refuse, reset, whole};
use crate::proto::sim::{Pair, limits, message};
use crate::proto::wire::descriptor::Carriage;
use crate::proto::wire::frame::Control;

/// Frames that a careless or malicious peer might send, in a pipe whose application takes everything.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let number = || 0u64..6;
    let carriage = prop_oneof![
        Just(Carriage::Eager),
        Just(bulk(0, false)),
        Just(bulk(1, true)),
        Just(bulk(2, false)),
    ];
    let skip = vec![0];
    prop_oneof![
        (0u8..32, 0u8..8, prop::collection::vec(0u8.., 0..40))
            .prop_map(|(kind, flags, body)| frame(kind, flags, &body)),
        (number(), 0u16..3, 0usize..600).prop_map(|(m, part, len)| chunk(m, part, len)),
        (number(), any::<bool>()).prop_map(|(m, answer)| control([reset(m, answer)])),
        number().prop_map(|message| control([refuse(message)])),
        number().prop_map(|message| control([Control::Flush(message)])),
        number().prop_map(move |message| {
            let skip = skip.clone();
            control([Control::Grant { message, skip }])
        }),
        prop::collection::vec((0u64..300, carriage), 0..4).prop_map(|parts| whole(&parts)),
    ]
}

proptest! {
    #[test]
    fn any_frames_are_acted_on_or_refused(
        frames in prop::collection::vec(any_frame(), 1..40),
        split in 1usize..200,
        lazy: bool,
    ) {
        let mut reader = limits();
        reader.window_ahead = 1000;
        let mut pair = Pair::with(limits(), reader, None);
        pair.b.split = split;
        pair.b.lazy = lazy;
        for _ in 0..3 {
            pair.b.write(&message("m").tensor(3000));
        }
        // `a` says what we make up; `b`'s answers go nowhere.
        for bytes in frames {
            pair.step();
            pair.tell(&bytes);
            prop_assert!(pair.b.pipe.incoming.messages.len() <= 8);
        }
    }
}
