//! Things by number, where numbers come in ascending order but for a few and most things do not stay long.
//!
//! The recent ones lie side by side, found by subtraction; those that outstay [`SPAN`] later numbers move to a tree. So one
//! that stays for ever costs as much as any other, and coming and going allocates nothing.

use std::collections::{BTreeMap, VecDeque};

/// Numbers that lie side by side.
const SPAN: usize = 64;

#[derive(Debug)]
pub(super) struct Numbered<T> {
    /// Those of `base` and the numbers that follow. Neither its front nor its back is empty.
    recent: VecDeque<Option<T>>,
    base: u64,
    /// The others.
    old: BTreeMap<u64, T>,
    len: usize,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self {
            recent: VecDeque::new(),
            base: 0,
            old: BTreeMap::new(),
            len: 0,
        }
    }
}

impl<T> Numbered<T> {
    /// `number` is not here. Most often it is higher than any that is.
    pub(super) fn insert(&mut self, number: u64, thing: T) {
        self.len += 1;
        if self.recent.is_empty() {
            self.base = number;
        } else if let Some(at) = self.at(number) {
            self.recent[at] = Some(thing);
            return;
        } else if number < self.base {
            self.old.insert(number, thing);
            return;
        } else if number - self.base >= SPAN as u64 {
            self.retire(number);
        }
        while self.base + (self.recent.len() as u64) < number {
            self.recent.push_back(None);
        }
        self.recent.push_back(Some(thing));
    }

    /// Makes room for `number`, which is too far ahead.
    fn retire(&mut self, number: u64) {
        while number - self.base >= SPAN as u64 {
            match self.recent.pop_front() {
                Some(Some(thing)) => {
                    self.old.insert(self.base, thing);
                    self.base += 1;
                }
                Some(None) => self.base += 1,
                None => self.base = number,
            }
        }
    }

    fn at(&self, number: u64) -> Option<usize> {
        let at = number.checked_sub(self.base)?;
        (at < self.recent.len() as u64).then_some(at as usize)
    }

    pub(super) fn get(&self, number: u64) -> Option<&T> {
        let recent = self.at(number).and_then(|at| self.recent[at].as_ref());
        recent.or_else(|| self.old.get(&number))
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        match self.at(number) {
            Some(at) if self.recent[at].is_some() => self.recent[at].as_mut(),
            _ => self.old.get_mut(&number),
        }
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        let recent = self.at(number).and_then(|at| self.recent[at].take());
        let removed = recent.or_else(|| self.old.remove(&number))?;
        self.len -= 1;
        while let Some(None) = self.recent.front() {
            self.recent.pop_front();
            self.base += 1;
        }
        while let Some(None) = self.recent.back() {
            self.recent.pop_back();
        }
        Some(removed)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All of them.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let recent = (self.base..).zip(&self.recent);
        let recent = recent.filter_map(|(number, thing)| Some((number, thing.as_ref()?)));
        self.old
            .iter()
            .map(|(number, thing)| (*number, thing))
            .chain(recent)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        /// Passes over so many numbers.
        Push(u64),
        /// So many numbers back: one that may have been passed over, or not be there.
        Insert(u64),
        Remove(u64),
        Change(u64),
        Clear,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let skip = prop_oneof![8 => Just(0u64), 2 => 1..5u64, 1 => 50..200u64, 1 => Just(1 << 40)];
        let back = prop_oneof![4 => 0..3u64, 2 => 0..80u64, 1 => 0..400u64];
        let step = prop_oneof![
            10 => skip.prop_map(Step::Push),
            2 => back.clone().prop_map(Step::Insert),
            8 => back.clone().prop_map(Step::Remove),
            3 => back.prop_map(Step::Change),
            1 => Just(Step::Clear),
        ];
        proptest::collection::vec(step, 0..600)
    }

    proptest! {
        #[test]
        fn it_is_a_map(steps in steps()) {
            let (mut numbered, mut map, mut next) = (Numbered::default(), BTreeMap::new(), 0u64);
            for step in steps {
                match step {
                    Step::Push(skip) => {
                        let number = next + skip;
                        next = number + 1;
                        numbered.insert(number, number);
                        map.insert(number, number);
                    }
                    Step::Insert(back) => {
                        let number = next.saturating_sub(back + 1);
                        if !map.contains_key(&number) && number < next {
                            numbered.insert(number, number);
                            map.insert(number, number);
                        }
                    }
                    Step::Remove(back) => {
                        let number = next.saturating_sub(back);
                        prop_assert_eq!(numbered.remove(number), map.remove(&number));
                    }
                    Step::Change(back) => {
                        let number = next.saturating_sub(back);
                        numbered.get_mut(number).into_iter().for_each(|thing| *thing += 1);
                        map.get_mut(&number).into_iter().for_each(|thing| *thing += 1);
                        prop_assert_eq!(numbered.get(number), map.get(&number));
                    }
                    Step::Clear => {
                        numbered.clear();
                        map.clear();
                    }
                }
                prop_assert_eq!((numbered.len(), numbered.is_empty()), (map.len(), map.is_empty()));
                prop_assert!(numbered.recent.len() <= SPAN);
                let mut all: Vec<_> = numbered.iter().map(|(number, thing)| (number, *thing)).collect();
                all.sort_unstable();
                prop_assert_eq!(all, map.iter().map(|(k, v)| (*k, *v)).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn one_that_stays_for_ever_keeps_the_others_close() {
        let mut numbered = Numbered::default();
        numbered.insert(0, "stays");
        for number in 1..100_000 {
            numbered.insert(number, "goes");
            assert_eq!(numbered.remove(number), Some("goes"));
        }
        assert_eq!(numbered.get(0), Some(&"stays"));
        assert_eq!((numbered.len(), numbered.old.len()), (1, 1));
    }
}
