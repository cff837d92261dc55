//! The service: what clients may ask of the server.

use serde::{Deserialize, Serialize};
use tensorpipe::{Payload, Tensor};
use tensorpipe_rpc::tensor_service;

/// The most sentences that one call may carry.
pub const MAX_SENTENCES: usize = 1024;

/// Turns sentences into vectors of length 1, whose scalar product says how near they are in meaning.
#[tensor_service]
pub trait Embedder {
    /// What a client must know to call [`embed`](Embedder::embed).
    #[rpc(idempotent)]
    async fn card(&self) -> Card;

    /// Embeddings `[n, dimension]` (f32) of `n` sentences: the first `lengths[i]` (`[n]`, u32) of `tokens[i]`
    /// (`[n, width]`, u32) are the tokens of sentence `i`; what follows them is not looked at.
    #[rpc(idempotent, batch(max_size = 32, max_wait = "2ms"))]
    async fn embed(&self, tokens: Tensor, lengths: Tensor) -> Result<Tensor, EmbedError>;

    /// What the server has done since it was started.
    #[rpc(idempotent)]
    async fn work(&self) -> Work;
}

/// A model, as its clients see it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Card {
    /// Name of the model's directory.
    pub name: String,
    /// Numbers in an embedding.
    pub dimension: u32,
    /// Columns of `tokens`, and so the most tokens of a sentence that the model sees.
    pub width: u32,
    /// Size of the vocabulary: all tokens are below it.
    pub vocabulary: u32,
    /// `tokenizer.json`, as it is in the model's directory.
    pub tokenizer: Payload,
}

/// Why a call returned no embeddings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum EmbedError {
    /// An argument has the wrong element type or shape.
    #[error("`{argument}` must be {wanted}, not {found}")]
    Mismatch {
        /// Its name.
        argument: String,
        /// Element type and shape that it must have.
        wanted: String,
        /// Element type and shape that it has.
        found: String,
    },
    /// A call carries too many sentences.
    #[error("{sentences} sentences are too many for one call; send at most {most} at once")]
    TooMany {
        /// Rows of `tokens`.
        sentences: u64,
        /// How many there may be.
        most: u64,
    },
    /// A sentence is empty (it lacks even the begin and end marks), or is longer than its row.
    #[error("sentence {row} has {length} tokens; give it 1 to {most}")]
    Length {
        /// Which.
        row: u64,
        /// The length given.
        length: u32,
        /// The width of a row.
        most: u32,
    },
    /// A token is outside the model's vocabulary.
    #[error(
        "sentence {row} has token {token}, but the model knows {vocabulary}; use its card's tokenizer"
    )]
    Token {
        /// Which sentence.
        row: u64,
        /// The token.
        token: u32,
        /// How many there are.
        vocabulary: u32,
    },
    /// The model did not run.
    #[error("the model failed: {0}")]
    Model(String),
}

/// Counters of a server's work. The difference of two readings tells what happened between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Runs of [`Embedder::embed`]. Calls that were batched together count as one run.
    pub runs: u64,
    /// Sentences in these runs.
    pub sentences: u64,
    /// Tokens in these sentences.
    pub tokens: u64,
    /// Passes through the model. A run whose sentences differ much in length takes several passes.
    pub passes: u64,
    /// Tokens that the model computed only because another sentence of the pass was longer.
    pub padding: u64,
}

impl Work {
    /// The work done since `earlier`. Counters that have gone backwards count as zero.
    pub fn since(&self, earlier: &Self) -> Self {
        let since = |now: u64, then: u64| now.saturating_sub(then);
        Self {
            runs: since(self.runs, earlier.runs),
            sentences: since(self.sentences, earlier.sentences),
            tokens: since(self.tokens, earlier.tokens),
            passes: since(self.passes, earlier.passes),
            padding: since(self.padding, earlier.padding),
        }
    }

    /// Sentences a run; 0 before the first.
    pub fn mean_batch(&self) -> f64 {
        if self.runs == 0 {
            return 0.0;
        }
        self.sentences as f64 / self.runs as f64
    }
}
