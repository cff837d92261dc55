//! Bytes that differ in every round and at every place, cheap to write and to check.
//!
//! Word `i` of round `r` is `hash(r) + i * STEP`. This reveals a stale buffer, a shifted or repeated chunk, and a missing end. Both loops
//! are additions that vectorise, so that 256 MiB cost little beside the transfer.

/// Writes the pattern of `round` over all of `bytes`.
pub(crate) fn fill(bytes: &mut [u8], round: u64) {
    let mut word = first_word(round);
    let mut words = bytes.chunks_exact_mut(WORD);
    for place in &mut words {
        place.copy_from_slice(&word.to_le_bytes());
        word = word.wrapping_add(STEP);
    }
    let rest = words.into_remainder();
    let len = rest.len();
    rest.copy_from_slice(&word.to_le_bytes()[..len]);
}

/// Where `bytes` first differ from the pattern of `round`; `None` when they are right.
pub(crate) fn mismatch(bytes: &[u8], round: u64) -> Option<u64> {
    let mut word = first_word(round);
    for (index, block) in bytes.chunks(BLOCK).enumerate() {
        let mut difference = 0;
        let mut expected = word;
        let words = block.chunks_exact(WORD);
        let rest = words.remainder();
        for found in words {
            difference |= load(found) ^ expected;
            expected = expected.wrapping_add(STEP);
        }
        let rest_differs = rest != &expected.to_le_bytes()[..rest.len()];
        if difference != 0 || rest_differs {
            return Some((index * BLOCK + first_difference(block, word)) as u64);
        }
        word = expected;
    }
    None
}

/// Reads all of `bytes`: their sum, as words.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(WORD);
    let rest = words.remainder().iter().map(|byte| u64::from(*byte));
    words.map(load).chain(rest).fold(0, u64::wrapping_add)
}

fn first_word(round: u64) -> u64 {
    // splitmix64: neighbouring rounds share no words.
    let mut z = round.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn first_difference(block: &[u8], first: u64) -> usize {
    let mut expected = vec![0; block.len()];
    let mut word = first;
    for place in expected.chunks_mut(WORD) {
        let len = place.len();
        place.copy_from_slice(&word.to_le_bytes()[..len]);
        word = word.wrapping_add(STEP);
    }
    block
        .iter()
        .zip(&expected)
        .position(|(found, expected)| found != expected)
        .unwrap_or(block.len())
}

fn load(bytes: &[u8]) -> u64 {
    let mut word = [0; WORD];
    word.copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

const WORD: usize = 8;
const BLOCK: usize = 4096;
/// Odd and with its bits spread, so that neighbouring words differ in most bytes.
const STEP: u64 = 0x0107_0b0d_1113_171d;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_filled_checks_at_every_length() {
        for len in (0..40).chain([4095, 4096, 4097, 3 * 4096 + 5]) {
            let mut bytes = vec![0; len];
            fill(&mut bytes, 7);
            assert_eq!(mismatch(&bytes, 7), None, "{len} bytes");
        }
    }

    #[test]
    fn one_wrong_byte_is_found_where_it_is() {
        let mut bytes = vec![0; 2 * 4096 + 3];
        fill(&mut bytes, 3);
        for at in [0, 1, 4095, 4096, 5000, 8191, 8192, 8194] {
            let mut wrong = bytes.clone();
            wrong[at] ^= 0x10;
            assert_eq!(mismatch(&wrong, 3), Some(at as u64));
        }
    }

    #[test]
    fn stale_and_shifted_bytes_are_found() {
        let mut bytes = vec![0; 8192];
        fill(&mut bytes, 3);
        assert!(mismatch(&bytes, 4).is_some(), "the round before");
        bytes.copy_within(4096.., 0);
        assert!(mismatch(&bytes, 3).is_some(), "a chunk in another's place");
    }
}
