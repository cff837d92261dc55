//! Compares embeddings with those of sentence-transformers.
//!
//! `data/reference.json` holds the reference embeddings of two dozen sentences; `reference.py` made it.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::nearest::cosine_distance;

/// The largest cosine distance at which two embeddings count as the same.
pub const TOLERANCE: f64 = 1e-5;

const JSON: &str = include_str!("../data/reference.json");

/// Embeddings that another implementation computed.
#[derive(Debug, Deserialize)]
pub struct Reference {
    /// The command that made the file, and its inputs.
    pub about: BTreeMap<String, String>,
    /// Embeddings by sentence.
    pub embeddings: BTreeMap<String, Vec<f32>>,
}

/// How far our embeddings are from the reference.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Sentences compared.
    pub sentences: usize,
    /// The largest cosine distance.
    pub worst: f64,
    /// The sentence with the largest distance.
    pub sentence: String,
    /// The mean of all distances.
    pub mean: f64,
}

impl Reference {
    /// Loads the reference that is part of the repository.
    ///
    /// # Errors
    /// The file is damaged.
    pub fn load() -> Result<Self> {
        serde_json::from_str(JSON).context("data/reference.json")
    }

    /// Its sentences.
    pub fn sentences(&self) -> Vec<&str> {
        self.embeddings.keys().map(String::as_str).collect()
    }

    /// Compares it with `embeddings` of its sentences, in the order of [`sentences`](Self::sentences).
    ///
    /// # Errors
    /// The number of embeddings or their dimension differs: they are from another model.
    pub fn compare(&self, embeddings: &[Vec<f32>]) -> Result<Comparison> {
        ensure!(
            embeddings.len() == self.embeddings.len(),
            "{} embeddings of {} sentences",
            embeddings.len(),
            self.embeddings.len()
        );
        let mut comparison = Comparison {
            sentences: embeddings.len(),
            worst: 0.0,
            sentence: String::new(),
            mean: 0.0,
        };
        for ((sentence, theirs), ours) in self.embeddings.iter().zip(embeddings) {
            ensure!(
                theirs.len() == ours.len(),
                "the reference has {} numbers an embedding, this model {}; compare all-MiniLM-L6-v2",
                theirs.len(),
                ours.len()
            );
            let distance = cosine_distance(theirs, ours);
            comparison.mean += distance / embeddings.len() as f64;
            // NaN counts as the largest possible distance.
            let distance = if distance.is_nan() { 2.0 } else { distance };
            if distance > comparison.worst || comparison.sentence.is_empty() {
                comparison.worst = distance;
                comparison.sentence.clone_from(sentence);
            }
        }
        Ok(comparison)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_is_compared_sentence_by_sentence() {
        let reference = Reference::load().unwrap();
        assert!(reference.sentences().len() >= 20);
        let mut same: Vec<_> = reference.embeddings.values().cloned().collect();
        let comparison = reference.compare(&same).unwrap();
        assert!(comparison.worst < 1e-12, "{comparison:?}");
        same[3][0] += 0.05;
        let comparison = reference.compare(&same).unwrap();
        assert!(comparison.worst > TOLERANCE, "{comparison:?}");
        assert_eq!(comparison.sentence, reference.sentences()[3]);
        same[5][0] = f32::NAN;
        let comparison = reference.compare(&same).unwrap();
        assert_eq!(
            (comparison.worst, comparison.sentence.as_str()),
            (2.0, reference.sentences()[5])
        );
        same[0].pop();
        let error = reference.compare(&same).unwrap_err();
        assert!(
            error.to_string().contains("compare all-MiniLM-L6-v2"),
            "{error}"
        );
        assert!(reference.compare(&same[1..]).is_err());
    }
}
