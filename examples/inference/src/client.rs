//! A client: sentences in, embeddings out.

use anyhow::{Context as _, Error, Result, ensure};
use futures_util::stream::{StreamExt as _, TryStreamExt as _, iter};
use tensorpipe::{Route, Tensor};

use crate::model::is_finite;
use crate::service::{Card, EmbedderClient, MAX_SENTENCES, Work};
use crate::tokens::Tokens;

/// Calls that one [`Client::embed`] has in flight at once.
const AHEAD: usize = 4;

/// The widest row that a client accepts. No model of this kind comes near.
const WIDEST: u32 = 1 << 16;

/// Connected to a server, with its tokenizer.
#[derive(Clone, Debug)]
pub struct Client {
    embedder: EmbedderClient,
    url: String,
    card: Card,
    tokens: Tokens,
}

impl Client {
    /// Connects to the server at `url`. Waits half a minute for a server that is not up yet.
    ///
    /// # Errors
    /// No such server listens there, or its tokenizer is not valid.
    pub async fn connect(url: &str) -> Result<Self> {
        let embedder = connect(url).await?;
        let card = embedder.card().await;
        let card = card.with_context(|| format!("no answer from the server at {url}"))?;
        ensure!(
            (1..=WIDEST).contains(&card.width) && card.dimension > 0,
            "the server at {url} has a model of {} tokens a sentence and {} numbers an embedding, which is none",
            card.width,
            card.dimension
        );
        let (width, vocabulary) = (card.width as usize, card.vocabulary as usize);
        let tokens = Tokens::parse(card.tokenizer.as_bytes(), width, vocabulary)
            .map_err(Error::msg)
            .with_context(|| format!("the server at {url} has a tokenizer of no use"))?;
        Ok(Self {
            embedder,
            url: url.to_owned(),
            card,
            tokens,
        })
    }

    /// Another client of the same server, over a connection of its own; it shares the tokenizer.
    ///
    /// # Errors
    /// The server is gone.
    pub async fn another(&self) -> Result<Self> {
        Ok(Self {
            embedder: connect(&self.url).await?,
            ..self.clone()
        })
    }

    /// What the server says about its model.
    pub fn card(&self) -> &Card {
        &self.card
    }

    /// The route of the connection.
    pub fn route(&self) -> &Route {
        self.embedder.connection().route()
    }

    /// What the server has done since it was started.
    ///
    /// # Errors
    /// The call failed.
    pub async fn work(&self) -> Result<Work> {
        let work = self.embedder.work().await;
        work.with_context(|| format!("a call failed on the server at {}", self.url))
    }

    /// The embeddings of `sentences`, in their order. Takes as many calls as it needs; dropping the future cancels them.
    ///
    /// # Errors
    /// A call failed, or its result is not a tensor of embeddings.
    pub async fn embed<S: AsRef<str>>(&self, sentences: &[S]) -> Result<Vec<Vec<f32>>> {
        let calls = sentences
            .chunks(MAX_SENTENCES)
            .map(|chunk| self.call(chunk));
        let calls: Vec<_> = calls.collect();
        let parts: Vec<_> = iter(calls).buffered(AHEAD).try_collect().await?;
        let mut embeddings = Vec::with_capacity(sentences.len());
        for part in parts {
            let values = part.as_slice::<f32>()?;
            let rows = values.chunks_exact(self.card.dimension as usize);
            embeddings.extend(rows.map(<[f32]>::to_vec));
        }
        Ok(embeddings)
    }

    async fn call<S: AsRef<str>>(&self, sentences: &[S]) -> Result<Tensor> {
        let rows = self.tokens.rows(sentences).map_err(Error::msg)?;
        let embeddings = self.embedder.embed(rows.tokens, rows.lengths).await;
        let embeddings = embeddings
            .with_context(|| format!("no embeddings from the server at {}", self.url))?
            .to_aligned()?;
        let wanted = [sentences.len() as u64, u64::from(self.card.dimension)];
        ensure!(
            embeddings.shape() == wanted,
            "the server answered {:?} instead of {wanted:?} numbers; it and this program do not belong together",
            embeddings.shape()
        );
        ensure!(
            is_finite(embeddings.as_slice()?),
            "the server answered with numbers that are none (NaN) or infinite; its model is broken"
        );
        Ok(embeddings)
    }
}

async fn connect(url: &str) -> Result<EmbedderClient> {
    let connected = EmbedderClient::connect(url).await;
    connected.with_context(|| format!("cannot reach the server at {url}"))
}
