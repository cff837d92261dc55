//! Where the bytes of an incoming part go, and how much memory that makes resident.
//!
//! Invariant: memory is taken from the pool when its first byte is about to be written. An announcement by a peer therefore takes none,
//! even if the allocator zeroes blocks, or the pool has warm ones.

use std::ops::Range;

#[cfg(feature = "cuda")]
use super::cuda::Place;
use super::{Buffer, BufferMut, Pool};
use crate::error::SystemError;
use crate::sys::block::{HUGE_PAGE, resident};

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Destination {
    len: usize,
    memory: Option<BufferMut>,
    /// All of it was counted already, or belongs to the application.
    counted: bool,
    /// It is a range of larger memory; others fill the rest.
    #[cfg(feature = "cuda")]
    within: Option<Place>,
}

impl Destination {
    /// `len` bytes of the pool's.
    pub(crate) fn pooled(len: usize) -> Self {
        Self {
            len,
            memory: None,
            counted: false,
            #[cfg(feature = "cuda")]
            within: None,
        }
    }

    /// `len` bytes at this place in larger memory.
    #[cfg(feature = "cuda")]
    pub(crate) fn within(len: usize, place: Place) -> Self {
        Self {
            within: Some(place),
            ..Self::pooled(len)
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// How many bytes become resident by writing to `range`. Blocks from the allocator and warm blocks count whole at once, others by
    /// the page. Call it before each write. Each range must begin where an earlier one ended, or on a huge page.
    ///
    /// # Errors
    /// When the system has no such memory.
    pub(crate) fn cost(&mut self, range: Range<usize>, pool: &Pool) -> Result<u64, SystemError> {
        if self.counted {
            return Ok(0);
        }
        #[cfg(feature = "cuda")]
        if let Some(place) = &self.within {
            return place.cost(range, pool);
        }
        let block = Pool::block_len(self.len);
        let at_birth = resident(block, 0);
        if self.memory.is_none() && at_birth == 0 {
            let (memory, warm) = pool.acquire(self.len)?;
            self.memory = Some(memory);
            self.counted = warm;
        } else if at_birth > 0 {
            self.counted = true;
        }
        let bytes = match self.counted {
            // Its own length, not the rest of a warm block: whether a part is refused must not depend on what
            // came before.
            true => resident(block, self.len),
            false => resident(block, range.end) - resident(block, range.start),
        };
        Ok(bytes as u64)
    }

    /// The huge page that this byte is in.
    pub(crate) fn page(&self, at: usize) -> Range<usize> {
        let start = at - at % HUGE_PAGE;
        start..self.len.min(start + HUGE_PAGE)
    }

    /// Takes the memory, if it is not there yet.
    ///
    /// # Errors
    /// When the system has no such memory.
    pub(crate) fn open(&mut self, pool: &Pool) -> Result<(), SystemError> {
        if self.memory.is_none() {
            #[cfg(feature = "cuda")]
            if let Some(place) = &self.within {
                self.memory = Some(place.open(pool)?);
                return Ok(());
            }
            self.memory = Some(pool.try_take(self.len)?);
        }
        Ok(())
    }

    /// For memory of the pool: gives it back with whatever is in it, as if no byte had come. Returns `false` for a range of larger
    /// memory, which is given out and counted once.
    pub(crate) fn close(&mut self) -> bool {
        #[cfg(feature = "cuda")]
        if self.within.is_some() {
            return false;
        }
        *self = Self::pooled(self.len);
        true
    }

    /// The bytes to fill, once they are there, and where the CPU may write them.
    pub(crate) fn as_bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.memory.as_mut()?.as_bytes_mut()
    }

    /// The memory, if any of it was filled or it belongs to the application.
    pub(crate) fn into_memory(self) -> Option<BufferMut> {
        self.memory
    }

    /// Done filling.
    pub(crate) fn freeze(self) -> Option<Buffer> {
        self.memory.map(BufferMut::freeze)
    }
}

/// Memory of the application's, or memory that was counted already.
impl From<BufferMut> for Destination {
    fn from(memory: BufferMut) -> Self {
        Self {
            len: memory.len(),
            memory: Some(memory),
            counted: true,
            #[cfg(feature = "cuda")]
            within: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::PoolOptions;

    const HUGE: usize = HUGE_PAGE;

    fn pool() -> Pool {
        Pool::new(PoolOptions {
            retain: 64 << 20,
            ..PoolOptions::default()
        })
    }

    /// Writes to all of `dest` in pieces; returns the cost of each.
    fn costs(dest: &mut Destination, piece: usize, pool: &Pool) -> Vec<u64> {
        let starts = (0..dest.len()).step_by(piece);
        let end = dest.len();
        let costs = starts.map(|at| {
            let cost = dest.cost(at..end.min(at + piece), pool).unwrap();
            dest.open(pool).unwrap();
            cost
        });
        costs.collect()
    }

    #[test]
    fn nothing_is_taken_before_the_first_byte() {
        let pool = pool();
        for len in [1, 5000, HUGE, 5 * HUGE] {
            let dest = Destination::pooled(len);
            assert_eq!(pool.stats().taken, 0);
            assert!(dest.into_memory().is_none());
        }
    }

    #[test]
    fn fresh_memory_costs_whole_pages_as_they_are_reached() {
        let pool = pool();
        let mut dest = Destination::pooled(2 * HUGE + 5000);
        let costs = costs(&mut dest, HUGE / 2, &pool);
        let huge = HUGE as u64;
        assert_eq!(costs, [huge, 0, huge, 0, 8192]);
    }

    #[test]
    fn small_and_warm_memory_costs_all_of_its_block_at_once() {
        let pool = pool();
        let small = costs(&mut Destination::pooled(33 << 10), 1000, &pool);
        assert_eq!(small[0], 40 << 10);
        assert!(small[1..].iter().all(|cost| *cost == 0));
        drop(pool.take(5 * HUGE));
        let warm = costs(&mut Destination::pooled(4 * HUGE + 1), 2 * HUGE, &pool);
        assert_eq!(pool.stats().recycled, 1);
        assert_eq!(warm, [5 * HUGE as u64, 0, 0]);
    }

    #[test]
    fn what_is_given_back_costs_again() {
        let pool = pool();
        let mut dest = Destination::pooled(2 * HUGE);
        let first = costs(&mut dest, HUGE, &pool);
        assert!(dest.close());
        assert_eq!(pool.stats().outstanding_bytes, 0);
        let again = costs(&mut dest, HUGE, &pool);
        let sum = |costs: Vec<u64>| costs.iter().sum::<u64>();
        assert_eq!((sum(first), sum(again)), (2 << 21, 2 << 21));
    }

    #[test]
    fn memory_of_the_applications_costs_nothing() {
        let mut dest = Destination::from(BufferMut::zeroed(5000));
        assert_eq!(costs(&mut dest, 100, &pool()).iter().sum::<u64>(), 0);
        assert_eq!(dest.freeze().unwrap().len(), 5000);
    }
}
