//! The server's side of [`Embedder`]: checks the arguments, and gives all cores to one run at a time.

use std::sync::{Arc, Mutex, PoisonError};

use tensorpipe::{DType, Payload, Tensor};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::model::{Model, Run};
use crate::service::{Card, EmbedError, Embedder, MAX_SENTENCES, Work};

/// Serves a [`Model`].
#[derive(Debug)]
pub struct ModelServer {
    model: Arc<Model>,
    /// One permit: a run uses all cores, so two runs at once would only delay both. A cancelled call that still waits is not run.
    turn: Arc<Semaphore>,
    work: Arc<Mutex<Work>>,
}

impl ModelServer {
    /// A server of `model`, without work so far.
    pub fn new(model: Model) -> Self {
        Self {
            model: Arc::new(model),
            turn: Arc::new(Semaphore::new(1)),
            work: Arc::default(),
        }
    }

    /// The arguments of [`Embedder::embed`], if the model can run on them: aligned, and every number within its bounds.
    fn checked(&self, tokens: &Tensor, lengths: &Tensor) -> Result<(Tensor, Tensor), EmbedError> {
        let width = self.model.width() as u64;
        let rows = match tokens.shape() {
            [rows, columns] if *columns == width => *rows,
            _ => return Err(mismatch("tokens", format!("u32 [n, {width}]"), tokens)),
        };
        if rows > MAX_SENTENCES as u64 {
            return Err(EmbedError::TooMany {
                sentences: rows,
                most: MAX_SENTENCES as u64,
            });
        }
        if tokens.dtype() != DType::U32 {
            return Err(mismatch("tokens", format!("u32 [n, {width}]"), tokens));
        }
        if lengths.shape() != [rows] || lengths.dtype() != DType::U32 {
            return Err(mismatch("lengths", format!("u32 [{rows}]"), lengths));
        }
        let (tokens, lengths) = (aligned(tokens)?, aligned(lengths)?);
        let (all, most) = (numbers(&tokens)?, self.model.width() as u32);
        let vocabulary = self.model.vocabulary() as u32;
        for (row, length) in numbers(&lengths)?.iter().copied().enumerate() {
            if length == 0 || length > most {
                let row = row as u64;
                return Err(EmbedError::Length { row, length, most });
            }
            let begin = row * self.model.width();
            let sentence = &all[begin..begin + length as usize];
            if let Some(token) = sentence.iter().copied().find(|token| *token >= vocabulary) {
                return Err(EmbedError::Token {
                    row: row as u64,
                    token,
                    vocabulary,
                });
            }
        }
        Ok((tokens, lengths))
    }
}

impl Embedder for ModelServer {
    async fn card(&self) -> Card {
        Card {
            name: self.model.name().to_owned(),
            dimension: self.model.dimension() as u32,
            width: self.model.width() as u32,
            vocabulary: self.model.vocabulary() as u32,
            tokenizer: Payload::new(self.model.tokenizer().to_vec()),
        }
    }

    async fn embed(&self, tokens: Tensor, lengths: Tensor) -> Result<Tensor, EmbedError> {
        let (tokens, lengths) = self.checked(&tokens, &lengths)?;
        let Ok(turn) = Arc::clone(&self.turn).acquire_owned().await else {
            return Err(EmbedError::Model("it is not run any more".to_owned()));
        };
        let (model, work) = (Arc::clone(&self.model), Arc::clone(&self.work));
        // Not on a thread of the runtime: those must stay free to answer the pings of all clients.
        let run = spawn_blocking(move || {
            // Keeps the permit until the run is over, even if its caller is gone.
            let _turn = turn;
            let run = model
                .run(numbers(&tokens)?, numbers(&lengths)?)
                .map_err(failed)?;
            note(&work, &run);
            let shape = [tokens.shape()[0], model.dimension() as u64];
            Tensor::from_vec(run.embeddings, shape).map_err(failed)
        });
        run.await
            .unwrap_or_else(|_| Err(EmbedError::Model("it panicked".to_owned())))
    }

