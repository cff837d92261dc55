//! The service, and the parameters behind it: stochastic gradient descent.
//!
//! Hogwild: each parameter has its own lock, held only while the parameter is read or changed. No worker waits for
//! another's step. A pull takes handles, not copies; a push to a parameter that is still being sent copies it first.
//! Invariant: the store accepts exactly [`Status::steps`] pushes, however many workers come, die or hang.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tensorpipe::{Misuse, Pool, Route, Tensor};
use tensorpipe_rpc::{CallContext, tensor_service};

use crate::model::Tensors;

/// Owns the parameters. Any worker may read them and push gradients at any time.
#[tensor_service]
pub(crate) trait ParameterServer {
    /// Registers a worker. Returns its number, counted from 0, which seeds the worker's own sequence of batches.
    async fn join(&self, cx: &CallContext) -> u32;
    /// All parameters as they are now.
    #[rpc(idempotent)]
    async fn pull(&self) -> HashMap<String, Tensor>;
    /// Takes one step along `gradients`, each of the shape of its parameter. `loss` is the mean loss of their batch.
    async fn push(&self, gradients: HashMap<String, Tensor>, loss: f32) -> Result<(), PushError>;
}

/// Why a push changed nothing.
#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize, Deserialize)]
pub(crate) enum PushError {
    /// All steps are taken.
    #[error("the training is over")]
    Over,
    /// There is no such parameter, or the gradient has another shape or type.
    #[error("the gradient of `{0}` is none of that parameter: {1}")]
    Mismatch(String, String),
    /// The loss or a gradient holds infinity or NaN.
    #[error("`{0}` is not finite; the learning rate may be too high")]
    NotFinite(String),
}

/// The rate at the first step. It falls linearly to zero at the last, so that the training converges.
const LEARNING_RATE: f32 = 0.4;
/// With more workers the rate shrinks in proportion: a gradient is about as many steps old as there are workers, and
/// old gradients at a full rate overshoot.
const FULL_RATE_WORKERS: f32 = 2.0;
/// Weight of the newest loss in the moving average.
const LOSS_SHARE: f32 = 0.05;

/// How far the training is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Status {
    begun: u64,
    pub(crate) done: u64,
    pub(crate) steps: u64,
    /// Mean loss of the last few dozen steps; none before the first.
    pub(crate) loss: Option<f32>,
    /// Workers that joined, and that were told that the training is over.
    pub(crate) workers: u32,
    pub(crate) dismissed: u32,
    /// Calls answered, and bytes of tensors that they moved.
    pub(crate) calls: u64,
    pub(crate) bytes: u64,
    /// When the first worker came, and when the last step was taken.
    pub(crate) first: Option<Instant>,
    pub(crate) last: Option<Instant>,
}

/// The state of a parameter server.
#[derive(Debug)]
pub(crate) struct Store {
    parameters: HashMap<String, Mutex<Tensor>>,
    status: Mutex<Status>,
    routes: Mutex<Vec<Route>>,
}

impl Store {
    /// Starts from `parameters`, which are put into `pool`: workers on the same machine read them without a copy.
    pub(crate) fn new(parameters: Tensors, steps: u64, pool: &Pool) -> Result<Self, Misuse> {
        let pooled = |(name, value): (String, Tensor)| {
            let mut parameter = pool.tensor(value.dtype(), value.shape())?;
            let elements = parameter.make_mut::<f32>()?;
            elements.copy_from_slice(value.as_slice()?);
            Ok((name, Mutex::new(parameter)))
        };
        let status = Status {
            steps,
            ..Status::default()
        };
        Ok(Self {
            parameters: parameters
                .into_iter()
                .map(pooled)
                .collect::<Result<_, Misuse>>()?,
            status: Mutex::new(status),
            routes: Mutex::default(),
        })
    }

    pub(crate) fn parameters(&self) -> Tensors {
        let parameters = self.parameters.iter();
        let copies = parameters.map(|(name, parameter)| (name.clone(), locked(parameter).clone()));
        copies.collect()
    }

    pub(crate) fn status(&self) -> Status {
        *locked(&self.status)
    }

    /// How the workers so far are connected: one route for each transport.
    pub(crate) fn routes(&self) -> Vec<Route> {
        locked(&self.routes).clone()
    }

