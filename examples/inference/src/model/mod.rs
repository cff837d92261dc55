//! A model, opened from its directory, and the embeddings that it computes.
//!
//! candle runs BERT. An embedding is the mean of the last layer over a sentence's own tokens, normalized to length 1, as in
//! sentence-transformers. Other sentences of a run, and the padding that they cause, are masked out: they change an embedding in the last
//! bit or two at most.

mod config;
mod error;
mod weights;

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::BertModel;

pub use self::error::ModelError;
use self::weights::Weights;
pub(crate) use self::weights::is_finite;
use crate::passes::{Pass, passes};
use crate::tokens::Tokens;

/// Lower bound of a vector's norm, so that normalizing a zero vector does not divide by zero. torch uses the same bound.
const TINY: f64 = 1e-12;

/// An open model.
pub struct Model {
    name: String,
    bert: BertModel,
    dimension: usize,
    width: usize,
    vocabulary: usize,
    tokenizer: Vec<u8>,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model")
            .field("name", &self.name)
            .field("dimension", &self.dimension)
            .field("width", &self.width)
            .field("vocabulary", &self.vocabulary)
            .finish_non_exhaustive()
    }
}

/// What a run computed.
#[derive(Clone, Debug)]
pub struct Run {
    /// One embedding after the other.
    pub embeddings: Vec<f32>,
    /// The passes into which the run was divided.
    pub passes: Vec<Pass>,
}

impl Model {
    /// Opens the model in `directory`: `config.json`, `tokenizer.json` and `model.safetensors`, and what
    /// sentence-transformers adds to them (`sentence_bert_config.json`, `1_Pooling/config.json`) where it is there.
    ///
    /// The weights are mapped into memory and copied once, because candle keeps its own copy.
    ///
    /// # Errors
    /// A file is missing or wrong; the error names it.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self, ModelError> {
        let directory = directory.as_ref();
        let config = config::read(directory)?;
        let path = directory.join("tokenizer.json");
        let tokenizer = error::read(&path)?;
        // Checks the tokenizer now, so that clients receive a valid one.
        Tokens::parse(&tokenizer, config.width, config.bert.vocab_size)
            .map_err(|reason| ModelError::Tokenizer { path, reason })?;
        let weights = Weights::open(&directory.join("model.safetensors"))?;
        let path = weights.path().to_owned();
        let variables = VarBuilder::from_backend(Box::new(weights), DType::F32, Device::Cpu);
        let bert =
            BertModel::load(variables, &config.bert).map_err(|error| ModelError::Weights {
                path,
                reason: error.to_string(),
            })?;
        let absolute = directory.canonicalize();
        let name = absolute.as_deref().unwrap_or(directory).file_name();
        Ok(Self {
            name: name.map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            bert,
            dimension: config.bert.hidden_size,
            width: config.width,
            vocabulary: config.bert.vocab_size,
            tokenizer,
        })
    }

    /// Name of its directory.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Numbers in an embedding.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// The most tokens that the model takes of one sentence.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Size of the vocabulary: all tokens are below it.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Its `tokenizer.json`.
    pub fn tokenizer(&self) -> &[u8] {
        &self.tokenizer
    }

    /// Embeds as many sentences as there are `lengths`, none of which is 0: the first `lengths[i]` of the `i`th
    /// [`width`](Self::width) numbers in `tokens` are known tokens. Computes for milliseconds, on all cores.
    ///
    /// # Errors
    /// candle fails: a token is not known, a sentence is too long, or there is no memory. Or the result holds infinity or NaN.
    pub fn run(&self, tokens: &[u32], lengths: &[u32]) -> Result<Run, candle_core::Error> {
        let passes = passes(lengths);
        let mut embeddings = vec![0.0; lengths.len() * self.dimension];
        for pass in &passes {
            let computed = self.compute(pass, tokens, lengths)?;
            let computed = computed.flatten_all()?.to_vec1::<f32>()?;
            if !is_finite(&computed) {
                let words = "an embedding came out as no number (NaN) or infinite; are the weights those of a trained model?";
                return Err(candle_core::Error::Msg(words.to_owned()));
            }
            for (row, embedding) in pass.rows.iter().zip(computed.chunks_exact(self.dimension)) {
                let at = row * self.dimension;
                embeddings[at..at + self.dimension].copy_from_slice(embedding);
            }
        }
        Ok(Run { embeddings, passes })
    }

    /// Computes one pass. Returns a tensor of shape `[rows of the pass, dimension]`.
    fn compute(
        &self,
        pass: &Pass,
        tokens: &[u32],
        lengths: &[u32],
    ) -> Result<Tensor, candle_core::Error> {
        let shape = (pass.rows.len(), pass.width);
        let mut ids = vec![0u32; shape.0 * shape.1];
        let mut mask = vec![0f32; ids.len()];
        for (at, row) in pass.rows.iter().enumerate() {
            let length = lengths[*row] as usize;
            let (from, to) = (row * self.width, at * pass.width);
            ids[to..to + length].copy_from_slice(&tokens[from..from + length]);
            mask[to..to + length].fill(1.0);
        }
        let ids = Tensor::from_vec(ids, shape, &Device::Cpu)?;
        let mask = Tensor::from_vec(mask, shape, &Device::Cpu)?;
        let hidden = self.bert.forward(&ids, &ids.zeros_like()?, Some(&mask))?;
        let sums = hidden.broadcast_mul(&mask.unsqueeze(2)?)?.sum(1)?;
        let means = sums.broadcast_div(&mask.sum_keepdim(1)?)?;
        let norms = means.sqr()?.sum_keepdim(1)?.sqrt()?;
        means.broadcast_div(&norms.maximum(TINY)?)
    }
}
