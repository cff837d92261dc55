//! A channel's own settings, and the examples of WIRE.md.

use super::frame::{ChunkHead, Frame, HEADER_LEN, Say};
use super::*;

const WIRE_MD: &str = include_str!("../../../../WIRE.md");

/// The bytes of an example.
fn example(name: &str) -> Vec<u8> {
    let start = format!("```mpt {name}\n");
    let (_, rest) = WIRE_MD.split_once(&start).expect(name);
    let (example, _) = rest.split_once("```").expect(name);
    let bytes = example.lines().flat_map(|line| {
        let hex = line.split('#').next().unwrap_or_default();
        hex.split_whitespace()
            .map(|byte| u8::from_str_radix(byte, 16).unwrap())
    });
    bytes.collect()
}

#[test]
fn the_examples_are_what_is_sent() {
    assert_eq!(WIRE_MD.matches("```mpt ").count(), 3);
    let tokens = Say::Tokens(vec![[0x11; 16]]);
    assert_eq!(tokens.encode(), example("TOKENS"));
    let chunk = Frame::Chunk(ChunkHead {
        message: 5,
        part: 2,
        offset: 512 << 10,
        len: 3,
    });
    for (frame, name) in [(chunk, "CHUNK"), (Frame::Taken(4), "TAKEN")] {
        let bytes: [u8; HEADER_LEN] = example(name).try_into().unwrap();
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
