//! Time and chance as this crate takes them. Without feature `testing` these are the calls to the system, and nothing else. With it
//! time is by tokio's clock, which is the system's unless a test has paused it, and chance within a simulation follows from its seed.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

/// The time, by the clock of this thread's runtime.
#[inline]
pub fn now() -> Instant {
    #[cfg(feature = "testing")]
    if let Some(now) = simulated::now() {
        return now;
    }
    Instant::now()
}

/// How long ago that was.
#[inline]
pub fn since(then: Instant) -> Duration {
    now().saturating_duration_since(then)
}

/// Fills it with chance that nobody can guess, except within a simulation.
///
/// # Errors
/// The system has no source of random numbers.
pub fn fill_random(bytes: &mut [u8]) -> Result<(), getrandom::Error> {
    #[cfg(feature = "testing")]
    if let Some(mut simulated) = simulated::chance() {
        simulated.fill(bytes);
        simulated::go_on_with(simulated);
        return Ok(());
    }
    getrandom::fill(bytes)
}

/// A number that two tries need not share, though somebody may guess it: without a system call.
pub fn random_u64() -> u64 {
    #[cfg(feature = "testing")]
    if let Some(mut simulated) = simulated::chance() {
        let number = simulated.number();
        simulated::go_on_with(simulated);
        return number;
    }
    // Keyed by the system once a thread, and otherwise each time.
    RandomState::new().hash_one(0u8)
}

/// Whether the clock of this runtime is virtual: it takes no notice of what threads of the real time do.
#[inline]
pub fn is_virtual(runtime: &Handle) -> bool {
    #[cfg(feature = "testing")]
    return simulated::is_virtual(runtime);
    #[cfg(not(feature = "testing"))]
    {
        let _ = runtime;
        false
    }
}

#[cfg(feature = "testing")]
pub(crate) use simulated::{Chance, Simulated};

#[cfg(feature = "testing")]
mod simulated {
    use std::cell::Cell;
    use std::time::Instant;

    use tokio::runtime::Handle;

    use crate::sync::thread_local;

    thread_local! {
        static CHANCE: Cell<Option<Chance>> = const { Cell::new(None) };
    }

    /// By tokio's clock: whether a simulation runs or not, so that nothing changes where one begins elsewhere.
    pub(super) fn now() -> Option<Instant> {
        (!has_lost()).then(|| tokio::time::Instant::now().into_std())
    }

    /// A thread that ends may have lost its runtime already, and tokio would panic.
    fn has_lost() -> bool {
        let runtime = Handle::try_current();
        runtime.is_err_and(|error| error.is_thread_local_destroyed())
    }

    /// A clock that nobody has paused shows the system's time, to the nanosecond.
    pub(super) fn is_virtual(runtime: &Handle) -> bool {
        if has_lost() {
            return false;
        }
        let _inside = runtime.enter();
        let before = Instant::now();
        let now = tokio::time::Instant::now().into_std();
        chance().is_some() || now < before || now > Instant::now()
    }

    pub(super) fn chance() -> Option<Chance> {
        CHANCE.get()
    }

    pub(super) fn go_on_with(chance: Chance) {
        CHANCE.set(Some(chance));
    }

    /// While it lives, chance follows from a seed on this thread.
    pub(crate) struct Simulated(Option<Chance>);

    impl Simulated {
        pub(crate) fn new(seed: u64) -> Self {
            Self(CHANCE.replace(Some(Chance(seed))))
        }
    }

    impl Drop for Simulated {
        fn drop(&mut self) {
            CHANCE.set(self.0);
        }
    }

    /// Numbers that follow from a seed: SplitMix64.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Chance(pub(crate) u64);

    impl Chance {
        pub(crate) fn number(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        }

        pub(super) fn fill(&mut self, bytes: &mut [u8]) {
            for piece in bytes.chunks_mut(8) {
                let number = self.number().to_le_bytes();
                piece.copy_from_slice(&number[..piece.len()]);
            }
        }
    }
}
