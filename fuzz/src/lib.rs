//! How much an input may cost: a target says so, and is held to it. It runs on one thread.

#[path = "../../tests/src/counting.rs"]
pub mod counting;

use counting::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

/// Runs `target`, and panics if more than `limit` bytes, and eight for each byte of `data`, were held at once.
pub fn bounded(limit: usize, data: &[u8], target: fn(&[u8])) {
    let most = ALLOCATOR.most_during(|| target(data));
    let limit = limit + 8 * data.len();
    assert!(
        most <= limit,
        "{most} bytes were held for {} bytes of input, {limit} are allowed",
        data.len()
    );
}
