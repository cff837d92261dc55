//! A server in its own process, and clients of it.

mod liars;
mod program;

use std::path::Path;
use std::time::Duration;

use futures_util::future::try_join_all;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tensorpipe_inference::child::ServerProcess;
use tensorpipe_inference::client::Client;
use tensorpipe_inference::load::{self, Load};
use tensorpipe_inference::{SENTENCES, tiny};
use tokio::time::timeout;

/// The most by which a sentence's embedding may differ when other sentences are computed beside it.
const ALONE: f32 = 1e-6;

/// The longest that a test waits for anything.
const BOUND: Duration = Duration::from_secs(60);

/// A server of the tiny model, and a client.
struct Scene {
    _directory: TempDir,
    server: ServerProcess,
    client: Client,
}

impl Scene {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        tiny::write(directory.path()).unwrap();
        let program = Path::new(env!("CARGO_BIN_EXE_inference"));
        let server = ServerProcess::start(program, directory.path());
        let server = server.await.unwrap();
        let client = Client::connect(server.url()).await.unwrap();
        Self {
            _directory: directory,
            server,
            client,
        }
    }

    async fn end(self) {
        let Self { client, server, .. } = self;
        drop(client);
        let status = server.end().await.expect("it did not end in time");
        assert!(status.success(), "{status}");
    }
}

/// The largest difference between two numbers in the same place.
fn apart(one: &[f32], other: &[f32]) -> f32 {
    assert_eq!(one.len(), other.len());
    let pairs = one.iter().zip(other);
    pairs
        .map(|(one, other)| (one - other).abs())
        .fold(0.0, f32::max)
}

fn furthest(one: &[Vec<f32>], other: &[Vec<f32>]) -> f32 {
    assert_eq!(one.len(), other.len());
    let pairs = one.iter().zip(other);
    pairs
        .map(|(one, other)| apart(one, other))
        .fold(0.0, f32::max)
}

#[tokio::test]
async fn a_sentence_has_one_embedding_alone_and_beside_others() {
    let scene = Scene::new().await;
    let sentences: Vec<&str> = SENTENCES.lines().collect();
    let mut alone = Vec::new();
    for sentence in &sentences {
        alone.extend(scene.client.embed(&[sentence]).await.unwrap());
    }
    // The embeddings are not equal just because all sentences get the same one.
    for (at, one) in alone.iter().enumerate() {
        assert_eq!(one.len(), tiny::DIMENSION);
        for other in &alone[..at] {
            assert!(apart(one, other) > 100.0 * ALONE);
        }
    }
    let together = scene.client.embed(&sentences).await.unwrap();
    assert!(furthest(&alone, &together) <= ALONE);
    // Short and long ones, in several passes, in another order.
    let long = sentences.join(" ");
    let mixed: Vec<&str> = sentences
        .iter()
        .rev()
        .copied()
        .chain([long.as_str(), ""])
        .collect();
    let mut mixed = scene.client.embed(&mixed).await.unwrap();
    mixed.truncate(sentences.len());
    mixed.reverse();
    assert!(furthest(&alone, &mixed) <= ALONE);
    // Eight clients at the same time.
    let clients = try_join_all((0..8).map(|_| scene.client.another()));
    let clients = clients.await.unwrap();
    let all = try_join_all(clients.iter().map(|client| client.embed(&sentences)));
    for embeddings in all.await.unwrap() {
        assert!(furthest(&alone, &embeddings) <= ALONE);
    }
    let work = scene.client.work().await.unwrap();
    let count = sentences.len() as u64;
    assert_eq!(work.sentences, count + count + (count + 2) + 8 * count);
    drop(clients);
    scene.end().await;
}

#[tokio::test]
async fn a_text_of_any_length_is_cut_where_the_model_ends() {
    let scene = Scene::new().await;
    let begin = "so it goes ".repeat(tiny::WIDTH);
    let endless = format!("{begin}{}", "and on ".repeat(100_000));
    let embeddings = scene.client.embed(&[begin, endless]).await.unwrap();
    assert_eq!(embeddings[0], embeddings[1]);
    let work = scene.client.work().await.unwrap();
    assert_eq!(work.tokens, 2 * tiny::WIDTH as u64);
    scene.end().await;
}

