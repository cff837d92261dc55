//! What the targets in `fuzz/` run (feature `fuzzing`): the bytes of a peer against the protocol, and what must hold
//! whatever they are. Each function panics where it does not. Not for anybody else: it changes without notice.
//!
//! Invariant: an input decides everything; there is no clock and no chance.

mod descriptor;
mod frames;
mod handshake;
mod seeds;

pub use descriptor::descriptor;
pub use frames::frames;
pub use handshake::handshake;
pub use seeds::seeds;

use crate::proto::wire::hello::WireLimits;

/// What this side is prepared to receive: little, so that limits are met within a short input.
const OURS: WireLimits = WireLimits {
    chunk: 1024,
    eager_part: 64,
    eager_message: 256,
    metadata: 512,
    parts: 16,
    payload: 1 << 16,
    tensor: 1 << 16,
    message: 1 << 18,
    window_messages: 8,
    window_bytes: 8 << 10,
    window_ahead: 1 << 10,
};

/// What the peer is said to take.
const THEIRS: WireLimits = WireLimits {
    window_messages: 64,
    window_bytes: 1 << 20,
    window_ahead: 0,
    ..OURS
};

#[cfg(test)]
mod tests {
    /// Each seed, and each seed cut and with one byte changed, is an input that every target bears.
    #[test]
    fn seeds_and_what_is_near_them_hold() {
        let mut targets = std::collections::BTreeSet::new();
        for (target, seed) in super::seeds() {
            let run = match target {
                "frames" => super::frames,
                "handshake" => super::handshake,
                "descriptor" => super::descriptor,
                other => panic!("there is no target {other}"),
            };
            targets.insert(target);
            run(&seed);
            // Of a long one not everywhere: that is what a run of its target is for.
            for at in (0..seed.len()).step_by(1 + seed.len() / 200) {
                run(&seed[..at]);
                for value in [0, 0xff, seed[at] ^ 0x10] {
                    let mut near = seed.clone();
                    near[at] = value;
                    run(&near);
                }
            }
        }
        assert_eq!(targets.len(), 3);
    }
}
