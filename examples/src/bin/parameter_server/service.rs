//! The service: what workers and watchers may ask of the parameter server.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorpipe::Tensor;
use tensorpipe_rpc::tensor_service;

/// Owns the parameters; anybody may read them and push gradients at any time.
#[tensor_service]
pub(crate) trait ParameterServer {
    /// Says hello; the answer tells the worker who it is and what to do.
    async fn join(&self) -> Welcome;

    /// The parameters of that name as they are now; unknown names are left out.
    #[rpc(idempotent)]
    async fn pull(&self, names: Vec<String>) -> HashMap<String, Tensor>;

    /// Takes one step along `gradients` (each of the shape of its parameter), found with a mean loss of `loss`, and
    /// returns the number of steps taken so far.
    async fn push(&self, gradients: HashMap<String, Tensor>, loss: f32) -> Result<u64, PushError>;

    /// How far the training is.
    #[rpc(idempotent)]
    async fn status(&self) -> Status;
}

/// What a worker learns when it joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// Its number, from 0: workers with different numbers draw different batches.
    pub(crate) worker: u32,
    /// Images a batch.
    pub(crate) batch: u32,
    /// Steps of the whole training, all workers together.
    pub(crate) steps: u64,
}

/// Why a push changed nothing.
#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize, Deserialize)]
pub(crate) enum PushError {
    /// All steps are taken.
    #[error("the training is over")]
    Over,
    /// The server has no such parameter.
    #[error("there is no parameter `{name}`")]
    Unknown {
        /// The name pushed.
        name: String,
    },
    /// Gradient and parameter disagree.
    #[error("the gradient of `{name}` must be {wanted}, got {found}")]
    Mismatch {
        /// The parameter.
        name: String,
        /// Its element type and shape.
        wanted: String,
        /// Those of the gradient.
        found: String,
    },
    /// A gradient or the loss holds infinity or NaN.
    #[error("`{name}` is not finite; the learning rate may be too high")]
    NotFinite {
        /// The parameter, or `loss`.
        name: String,
    },
}

/// A moment of the training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Status {
    /// Steps taken.
    pub(crate) done: u64,
    /// Steps to take.
    pub(crate) steps: u64,
    /// Mean loss of the last few dozen steps; none before the first.
    pub(crate) loss: Option<f32>,
    /// Workers that joined.
    pub(crate) workers: u32,
    /// Workers that were told that the training is over.
    pub(crate) dismissed: u32,
    /// Calls answered.
    pub(crate) calls: u64,
    /// Bytes of tensors that these calls moved, both ways.
    pub(crate) bytes: u64,
    /// Of these, bytes that were not copied: workers on the same machine read them where the server has them.
    pub(crate) lent: u64,
    /// Time from the first worker's arrival to the last step, or to now.
    pub(crate) elapsed: Duration,
}

impl Status {
    /// Whether every step is taken.
    pub(crate) fn is_over(&self) -> bool {
        self.done >= self.steps
    }
}