#[tokio::test]
async fn more_sentences_than_a_call_takes_are_several_calls() {
    let scene = Scene::new().await;
    let sentences: Vec<String> = (0..2500).map(|i| format!("{i}")).collect();
    let all = scene.client.embed(&sentences).await.unwrap();
    assert_eq!(all.len(), 2500);
    let last = scene.client.embed(&sentences[2400..]).await.unwrap();
    assert!(furthest(&all[2400..], &last) <= ALONE);
    let none = scene.client.embed::<&str>(&[]).await.unwrap();
    assert!(none.is_empty());
    scene.end().await;
}

#[tokio::test]
async fn a_caller_that_leaves_disturbs_nobody() {
    let scene = Scene::new().await;
    let sentences: Vec<&str> = SENTENCES.lines().collect();
    let wanted = scene.client.embed(&sentences).await.unwrap();
    let leaver = scene.client.another().await.unwrap();
    for _ in 0..20 {
        let many = vec!["somebody who does not wait"; 500];
        // Cancels a call that is in flight.
        let _ = timeout(Duration::from_millis(5), leaver.embed(&many)).await;
        let found = scene.client.embed(&sentences).await.unwrap();
        assert!(furthest(&wanted, &found) <= ALONE);
    }
    drop(leaver);
    scene.end().await;
}

#[tokio::test]
async fn a_server_that_is_killed_is_an_error_for_its_clients() {
    let scene = Scene::new().await;
    let id = scene.server.id().unwrap();
    kill(Pid::from_raw(id as i32), Signal::SIGKILL).unwrap();
    let outcome = timeout(BOUND, scene.client.embed(&["is anybody there?"])).await;
    let error = outcome.expect("it waits for a dead server").unwrap_err();
    let text = format!("{error:#}");
    assert!(
        text.contains("no embeddings from the server at tcp://"),
        "{text}"
    );
}

#[tokio::test]
async fn a_server_that_is_killed_under_load_ends_the_load_with_an_error() {
    let scene = Scene::new().await;
    let load = Load {
        clients: 4,
        calls: u64::MAX,
        sentences: 2,
    };
    let sentences = SENTENCES.lines().map(str::to_owned).collect();
    let kills = async {
        while scene.client.work().await.unwrap().runs < 20 {}
        let id = scene.server.id().unwrap();
        kill(Pid::from_raw(id as i32), Signal::SIGKILL).unwrap();
    };
    let loaded = timeout(BOUND, load::run(&scene.client, load, sentences));
    let (loaded, ()) = tokio::join!(loaded, kills);
    let error = loaded.expect("it loads a dead server").unwrap_err();
    let text = format!("{error:#}");
    assert!(
        text.contains("no embeddings from the server at tcp://"),
        "{text}"
    );
}

#[tokio::test]
async fn whatever_is_written_has_an_embedding() {
    let scene = Scene::new().await;
    let odd = [
        "",
        " \t\n",
        "\0\u{1}\u{7f}",
        "\u{feff}\u{200b}\u{202e}",
        "é́́́́́́",
        "日本語 العربية हिन्दी",
        "👩‍👩‍👧‍👦🏳️‍🌈",
        "[CLS] [SEP] [PAD] [UNK] [MASK]",
        "\u{10ffff}\u{fffd}",
    ];
    let long = "日本".repeat(50_000);
    let all: Vec<&str> = odd.into_iter().chain([long.as_str()]).collect();
    for embedding in scene.client.embed(&all).await.unwrap() {
        let length: f32 = embedding.iter().map(|x| x * x).sum();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
    }
    scene.end().await;
}

#[tokio::test]
async fn a_load_is_measured() {
    let scene = Scene::new().await;
    let load = Load {
        clients: 6,
        calls: 50,
        sentences: 3,
    };
    let sentences = SENTENCES.lines().map(str::to_owned).collect();
    let report = load::run(&scene.client, load, sentences).await.unwrap();
    assert_eq!(
        (report.clients, report.calls, report.sentences),
        (6, 50, 150)
    );
    assert!(
        report.p50_ms > 0.0 && report.p50_ms <= report.p99_ms,
        "{report:?}"
    );
    // Each call has three sentences, and the server may join calls.
    assert!((3.0..=150.0).contains(&report.mean_batch), "{report:?}");
    assert_ne!(report.transport, "memory");
    let nothing = load::run(&scene.client, load, Vec::new()).await;
    assert_eq!(nothing.unwrap_err().to_string(), "there are no sentences");
    scene.end().await;
}
