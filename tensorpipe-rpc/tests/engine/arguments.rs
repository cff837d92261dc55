//! Arguments that take far more memory than their bytes, or long to decode.

use std::sync::Arc;
use std::thread::{self, ThreadId};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tensorpipe::Limits;
use tensorpipe_rpc::{CallError, Server, tensor_service};
use tokio::sync::Semaphore;

use super::lab::{tcp, until};

/// The thread that decoded it.
struct DecodedOn(ThreadId);

impl Serialize for DecodedOn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

impl<'de> Deserialize<'de> for DecodedOn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <()>::deserialize(deserializer)?;
        Ok(Self(thread::current().id()))
    }
}

#[tensor_service]
trait Keeps {
    /// Keeps its argument until it may end.
    async fn keep(&self, words: Vec<String>) -> u64;
    /// Whether it was decoded on the thread of this test.
    async fn is_decoded_here(&self, on: DecodedOn, beside: Vec<u8>) -> bool;
}

struct Keeper {
    may_end: Arc<Semaphore>,
    here: ThreadId,
}

impl Keeps for Keeper {
    async fn keep(&self, words: Vec<String>) -> u64 {
        self.may_end.acquire().await.unwrap().forget();
        words.len() as u64
    }

    async fn is_decoded_here(&self, on: DecodedOn, beside: Vec<u8>) -> bool {
        drop(beside);
        on.0 == self.here
    }
}

async fn keeper(receive_budget: u64) -> (Server, Arc<Semaphore>, KeepsClient) {
    let mut limits = Limits::default();
    limits.receive_budget = receive_budget;
    let may_end = Arc::new(Semaphore::new(0));
    let keeper = Keeper {
        may_end: may_end.clone(),
        here: thread::current().id(),
    };
    let far = tcp().limits(limits).build().unwrap();
    let server = Server::builder().context(&far);
    let server = server.service(KeepsService::new(keeper));
    let server = server.listen("tcp://127.0.0.1:0").await.unwrap();
    let near = tcp().build().unwrap();
    let client = KeepsClient::connect_with(&near, server.url()).await;
    (server, may_end, client.unwrap())
}

/// A string without a character takes a byte on the wire, and 24 in memory.
#[tokio::test]
async fn what_decoding_makes_of_a_call_counts_until_the_call_ends() {
    const WORDS: usize = 400_000;
    let (server, may_end, client) = keeper(32 << 20).await;
    let words = || vec![String::new(); WORDS];
    for _ in 0..2 {
        let first = tokio::spawn(client.keep(words()));
        until(|| server.calls_in_flight() == 1).await;
        let refused = client.keep(words()).await.unwrap_err();
        assert!(matches!(refused, CallError::Overloaded(_)), "{refused}");
        assert!(refused.to_string().contains("receive_budget"), "{refused}");
        // What takes little is not counted.
        let small = tokio::spawn(client.keep(vec![String::new(); 1000]));
        until(|| server.calls_in_flight() == 2).await;
        may_end.add_permits(2);
        assert_eq!(first.await.unwrap().unwrap(), WORDS as u64);
        assert_eq!(small.await.unwrap().unwrap(), 1000);
    }
}

/// Other connections of the thread would wait for it.
#[tokio::test]
async fn a_large_body_is_decoded_on_another_thread() {
    let (_server, _, client) = keeper(Limits::default().receive_budget).await;
    for (bytes, here) in [(100, true), (2 << 20, false), (100, true)] {
        let on = DecodedOn(thread::current().id());
        let is_here = client.is_decoded_here(on, vec![1; bytes]).await;
        assert_eq!(is_here.unwrap(), here, "{bytes}");
    }
}
