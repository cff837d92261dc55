//! The examples of WIRE.md are what the code writes and reads.

use super::frame::{FromWriter, Offer};
use super::packet::Packet;
use crate::sys::ledger::Entry;

const WIRE_MD: &str = include_str!("../../../../WIRE.md");

/// The bytes of an example.
fn shown(name: &str) -> Vec<u8> {
    let start = format!("```lease {name}\n");
    let (_, rest) = WIRE_MD.split_once(&start).expect(name);
    let (block, _) = rest.split_once("```").expect(name);
    let words = block.lines().flat_map(|line| {
        let bytes = line.split('#').next().unwrap_or_default();
        bytes.split_whitespace()
    });
    words
        .map(|word| u8::from_str_radix(word, 16).expect(word))
        .collect()
}

#[test]
fn the_examples_are_what_the_code_writes_and_reads() {
    let offer = FromWriter::Offer(Offer {
        segment: [0x11; 16],
        offset: 2 << 20,
        len: 100_000,
        entry: Entry {
            slot: 7,
            generation: 12,
        },
    });
    assert_eq!(shown("OFFER"), offer.encode());
    assert_eq!(FromWriter::decode(&shown("OFFER")), Ok(offer));
    for (name, packet) in [
        (
            "HELLO",
            Packet::Hello {
                from: [0x22; 16],
                to: [0x33; 16],
            },
        ),
        ("FETCH", Packet::Fetch([0x11; 16])),
    ] {
        assert_eq!(shown(name), packet.encode());
        assert_eq!(Packet::decode(&shown(name)), Some(packet));
    }
    assert_eq!(WIRE_MD.matches("```lease ").count(), 3);
}
