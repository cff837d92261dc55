//! The examples of WIRE.md are what the code writes and reads.

use super::Offer;
use super::frame::FromWriter;
use crate::channels::exchange::Packet;
use crate::sys::ledger::Entry;
use crate::wire_md::examples;

#[test]
fn the_examples_are_what_the_code_writes_and_reads() {
    let examples = examples("lease");
    let offer = FromWriter::Offer(Offer {
        segment: [0x11; 16],
        offset: 2 << 20,
        len: 100_000,
        entry: Entry {
            slot: 7,
            generation: 12,
            number: 0x8877_6655_4433_2211,
        },
    });
    assert_eq!(examples["OFFER"], offer.encode(true).to_vec());
    assert_eq!(FromWriter::decode(&examples["OFFER"]), Ok((offer, true)));
    let invite = FromWriter::Invite([0x22; 16]);
    assert_eq!(examples["INVITE"], invite.encode(false).to_vec());
    for (name, packet) in [
        ("HELLO", Packet::Hello([0x22; 16])),
        ("FETCH", Packet::Fetch([0x11; 16])),
    ] {
        assert_eq!(examples[name], packet.encode());
        assert_eq!(Packet::decode(&examples[name]), Some(packet));
    }
    assert_eq!(examples.len(), 4);
}
