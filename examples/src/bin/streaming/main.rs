//! A server streams tokens as it makes them; the client cancels half-way.
//!
//! ```text
//! streaming                      starts a server in a process of its own, and asks it
//! streaming serve URL            a server alone
//! streaming ask URL [PROMPT]     asks a server that is there
//! ```
//!
//! The server samples a small language model ([`model`]) without end. The client reads until it has seen enough and drops the
//! stream: that cancels the call, and the server makes no further tokens. While the client does not read, the server pauses once
//! the stream's window is full.

mod model;

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Parser, Subcommand};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use tensorpipe::Tensor;
use tensorpipe_examples::Second;
use tensorpipe_rpc::{Server, Stream, tensor_service};

use crate::model::Model;

/// Tokens streamed from a server, cancelled half-way.
#[derive(Parser)]
#[command(name = "streaming", version)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Tokens that the client reads before it has enough.
    #[arg(long, default_value_t = 40, global = true)]
    tokens: u64,
}

#[derive(Subcommand)]
enum Command {
    /// Serves at a URL, e.g. tcp://127.0.0.1:5000, until it is ended.
    Serve { url: String },
    /// Asks a server.
    Ask {
        url: String,
        #[arg(default_value = "the")]
        prompt: String,
    },
}

/// A piece of text, and how likely each word was in its place.
#[derive(Serialize, Deserialize)]
struct Token {
    text: String,
    /// One number for each word that the model knows.
    probabilities: Tensor,
}

#[tensor_service]
trait Sampler {
    /// Continues the prompt without end.
    fn generate(&self, prompt: String, seed: u64) -> impl Stream<Item = Result<Token, String>>;
    /// Tokens made so far, over all calls.
    async fn made(&self) -> u64;
}

struct Sampling {
    model: Arc<Model>,
    made: Arc<AtomicU64>,
}

impl Sampler for Sampling {
    fn generate(&self, prompt: String, seed: u64) -> impl Stream<Item = Result<Token, String>> {
        let (model, made) = (self.model.clone(), self.made.clone());
        let place = model.find(&prompt);
        let state = place.map(|place| (place, seed));
        stream::unfold(Some(state), move |state| {
            let (model, made) = (model.clone(), made.clone());
            async move {
                // An error is the last item.
                let (place, seed) = match state? {
                    Ok(state) => state,
                    Err(unknown) => return Some((Err(unknown), None)),
                };
                // Takes about as long as a real model. A cancelled call ends at this await.
                tokio::time::sleep(Duration::from_millis(3)).await;
                made.fetch_add(1, Ordering::Relaxed);
                let (next, seed) = model.sample(place, seed);
                let token = Token {
                    text: model.word(next).to_owned(),
                    probabilities: Tensor::from(model.probabilities(place)),
                };
                Some((Ok(token), Some(Ok((next, seed)))))
            }
        })
    }

    async fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    match &args.command {
        Some(Command::Serve { url }) => serve(url).await,
        Some(Command::Ask { url, prompt }) => ask(url, prompt, args.tokens).await,
        None => both(args.tokens).await,
    }
}

async fn serve(url: &str) -> Result<()> {
    let sampling = Sampling {
        model: Arc::new(Model::new()),
        made: Arc::default(),
    };
    let server = Server::builder()
        .service(SamplerService::new(sampling))
        .listen(url)
        .await?;
    println!("{}", server.url());
    server.wait().await;
    bail!("the listener failed")
}

async fn ask(url: &str, prompt: &str, tokens: u64) -> Result<()> {
    let client = SamplerClient::connect(url).await?;
    let mut stream = client.generate(prompt, 7);
    print!("{prompt}");
    for _ in 0..tokens {
        let token = stream.next().await.context("the model goes on for ever")?;
        let token = token?;
        let sum: f32 = token.probabilities.as_slice::<f32>()?.iter().sum();
        ensure!((sum - 1.0).abs() < 1e-3, "probabilities that sum to {sum}");
        print!(" {}", token.text);
        std::io::stdout().flush()?;
    }
    println!(" …");
    // Half-way through an endless text: this cancels the call.
    drop(stream);
    let made = settled(&client).await?;
    println!("read {tokens} tokens; the server has made {made}, and makes no more");
    println!("over {}", client.connection().route());
    // An unknown prompt: the server sends an error as the stream's item.
    let mut stream = client.generate("xylophone", 7);
    match stream.next().await {
        Some(Err(error)) => println!("and of another prompt it says: {error}"),
        Some(Ok(token)) => bail!("a continuation of `xylophone`: {}", token.text),
        None => bail!("no answer"),
    }
    Ok(())
}

/// Waits until the server's count stops growing, and returns it.
async fn settled(client: &SamplerClient) -> Result<u64> {
    let mut made = client.made().await?;
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let now = client.made().await?;
        if now == made {
            return Ok(made);
        }
        made = now;
    }
    bail!("the server goes on, {made} tokens by now")
}

/// A server in a process of its own, and a client here.
async fn both(tokens: u64) -> Result<()> {
    let server = Second::start(&["serve", "tcp://127.0.0.1:0"]).await?;
    ask(&server.url, "the", tokens).await?;
    server.end().await
}
