//! One spare vector for each thread, for the next encoding. The pipe copies a small call or reply into its own buffer, so the
//! vector is free again at once.

use std::cell::Cell;

/// Room for the header and values of a small call, in bytes.
const ROOM: usize = 96;

/// The largest vector that is kept.
const KEPT: usize = 4 << 10;

thread_local! {
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// An empty vector with some room.
pub(crate) fn take() -> Vec<u8> {
    // While a thread ends, its spare vector may be gone.
    let mut spare = SPARE.try_with(Cell::take).unwrap_or_default();
    spare.reserve(ROOM);
    spare
}

/// Keeps a vector for the next encoding, unless it is large. Its content is cleared.
pub(crate) fn keep(mut vector: Vec<u8>) {
    if vector.capacity() <= KEPT {
        vector.clear();
        let _ = SPARE.try_with(|spare| spare.set(vector));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_one_is_used_again_and_a_large_one_is_not_kept() {
        let mut vector = take();
        vector.extend_from_slice(b"of a call");
        let place = vector.as_ptr();
        keep(vector);
        let again = take();
        assert_eq!((again.as_ptr(), again.len()), (place, 0));
        // `again` is taken, and there is no second spare.
        let other = take();
        assert_ne!(other.as_ptr(), place);
        keep(again);
        keep(Vec::with_capacity(KEPT + 1));
        let again = take();
        assert_eq!(again.as_ptr(), place);
    }
}