    async fn work(&self) -> Work {
        *self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn note(work: &Mutex<Work>, run: &Run) {
    let mut work = work.lock().unwrap_or_else(PoisonError::into_inner);
    work.runs += 1;
    work.passes += run.passes.len() as u64;
    for pass in &run.passes {
        work.sentences += pass.rows.len() as u64;
        work.tokens += pass.tokens as u64;
        work.padding += pass.padding() as u64;
    }
}

fn aligned(tensor: &Tensor) -> Result<Tensor, EmbedError> {
    tensor.to_aligned().map_err(failed)
}

fn numbers(tensor: &Tensor) -> Result<&[u32], EmbedError> {
    tensor.as_slice().map_err(failed)
}

fn failed(error: impl std::fmt::Display) -> EmbedError {
    EmbedError::Model(error.to_string())
}

fn mismatch(argument: &str, wanted: String, found: &Tensor) -> EmbedError {
    EmbedError::Mismatch {
        argument: argument.to_owned(),
        wanted,
        found: format!("{} {:?}", found.dtype().as_str(), found.shape()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiny;

    const WIDTH: u64 = tiny::WIDTH as u64;

    fn server() -> ModelServer {
        let directory = tempfile::tempdir().unwrap();
        tiny::write(directory.path()).unwrap();
        ModelServer::new(Model::open(directory.path()).unwrap())
    }

    fn tokens(rows: u64, token: u32) -> Tensor {
        Tensor::from_vec(vec![token; (rows * WIDTH) as usize], [rows, WIDTH]).unwrap()
    }

    #[tokio::test]
    async fn what_the_model_cannot_take_is_refused_in_words() {
        let server = server();
        let lengths = |lengths: &[u32]| Tensor::from(lengths.to_vec());
        let narrow = Tensor::from_vec(vec![1u32; 8], [2, 4]).unwrap();
        let floats = Tensor::zeros(DType::F32, [1, WIDTH]).unwrap();
        let wrong = [
            (
                narrow,
                lengths(&[4, 4]),
                "`tokens` must be u32 [n, 48], not u32 [2, 4]",
            ),
            (
                floats,
                lengths(&[4]),
                "`tokens` must be u32 [n, 48], not f32 [1, 48]",
            ),
            (
                tokens(2, 1),
                lengths(&[4]),
                "`lengths` must be u32 [2], not u32 [1]",
            ),
            (
                tokens(2, 1),
                lengths(&[4, 0]),
                "sentence 1 has 0 tokens; give it 1 to 48",
            ),
            (
                tokens(1, 1),
                lengths(&[49]),
                "sentence 0 has 49 tokens; give it 1 to 48",
            ),
            (
                tokens(1, u32::MAX),
                lengths(&[3]),
                "sentence 0 has token 4294967295, but the model knows 81; use its card's tokenizer",
            ),
            (
                tokens(1025, 1),
                lengths(&[1; 1025]),
                "1025 sentences are too many for one call; send at most 1024 at once",
            ),
        ];
        for (tokens, lengths, words) in wrong {
            let error = server.embed(tokens, lengths).await.unwrap_err();
            assert_eq!(error.to_string(), words);
        }
        assert_eq!(server.work().await, Work::default());
    }

    #[tokio::test]
    async fn what_follows_a_sentence_in_its_row_is_not_looked_at() {
        let server = server();
        let lengths = Tensor::from(vec![3u32]);
        let clean = server.embed(tokens(1, 7), lengths.clone()).await.unwrap();
        let mut dirty = tokens(1, 7);
        dirty.make_mut::<u32>().unwrap()[3..].fill(u32::MAX);
        let dirty = server.embed(dirty, lengths).await.unwrap();
        assert_eq!(clean.as_bytes(), dirty.as_bytes());
        assert_eq!(clean.shape(), [1, tiny::DIMENSION as u64]);
    }

    #[tokio::test]
    async fn nothing_at_all_is_a_batch_too() {
        let server = server();
        let none = Tensor::from(Vec::<u32>::new());
        let embeddings = server.embed(tokens(0, 0), none).await.unwrap();
        assert_eq!(embeddings.shape(), [0, tiny::DIMENSION as u64]);
        let work = server.work().await;
        assert_eq!((work.runs, work.sentences), (1, 0));
    }
}
