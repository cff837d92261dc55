//! Hostile servers that answer nonsense: clients get an error in words, whatever the nonsense is.

use std::sync::Mutex;

use tensorpipe::{DType, Payload, Tensor};
use tensorpipe_inference::client::Client;
use tensorpipe_inference::load::{self, Load};
use tensorpipe_inference::service::{Card, EmbedError, Embedder, EmbedderService, Work};
use tensorpipe_inference::tiny;
use tensorpipe_rpc::Server;

/// A server that returns this card, and embeddings of this shape.
struct Liar {
    card: Card,
    shape: [u64; 2],
    dtype: DType,
    /// The last number of an embedding.
    last: f32,
    /// The answers to `work`, the last one first.
    work: Mutex<Vec<Work>>,
}

/// Falsifies an honest card.
type Lie = fn(&mut Card);

impl Embedder for Liar {
    async fn card(&self) -> Card {
        self.card.clone()
    }

    async fn embed(&self, _: Tensor, _: Tensor) -> Result<Tensor, EmbedError> {
        let zeros = Tensor::zeros(self.dtype, self.shape);
        let mut answer = zeros.map_err(|error| EmbedError::Model(error.to_string()))?;
        if let Ok([.., last]) = answer.make_mut::<f32>() {
            *last = self.last;
        }
        Ok(answer)
    }

    async fn work(&self) -> Work {
        self.work.lock().unwrap().pop().unwrap_or_default()
    }
}

impl Liar {
    /// A server that does not lie yet.
    fn new() -> Self {
        Self {
            card: Card {
                name: "honest".to_owned(),
                dimension: tiny::DIMENSION as u32,
                width: tiny::WIDTH as u32,
                vocabulary: tiny::VOCABULARY as u32,
                tokenizer: Payload::new(tiny::tokenizer().into_bytes()),
            },
            shape: [1, tiny::DIMENSION as u64],
            dtype: DType::F32,
            last: 0.0,
            work: Mutex::default(),
        }
    }

    async fn serve(self) -> Server {
        let server = Server::builder().service(EmbedderService::new(self));
        server.listen("tcp://127.0.0.1:0").await.unwrap()
    }

    /// Embeds one sentence with this server.
    async fn embed(self) -> Result<Vec<Vec<f32>>, String> {
        let server = self.serve().await;
        let words = |error| format!("{error:#}");
        let client = Client::connect(server.url().as_ref())
            .await
            .map_err(words)?;
        client.embed(&["a word"]).await.map_err(words)
    }
}

#[tokio::test]
async fn a_card_that_describes_no_model_is_refused() {
    assert_eq!(
        Liar::new().embed().await,
        Ok(vec![vec![0.0; tiny::DIMENSION]])
    );
    let lies: [(Lie, &str); 5] = [
        (|card| card.width = 0, "0 tokens a sentence"),
        (|card| card.width = u32::MAX, "4294967295 tokens a sentence"),
        (|card| card.dimension = 0, "0 numbers an embedding"),
        (
            |card| card.vocabulary = 3,
            "a tokenizer of no use: it has 81 tokens",
        ),
        (
            |card| card.tokenizer = Payload::new(b"{}".to_vec()),
            "it is no tokenizer of",
        ),
    ];
    for (lie, words) in lies {
        let mut liar = Liar::new();
        lie(&mut liar.card);
        let error = liar.embed().await.unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}

#[tokio::test]
async fn embeddings_that_are_none_are_refused() {
    // The server's batcher detects a wrong number of rows.
    let lies = [
        ([1, 7], "do not belong together"),
        ([2, tiny::DIMENSION as u64], "a row for each"),
        ([0, 0], "a row for each"),
    ];
    for (shape, words) in lies {
        let mut liar = Liar::new();
        liar.shape = shape;
        let error = liar.embed().await.unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    let mut liar = Liar::new();
    liar.dtype = DType::U8;
    let error = liar.embed().await.unwrap_err();
    assert!(error.contains("f32") && error.contains("u8"), "{error}");
}

#[tokio::test]
async fn an_embedding_that_is_no_number_is_refused() {
    for last in [f32::NAN, f32::INFINITY] {
        let liar = Liar {
            last,
            ..Liar::new()
        };
        let error = liar.embed().await.unwrap_err();
        assert!(error.contains("none (NaN) or infinite"), "{error}");
    }
}

#[tokio::test]
async fn work_that_cannot_be_is_reported_all_the_same() {
    let much = Work {
        runs: u64::MAX,
        sentences: u64::MAX,
        tokens: u64::MAX,
        passes: u64::MAX,
        padding: u64::MAX,
    };
    // Counters that go backwards, and counters that overflow.
    for work in [vec![Work::default(), much], vec![much, Work::default()]] {
        let liar = Liar {
            work: Mutex::new(work),
            ..Liar::new()
        };
        let server = liar.serve().await;
        let client = Client::connect(server.url().as_ref()).await.unwrap();
        let load = Load {
            clients: 1,
            calls: 2,
            sentences: 1,
        };
        let report = load::run(&client, load, vec!["a word".to_owned()]).await;
        let report = report.unwrap();
        assert_eq!(report.calls, 2);
        assert!(report.mean_batch.is_finite() && report.padding.is_finite());
    }
}
