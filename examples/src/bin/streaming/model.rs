//! A language model small enough to read: it counts which word follows which in one text.

use std::collections::{BTreeMap, BTreeSet};

/// The text that the model is trained on.
const TEXT: &str = "\
    the pipe carries the message and the message carries the tensor and the tensor stays where it is until the reader asks for it \
    and the reader asks for the tensor when there is room for it and the writer waits for the reader but the writer never waits \
    for the network alone because the pipe has a bound and a bound is a promise that the other end keeps or the pipe ends with an \
    error that says what to do next and the next message finds the pipe as the last one left it";

/// A bigram model.
pub(crate) struct Model {
    words: Vec<&'static str>,
    /// For each word, the probability of each next word.
    next: Vec<Vec<f32>>,
}

impl Model {
    pub(crate) fn new() -> Self {
        let read: Vec<_> = TEXT.split_whitespace().collect();
        let words: Vec<_> = read
            .iter()
            .copied()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        let place: BTreeMap<_, _> = words
            .iter()
            .enumerate()
            .map(|(i, word)| (*word, i))
            .collect();
        let mut next = vec![vec![0.0; words.len()]; words.len()];
        // The last word is followed by the first.
        let followers = read.iter().zip(read.iter().cycle().skip(1));
        for (word, follower) in followers {
            next[place[word]][place[follower]] += 1.0;
        }
        for counts in &mut next {
            let sum: f32 = counts.iter().sum();
            counts.iter_mut().for_each(|count| *count /= sum);
        }
        Self { words, next }
    }

    /// The index of the prompt's last word, or a message that says what is wrong with the prompt.
    pub(crate) fn find(&self, prompt: &str) -> Result<usize, String> {
        let last = prompt.split_whitespace().last();
        let last = last.ok_or("the prompt is empty: begin with a word")?;
        let place = self.words.iter().position(|word| *word == last);
        place.ok_or_else(|| format!("the model has never read `{last}`"))
    }

    pub(crate) fn word(&self, place: usize) -> &str {
        self.words[place]
    }

    pub(crate) fn probabilities(&self, place: usize) -> Vec<f32> {
        self.next[place].clone()
    }

    /// Draws the next word at random. Returns it with the seed for the word after it.
    pub(crate) fn sample(&self, place: usize, seed: u64) -> (usize, u64) {
        // SplitMix64 (Steele, Lea, Flood 2014).
        let seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let drawn = ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 24) as f32;
        let mut sum = 0.0;
        let likely = self.next[place].iter().position(|probability| {
            sum += probability;
            drawn < sum
        });
        // Rounding may leave the sum a little short of one.
        let last = self.next[place]
            .iter()
            .rposition(|probability| *probability > 0.0);
        (likely.or(last).unwrap_or(place), seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_is_drawn_as_often_as_it_was_read() {
        let model = Model::new();
        let the = model.find("all of the").unwrap();
        let mut counts = vec![0.0; model.words.len()];
        let mut seed = 1;
        for _ in 0..20_000 {
            let (next, other) = model.sample(the, seed);
            counts[next] += 1.0 / 20_000.0;
            seed = other;
        }
        for (drawn, read) in counts.iter().zip(model.probabilities(the)) {
            assert!((drawn - read).abs() < 0.02, "{drawn} of {read}");
        }
        assert!(model.find("xylophone").is_err() && model.find(" ").is_err());
    }
}
