//! The parameters and the rule that changes them: stochastic gradient descent.
//!
//! Hogwild: each parameter has a lock of its own, held only while it is read or changed, and nobody waits for the
//! steps of others. A pull takes handles, not copies; a push that finds its parameter still being sent copies it first.
//! Invariant: exactly [`Status::steps`] pushes are accepted, whatever number of workers comes, dies or hangs.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tensorpipe::{Misuse, Pool, Tensor};

use crate::model::Tensors;
use crate::service::{ParameterServer, PushError, Status, Welcome};

const BATCH: u32 = 64;
/// At the first step; falls evenly to zero at the last, so that the last steps settle what the first ones found.
const LEARNING_RATE: f32 = 0.4;
/// With more workers the rate shrinks in proportion: a gradient is about as many steps old as there are workers, and
/// old gradients at a full rate overshoot.
const FULL_RATE_WORKERS: f32 = 2.0;
/// Share of the newest loss in the mean.
const LOSS_SHARE: f32 = 0.05;

/// The state of a parameter server.
#[derive(Debug)]
pub(crate) struct Store {
    parameters: HashMap<String, Mutex<Tensor>>,
    tally: Mutex<Tally>,
}

#[derive(Debug)]
struct Tally {
    /// All but `elapsed`, which is filled in when somebody asks.
    status: Status,
    /// Steps given out; ahead of `status.done` while a push is being applied.
    begun: u64,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Store {
    /// A training of `steps` steps that starts from `parameters` (f32, in main memory). They are put into `pool`, so that
    /// workers on the same machine read them without a copy.
    pub(crate) fn new(parameters: Tensors, steps: u64, pool: &Pool) -> Result<Self, Misuse> {
        let pooled = |(name, value): (String, Tensor)| {
            let mut parameter = pool.tensor(value.dtype(), value.shape())?;
            parameter
                .make_mut::<f32>()?
                .copy_from_slice(value.as_slice()?);
            Ok((name, Mutex::new(parameter)))
        };
        Ok(Self {
            parameters: parameters
                .into_iter()
                .map(pooled)
                .collect::<Result<_, Misuse>>()?,
            tally: Mutex::new(Tally {
                status: Status {
                    steps,
                    ..Status::default()
                },
                begun: 0,
                first: None,
                last: None,
            }),
        })
    }

    /// How many bytes were lent so far.
    pub(crate) fn note_lent(&self, bytes: u64) {
        locked(&self.tally).status.lent = bytes;
    }

    /// All parameters as they are now.
    pub(crate) fn parameters(&self) -> Tensors {
        let parameters = self.parameters.iter();
        parameters
            .map(|(name, parameter)| (name.clone(), locked(parameter).clone()))
            .collect()
    }

    /// How far the training is.
    pub(crate) fn progress(&self) -> Status {
        let tally = locked(&self.tally);
        let now = tally.last.unwrap_or_else(Instant::now);
        Status {
            elapsed: tally.first.map_or(Duration::ZERO, |first| now - first),
            ..tally.status
        }
    }

    fn step(&self, gradients: &Tensors, loss: f32) -> Result<u64, PushError> {
        if !loss.is_finite() {
            let name = "loss".to_owned();
            return Err(PushError::NotFinite { name });
        }
        // All are checked before any is applied: a refused push changes nothing.
        let checked = gradients
            .iter()
            .map(|(name, gradient)| self.check(name, gradient))
            .collect::<Result<Vec<_>, _>>()?;
        let rate = self.begin()?;
        for (parameter, gradient) in checked {
            descend(&mut locked(parameter), gradient, rate);
        }
        Ok(self.end(loss))
    }

    /// The parameter called `name` and the elements of its gradient.
    fn check<'a>(
        &'a self,
        name: &str,
        gradient: &'a Tensor,
    ) -> Result<(&'a Mutex<Tensor>, &'a [f32]), PushError> {
        let name = || name.to_owned();
        let Some(parameter) = self.parameters.get(&name()) else {
            return Err(PushError::Unknown { name: name() });
        };
        let wanted = kind(&locked(parameter));
        let mismatch = |found| PushError::Mismatch {
            name: name(),
            wanted: wanted.clone(),
            found,
        };
        if kind(gradient) != wanted {
            return Err(mismatch(kind(gradient)));
        }
        let elements = gradient
            .as_slice::<f32>()
            .map_err(|error| mismatch(error.to_string()))?;
        if elements.iter().any(|element| !element.is_finite()) {
            return Err(PushError::NotFinite { name: name() });
        }
        Ok((parameter, elements))
    }

    /// Takes the right to one step; its learning rate.
    fn begin(&self) -> Result<f32, PushError> {
        let mut tally = locked(&self.tally);
        let steps = tally.status.steps;
        if tally.begun == steps {
            tally.status.dismissed += 1;
            return Err(PushError::Over);
        }
        let gone = tally.begun as f32 / steps as f32;
        tally.begun += 1;
        let crowd = (tally.status.workers as f32 / FULL_RATE_WORKERS).max(1.0);
        Ok(LEARNING_RATE / crowd * (1.0 - gone))
    }

    /// Notes that a step is taken; how many are.
    fn end(&self, loss: f32) -> u64 {
        let mut tally = locked(&self.tally);
        let mean = tally.status.loss.unwrap_or(loss);
        tally.status.loss = Some(mean + LOSS_SHARE * (loss - mean));
        tally.status.done += 1;
        if tally.status.is_over() {
            tally.last = Some(Instant::now());
        }
        tally.status.done
    }

    /// Counts one call that moved `tensors`.
    fn count<'a>(&self, tensors: impl IntoIterator<Item = &'a Tensor>) {
        let bytes: usize = tensors.into_iter().map(Tensor::byte_len).sum();
        let status = &mut locked(&self.tally).status;
        status.calls += 1;
        status.bytes += bytes as u64;
    }
}

