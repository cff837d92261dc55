//! Sentences as tokens: `tokenizer.json`, and the tensors that a call carries.
//!
//! The file's own padding and truncation settings are ignored: a row is always as wide as the longest sentence that the
//! model takes, and a longer sentence is cut to that width.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tensorpipe::{Misuse, Tensor};
use tokenizers::{PostProcessor as _, Tokenizer, TruncationParams};

/// A model's tokenizer; clones share it.
#[derive(Clone, Debug)]
pub struct Tokens {
    tokenizer: Arc<Tokenizer>,
    width: usize,
}

/// Tokenized sentences: the arguments of [`Embedder::embed`](crate::service::Embedder::embed).
#[derive(Clone, Debug)]
pub struct Rows {
    /// `[n, width]`, u32: tokens, then zeros.
    pub tokens: Tensor,
    /// `[n]`, u32: how many tokens there are in each row.
    pub lengths: Tensor,
}

impl Tokens {
    /// Reads a `tokenizer.json` for a model that takes `width` tokens at most and knows `vocabulary` of them.
    ///
    /// # Errors
    /// The file is not valid or does not fit the model; the error says why in words.
    pub fn parse(json: &[u8], width: usize, vocabulary: usize) -> Result<Self, String> {
        caught(|| Self::read(json, width, vocabulary))
    }

    fn read(json: &[u8], width: usize, vocabulary: usize) -> Result<Self, String> {
        let mut tokenizer = Tokenizer::from_bytes(json)
            .map_err(|error| format!("it is no tokenizer of the `tokenizers` library: {error}"))?;
        let known = tokenizer.get_vocab_size(true);
        if known > vocabulary {
            return Err(format!(
                "it has {known} tokens, but the model knows {vocabulary}; they belong to different models"
            ));
        }
        let marks = tokenizer
            .get_post_processor()
            .map_or(0, |marks| marks.added_tokens(false));
        if marks >= width {
            return Err(format!(
                "it adds {marks} tokens to each sentence, and the model takes {width} in all"
            ));
        }
        tokenizer.with_padding(None);
        tokenizer
            .with_truncation(Some(TruncationParams {
                max_length: width,
                ..TruncationParams::default()
            }))
            .map_err(|error| error.to_string())?;
        Ok(Self {
            tokenizer: Arc::new(tokenizer),
            width,
        })
    }

    /// Columns of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Tokenizes `sentences` and cuts each to the length that the model takes. Runs on the calling thread, for some microseconds a
    /// sentence.
    ///
    /// # Errors
    /// A sentence cannot be tokenized: the tokenizer has no token for unknown words. The error names the sentence.
    pub fn rows<S: AsRef<str>>(&self, sentences: &[S]) -> Result<Rows, String> {
        let mut tokens = vec![0u32; sentences.len() * self.width];
        let mut lengths = Vec::with_capacity(sentences.len());
        for (sentence, row) in sentences.iter().zip(tokens.chunks_exact_mut(self.width)) {
            let sentence = sentence.as_ref();
            let encoded = caught(|| {
                let encoded = self.tokenizer.encode_fast(sentence, true);
                encoded.map_err(|error| error.to_string())
            });
            let encoding =
                encoded.map_err(|error| format!("cannot tokenize {sentence:?}: {error}"))?;
            let ids = encoding.get_ids();
            let length = ids.len().min(self.width);
            row[..length].copy_from_slice(&ids[..length]);
            lengths.push(length as u32);
        }
        let count = lengths.len() as u64;
        let shaped = |error: Misuse| error.to_string();
        Ok(Rows {
            tokens: Tensor::from_vec(tokens, [count, self.width as u64]).map_err(shaped)?,
            lengths: Tensor::from_vec(lengths, [count]).map_err(shaped)?,
        })
    }
}

/// Turns panics into errors: a tokenizer may come from anybody, and the library does not check all of it.
fn caught<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let panicked = |_| Err("the `tokenizers` library panicked over this tokenizer".to_owned());
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(panicked)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::tiny;

    fn tokens(width: usize) -> Tokens {
        Tokens::parse(tiny::tokenizer().as_bytes(), width, tiny::VOCABULARY).unwrap()
    }

    #[test]
    fn a_row_is_the_tokens_and_then_zeros() {
        let rows = tokens(8).rows(&["a cab", ""]).unwrap();
        assert_eq!(rows.tokens.shape(), [2, 8]);
        let lengths = rows.lengths.as_slice::<u32>().unwrap();
        // Begin and end marks, and `a`, `c`, `##a`, `##b`.
        assert_eq!(lengths, [6, 2]);
        let ids = rows.tokens.as_slice::<u32>().unwrap();
        assert!(ids[..6].iter().all(|id| *id > 0), "{ids:?}");
        assert_eq!(ids[6..8], [0, 0]);
        assert_eq!(ids[8..10], [ids[0], ids[5]]);
        assert_eq!(ids[10..], [0; 6]);
    }

    #[test]
    fn a_sentence_that_is_too_long_is_cut_before_its_end_mark() {
        let tokens = tokens(8);
        let long = "a ".repeat(10_000);
        let rows = tokens.rows(&[long.as_str(), "a a a a a a"]).unwrap();
        let ids = rows.tokens.as_slice::<u32>().unwrap();
        assert_eq!(rows.lengths.as_slice::<u32>().unwrap(), [8, 8]);
        assert_eq!(ids[..8], ids[8..]);
        assert_ne!(ids[7], ids[6]);
    }

    #[test]
    fn a_tokenizer_that_does_not_fit_says_why() {
        let parse = |json: &[u8], width, vocabulary| {
            Tokens::parse(json, width, vocabulary)
                .unwrap_err()
                .to_string()
        };
        let whole = tiny::tokenizer();
        let error = parse(b"{}", 8, 100);
        assert!(error.starts_with("it is no tokenizer of"), "{error}");
        let error = parse(&whole.as_bytes()[..whole.len() / 2], 8, 100);
        assert!(error.starts_with("it is no tokenizer of"), "{error}");
        let error = parse(whole.as_bytes(), 8, 10);
        assert!(error.contains("but the model knows 10"), "{error}");
        let error = parse(whole.as_bytes(), 2, 100);
        assert!(error.starts_with("it adds 2 tokens"), "{error}");
    }

    #[test]
    fn a_tokenizer_over_which_the_library_panics_is_refused_in_words() {
        // Each of these makes the library panic: some when the tokenizer is read, others when it is used.
        let wrong = [
            (
                "normalizer",
                json!({"type": "Precompiled", "precompiled_charsmap": "AA=="}),
            ),
            ("pre_tokenizer", json!({"type": "FixedLength", "length": 0})),
            (
                "post_processor",
                json!({
                    "type": "TemplateProcessing",
                    "single": [{"Sequence": {"id": "B", "type_id": 0}}],
                    "pair": [],
                    "special_tokens": {},
                }),
            ),
        ];
        for (part, wrong) in wrong {
            let mut json: Value = serde_json::from_str(&tiny::tokenizer()).unwrap();
            json[part] = wrong;
            let tokens = Tokens::parse(json.to_string().as_bytes(), 8, tiny::VOCABULARY);
            let error = tokens
                .and_then(|tokens| tokens.rows(&["a cab"]))
                .unwrap_err();
            assert!(
                error.contains("the `tokenizers` library panicked"),
                "{error}"
            );
        }
    }
}
