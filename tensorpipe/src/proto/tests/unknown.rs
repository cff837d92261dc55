//! Frames and fields of a later version are skipped.

use crate::proto::sim::{Pair, message};
use crate::proto::wire::frame::{Control, OPTIONAL};

#[test]
fn an_optional_frame_of_an_unknown_kind_is_skipped() {
    for split in [1, 5, usize::MAX] {
        for len in [0u32, 1, 1000, 16 << 10] {
            let mut pair = Pair::new();
            pair.b.split = split;
            let mut frame = len.to_le_bytes().to_vec();
            frame.extend_from_slice(&[200, OPTIONAL, 0, 0]);
            frame.resize(8 + len as usize, 0x55);
            pair.b.receive(&frame, pair.now);
            pair.a.write(&message("after").tensor(2000));
            pair.run();
            assert_eq!(pair.b.delivered.len(), 1);
            pair.assert_clean();
        }
    }
}

#[test]
fn fields_at_the_end_of_a_known_frame_are_skipped() {
    let mut pair = Pair::new();
    let mut frame = Vec::new();
    Control::Ping { nonce: 3 }.put(&mut frame);
    frame[0] += 5;
    frame.extend_from_slice(b"later");
    pair.b.receive(&frame, pair.now);
    pair.run();
    assert_eq!((pair.b.frames.len(), pair.b.fault.clone()), (1, None));
    pair.assert_clean();
}