impl ParameterServer for Store {
    async fn join(&self) -> Welcome {
        self.count([]);
        let mut tally = locked(&self.tally);
        tally.first.get_or_insert_with(Instant::now);
        tally.status.workers += 1;
        Welcome {
            worker: tally.status.workers - 1,
            batch: BATCH,
            steps: tally.status.steps,
        }
    }

    async fn pull(&self, names: Vec<String>) -> Tensors {
        let mut pulled = Tensors::new();
        for name in names {
            if let Some(parameter) = self.parameters.get(&name) {
                pulled.insert(name, locked(parameter).clone());
            }
        }
        self.count(pulled.values());
        pulled
    }

    async fn push(&self, gradients: Tensors, loss: f32) -> Result<u64, PushError> {
        self.count(gradients.values());
        self.step(&gradients, loss)
    }

    async fn status(&self) -> Status {
        self.count([]);
        self.progress()
    }
}

fn descend(parameter: &mut Tensor, gradient: &[f32], rate: f32) {
    let values = parameter
        .make_mut::<f32>()
        .expect("`check` compared with an f32 tensor in main memory");
    for (value, slope) in values.iter_mut().zip(gradient) {
        *value -= rate * slope;
    }
}

/// What gradient and parameter must have in common.
fn kind(tensor: &Tensor) -> String {
    format!(
        "{}{:?} on {}",
        tensor.dtype(),
        tensor.shape(),
        tensor.device()
    )
}

/// A panic while a lock was held leaves numbers, not broken structures: go on with them.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(values: &[f32]) -> Tensor {
        Tensor::from_vec(values.to_vec(), [values.len() as u64]).unwrap()
    }

    fn tensors(values: &[f32]) -> Tensors {
        Tensors::from([("w".to_owned(), tensor(values))])
    }

    fn store(steps: u64) -> Store {
        Store::new(tensors(&[1.0, 2.0]), steps, &Pool::default()).unwrap()
    }

    #[tokio::test]
    async fn a_push_descends_at_a_falling_rate() {
        let store = store(2);
        assert_eq!(store.push(tensors(&[1.0, 0.0]), 3.0).await, Ok(1));
        let w = store.pull(vec!["w".into()]).await.remove("w").unwrap();
        assert_eq!(w.as_slice::<f32>().unwrap(), [1.0 - LEARNING_RATE, 2.0]);
        assert_eq!(store.push(tensors(&[0.0, 1.0]), 3.0).await, Ok(2));
        let after = store.parameters().remove("w").unwrap();
        let half = LEARNING_RATE / 2.0;
        let wanted = [1.0 - LEARNING_RATE, 2.0 - half];
        for (found, wanted) in after.as_slice::<f32>().unwrap().iter().zip(wanted) {
            assert!((found - wanted).abs() < 1e-6, "{found} {wanted}");
        }
        // What was pulled is a moment: later pushes do not change it.
        assert_eq!(w.as_slice::<f32>().unwrap(), [1.0 - LEARNING_RATE, 2.0]);
    }

    #[tokio::test]
    async fn exactly_the_wanted_number_of_steps_is_taken() {
        let store = store(1);
        assert_eq!(store.join().await.worker, 0);
        assert_eq!(store.join().await.worker, 1);
        assert!(store.push(tensors(&[1.0, 1.0]), 1.0).await.is_ok());
        let before = store.parameters();
        let refused = store.push(tensors(&[1.0, 1.0]), 1.0).await;
        assert_eq!(refused, Err(PushError::Over));
        assert_eq!(
            store.parameters()["w"].as_bytes().unwrap(),
            before["w"].as_bytes().unwrap()
        );
        let status = store.status().await;
        assert!(status.is_over());
        assert_eq!((status.done, status.workers, status.dismissed), (1, 2, 1));
        assert_eq!((status.calls, status.bytes), (5, 16));
        assert_eq!(status.elapsed, store.progress().elapsed);
    }

    #[tokio::test]
    async fn a_bad_push_is_refused_whole() {
        let store = store(9);
        let mut half_good = tensors(&[1.0, 1.0]);
        half_good.insert("v".to_owned(), tensor(&[1.0]));
        let refused = [
            (half_good, 1.0, "there is no parameter `v`"),
            (
                tensors(&[1.0]),
                1.0,
                "the gradient of `w` must be f32[2] on cpu:0, got f32[1] on cpu:0",
            ),
            (
                Tensors::from([("w".into(), Tensor::from_vec(vec![1f64, 2.], [2]).unwrap())]),
                1.0,
                "the gradient of `w` must be f32[2] on cpu:0, got f64[2] on cpu:0",
            ),
            (
                tensors(&[1.0, f32::INFINITY]),
                1.0,
                "`w` is not finite; the learning rate may be too high",
            ),
            (
                tensors(&[1.0, 1.0]),
                f32::NAN,
                "`loss` is not finite; the learning rate may be too high",
            ),
        ];
        for (gradients, loss, said) in refused {
            let error = store.push(gradients, loss).await.unwrap_err();
            assert_eq!(error.to_string(), said);
        }
        let w = store.parameters().remove("w").unwrap();
        assert_eq!(w.as_slice::<f32>().unwrap(), [1.0, 2.0]);
        assert_eq!(store.progress().done, 0);
    }

    #[tokio::test]
    async fn unknown_names_are_left_out_of_a_pull() {
        let pulled = store(1).pull(vec!["w".into(), "v".into()]).await;
        assert_eq!(pulled.keys().collect::<Vec<_>>(), ["w"]);
    }
}
