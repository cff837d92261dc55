//! A channel's own settings, and the examples of WIRE.md.

use super::frame::{ChunkHead, Frame, HEADER_LEN, Say};
use super::*;
use crate::wire_md::examples;

#[test]
fn the_examples_are_what_is_sent() {
    let examples = examples("mpt");
    assert_eq!(examples.len(), 3);
    let tokens = Say::Tokens(vec![[0x11; 16]]);
    assert_eq!(tokens.encode(), examples["TOKENS"]);
    let chunk = Frame::Chunk(ChunkHead {
        op: OpId::incoming(5, 2),
        offset: 512 << 10,
        len: 3,
    });
    for (frame, name) in [(chunk, "CHUNK"), (Frame::Taken(4), "TAKEN")] {
        let bytes: [u8; HEADER_LEN] = examples[name][..].try_into().unwrap();
        assert_eq!(frame.encode(), bytes, "{name}");
        assert_eq!(Frame::decode(&bytes), Ok(frame), "{name}");
    }
}

#[test]
fn silly_numbers_are_refused() {
    for wrong in [0, CONNECTIONS_MAX + 1, 255] {
        assert!(MptChannel::new().connections(wrong).is_err());
    }
    let two = MptChannel::new().connections(2).unwrap();
    assert_eq!(two.chunks_sent(), [0, 0]);
}
