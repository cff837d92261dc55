//! Picks the replica of a call: a pure function of a turn counter and of how busy each replica is.

/// How calls are spread over the live replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Balance {
    /// One after another, in each service.
    #[default]
    RoundRobin,
    /// The replica with the fewest of this client's calls under way; if several have as few, one after another. For calls of very
    /// different length, and replicas of different speed. Calls that a live replica leaves unanswered count as under way, so it
    /// gets fewer further calls.
    LeastBusy,
}

impl Balance {
    /// Picks one of `loads`: the calls under way of each replica, `None` if it cannot be called.
    pub(super) fn pick(self, turn: usize, loads: &[Option<usize>]) -> Option<usize> {
        let most = match self {
            Self::RoundRobin => usize::MAX,
            Self::LeastBusy => *loads.iter().flatten().min()?,
        };
        // Take turns among the fitting replicas only. If a dead one passed its turn on, the next one would get twice as many calls.
        let fits = |load: &Option<usize>| load.is_some_and(|load| load <= most);
        let fitting = || loads.iter().enumerate().filter(|(_, load)| fits(load));
        let nth = turn.checked_rem(fitting().count())?;
        fitting().nth(nth).map(|(index, _)| index)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn loads() -> impl Strategy<Value = Vec<Option<usize>>> {
        proptest::collection::vec(proptest::option::of(0usize..4), 0..8)
    }

    proptest! {
        /// In as many turns as there are live replicas, each of them is called once.
        #[test]
        fn round_robin_is_fair_whoever_is_missing(loads in loads(), from in 0usize..1000) {
            let there: Vec<usize> = (0..loads.len()).filter(|i| loads[*i].is_some()).collect();
            let mut picked: Vec<usize> = (from..from + there.len())
                .filter_map(|turn| Balance::RoundRobin.pick(turn, &loads))
                .collect();
            picked.sort_unstable();
            prop_assert_eq!(picked, there);
        }

        #[test]
        fn the_least_busy_is_picked(loads in loads(), turn in any::<usize>()) {
            let least = loads.iter().flatten().min();
            let picked = Balance::LeastBusy.pick(turn, &loads);
            prop_assert_eq!(picked.and_then(|picked| loads[picked]), least.copied());
        }
    }

    #[test]
    fn those_that_are_equally_busy_take_turns() {
        let loads = [Some(1), Some(0), None, Some(0)];
        let picked = (0..4).map(|turn| Balance::LeastBusy.pick(turn, &loads));
        let picked: Vec<_> = picked.flatten().collect();
        assert_eq!(picked, [1, 3, 1, 3]);
    }
}
