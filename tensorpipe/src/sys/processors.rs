//! The processors that this process may use, as it tells its peers. They decide whether a second thread, or another process, runs at the
//! same time.

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

/// See the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Processors {
    /// How many it can use at once, by affinity and by the control group's quota.
    pub(crate) usable: u16,
    /// The number of the only processor that it is bound to. `None` if a quota of one applies to many: then the number is unknown.
    pub(crate) only: Option<u16>,
}

const NONE: u16 = u16::MAX;

impl Processors {
    /// Of what [`Processors::encode`] makes, in bytes.
    pub(crate) const LEN: usize = 4;

    /// The processors of the calling thread; threads that it starts inherit them. Takes some 10 µs.
    pub(crate) fn here() -> Self {
        let usable = std::thread::available_parallelism().map_or(1, usize::from);
        let bound = sched_getaffinity(Pid::from_raw(0)).ok();
        Self {
            usable: u16::try_from(usable).unwrap_or(u16::MAX),
            only: bound.as_ref().and_then(only),
        }
    }

    /// Whether both processes are bound to the same single processor: only one of them runs at a time.
    pub(crate) fn are_one_with(self, other: Self) -> bool {
        self.only.is_some() && self.only == other.only
    }

    /// 4 bytes that say the same.
    pub(crate) fn encode(self) -> [u8; Self::LEN] {
        let [a, b] = self.usable.to_le_bytes();
        let [c, d] = self.only.unwrap_or(NONE).to_le_bytes();
        [a, b, c, d]
    }

    /// The opposite of [`Processors::encode`].
    pub(crate) fn decode([a, b, c, d]: [u8; Self::LEN]) -> Self {
        let only = u16::from_le_bytes([c, d]);
        Self {
            usable: u16::from_le_bytes([a, b]),
            only: (only != NONE).then_some(only),
        }
    }
}

/// The processor that the calling thread runs on at this moment.
pub(crate) fn current() -> Option<u32> {
    nix::sched::sched_getcpu().ok()?.try_into().ok()
}

fn only(set: &CpuSet) -> Option<u16> {
    let mut bound = (0..CpuSet::count()).filter(|number| set.is_set(*number).unwrap_or(false));
    let first = bound.next()?;
    bound.next().is_none().then_some(first)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use nix::sched::sched_setaffinity;

    use super::*;

    #[test]
    fn a_thread_that_is_bound_to_one_says_which() {
        // On a thread of its own, so that no other thread is bound.
        let bound = std::thread::spawn(|| {
            let all = sched_getaffinity(Pid::from_raw(0)).unwrap();
            let allowed = |number: &usize| all.is_set(*number).unwrap();
            for number in (0..CpuSet::count()).filter(allowed) {
                let mut set = CpuSet::new();
                set.set(number).unwrap();
                sched_setaffinity(Pid::from_raw(0), &set).unwrap();
                let here = Processors::here();
                assert_eq!(here, one(number as u16));
            }
            let here = Processors::here();
            assert_eq!(Processors::decode(here.encode()), here);
        });
        bound.join().unwrap();
    }

    fn one(number: u16) -> Processors {
        Processors {
            usable: 1,
            only: Some(number),
        }
    }

    #[test]
    fn two_are_one_only_if_both_say_which_it_is() {
        let quota = Processors {
            usable: 1,
            only: None,
        };
        assert_eq!(Processors::decode(quota.encode()), quota);
        assert!(one(3).are_one_with(one(3)));
        assert!(!one(3).are_one_with(one(2)));
        assert!(!one(3).are_one_with(quota) && !quota.are_one_with(quota));
    }
}