    /// The parameter called `name`, and the elements of its gradient.
    fn check<'a>(
        &'a self,
        name: &String,
        gradient: &'a Tensor,
    ) -> Result<(&'a Mutex<Tensor>, &'a [f32]), PushError> {
        let wrong = |why: String| PushError::Mismatch(name.clone(), why);
        let parameter = self.parameters.get(name);
        let parameter = parameter.ok_or_else(|| wrong("there is no such parameter".to_owned()))?;
        let (wanted, found) = (locked(parameter).shape().to_vec(), gradient.shape());
        if wanted != found {
            return Err(wrong(format!(
                "its shape is {found:?} instead of {wanted:?}"
            )));
        }
        let elements = gradient.as_slice::<f32>();
        let elements = elements.map_err(|error| wrong(error.to_string()))?;
        match elements.iter().all(|element| element.is_finite()) {
            true => Ok((parameter, elements)),
            false => Err(PushError::NotFinite(name.clone())),
        }
    }

    /// Reserves one step and returns its learning rate.
    fn begin(&self) -> Result<f32, PushError> {
        let mut status = locked(&self.status);
        if status.begun == status.steps {
            status.dismissed += 1;
            return Err(PushError::Over);
        }
        let gone = status.begun as f32 / status.steps as f32;
        status.begun += 1;
        let crowd = (status.workers as f32 / FULL_RATE_WORKERS).max(1.0);
        Ok(LEARNING_RATE / crowd * (1.0 - gone))
    }

    /// Counts one call that moved `tensors`.
    fn count(&self, tensors: &Tensors) {
        let mut status = locked(&self.status);
        status.calls += 1;
        status.bytes += tensors.values().map(Tensor::byte_len).sum::<usize>() as u64;
    }
}

impl ParameterServer for Store {
    async fn join(&self, cx: &CallContext) -> u32 {
        self.count(&Tensors::new());
        let route = cx.route();
        let mut routes = locked(&self.routes);
        if routes
            .iter()
            .all(|known| known.transport != route.transport)
        {
            routes.push(route.clone());
        }
        drop(routes);
        let mut status = locked(&self.status);
        status.first.get_or_insert_with(Instant::now);
        status.workers += 1;
        status.workers - 1
    }

    async fn pull(&self) -> Tensors {
        let pulled = self.parameters();
        self.count(&pulled);
        pulled
    }

    async fn push(&self, gradients: Tensors, loss: f32) -> Result<(), PushError> {
        self.count(&gradients);
        if !loss.is_finite() {
            return Err(PushError::NotFinite("loss".to_owned()));
        }
        // All gradients are checked before any is applied: a refused push changes nothing.
        let checked = gradients.iter();
        let checked = checked.map(|(name, gradient)| self.check(name, gradient));
        let checked = checked.collect::<Result<Vec<_>, _>>()?;
        let rate = self.begin()?;
        for (parameter, gradient) in checked {
            let mut parameter = locked(parameter);
            let values = parameter.make_mut::<f32>();
            let values = values.expect("it was made of f32, in main memory");
            for (value, slope) in values.iter_mut().zip(gradient) {
                *value -= rate * slope;
            }
        }
        let mut status = locked(&self.status);
        let mean = status.loss.unwrap_or(loss);
        status.loss = Some(mean + LOSS_SHARE * (loss - mean));
        status.done += 1;
        status.last = (status.done == status.steps).then(Instant::now);
        Ok(())
    }
}

/// Ignores poisoning: after a panic under the lock the numbers may be off, but no structure is broken.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gradient(name: &str, values: &[f32]) -> (String, Tensor) {
        (name.to_owned(), Tensor::from(values.to_vec()))
    }

    #[tokio::test]
    async fn a_bad_push_is_refused_whole() {
        let start = Tensors::from([gradient("w", &[1.0, 2.0])]);
        let store = Store::new(start, 9, tensorpipe::Context::new().pool()).unwrap();
        let doubles = Tensor::from_vec(vec![1f64, 2.0], [2]).unwrap();
        let refused = [
            (
                vec![gradient("w", &[1.0, 1.0]), gradient("v", &[1.0])],
                1.0,
                "no such parameter",
            ),
            (vec![gradient("w", &[1.0])], 1.0, "its shape is [1]"),
            (vec![("w".to_owned(), doubles)], 1.0, "f64"),
            (
                vec![gradient("w", &[1.0, f32::INFINITY])],
                1.0,
                "`w` is not finite",
            ),
            (
                vec![gradient("w", &[1.0, 1.0])],
                f32::NAN,
                "`loss` is not finite",
            ),
        ];
        for (gradients, loss, said) in refused {
            let pushed = store.push(gradients.into_iter().collect(), loss).await;
            let error = pushed.unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        let w = store.parameters().remove("w").unwrap();
        assert_eq!(w.as_slice::<f32>().unwrap(), [1.0, 2.0]);
        assert_eq!(store.status().done, 0);
    }
}
