//! How pipes behave, seen by an application: one concern per file.
#![allow(missing_docs, reason = "a test")]

mod accounts;
mod ahead;
mod blocking;
mod connecting;
mod devices;
mod dropped_futures;
mod ending;
mod handlers;
mod idle;
mod leaving;
mod limits;
mod polled;
mod pressure;
mod processes;
mod small;
mod spinning;
mod stress;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tensorpipe::channels::{BasicChannel, Channel};
use tensorpipe::conformance::{assert_same, pattern};
use tensorpipe::transports::{ShmTransport, TcpTransport, Transport};
use tensorpipe::{
    ConnectPolicy, Context, ContextBuilder, Incoming, Limits, Message, Pipe, Tensor, Timeouts,
};
use tensorpipe_tests::{eventually, over, soon};
use tokio::runtime::Runtime;

tensorpipe_tests::child! {
    "polled" => polled::play(),
    "idle" => idle::play(),
    "echo" => processes::play_echo(),
    "last words" => processes::play_last_words(),
    "without descriptors" => processes::play_without_descriptors(),
    "without descriptors for shm" => processes::play_without_descriptors_for_shm(),
    "without files" => blocking::play_without_files(),
    "without threads" => blocking::play_without_threads(),
}

fn current_thread() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

/// A context as between two machines: bytes go through the kernel.
fn over_tcp() -> ContextBuilder {
    let patient = ConnectPolicy::retrying_for(Duration::from_secs(20));
    over(vec![Arc::new(TcpTransport::new())]).connect_policy(patient)
}

/// A context as between two processes of one machine: pipes are upgraded to shared memory.
fn over_shm() -> ContextBuilder {
    over_tcp().prefer_transport(ShmTransport::new())
}

/// So many messages there, and each of them back.
async fn round_trips(client: &Pipe, server: &Pipe, count: usize) {
    let echo = async {
        for _ in 0..count {
            let message = server.read().await.unwrap();
            server.write(message).await.unwrap();
        }
    };
    let call = async {
        for _ in 0..count {
            client.write(Message::new("ping")).await.unwrap();
            client.read().await.unwrap();
        }
    };
    soon("round trips", async { tokio::join!(echo, call) }).await;
}

/// The two ends of a pipe: the one that connected, the one that accepted.
async fn pair(client: &Context, server: &Context) -> (Pipe, Pipe) {
    tensorpipe_tests::pair(client, server, "tcp://127.0.0.1:0").await
}

async fn tcp_pair() -> (Pipe, Pipe) {
    let context = over_tcp().build().unwrap();
    pair(&context, &context).await
}

/// The two ends of a pipe through the kernel, and of one through rings in shared memory.
async fn both_pairs() -> [(Pipe, Pipe); 2] {
    let context = over_shm().build().unwrap();
    [tcp_pair().await, pair(&context, &context).await]
}

/// Runs a test where tensors go through the kernel, through rings in shared memory, and where they are handed over: with a context, and the
/// two ends of a pipe of its own.
async fn every_way(test: impl AsyncFn(Context, Pipe, Pipe)) {
    let [tcp, shm] = [over_tcp(), over_shm()].map(|context| context.build().unwrap());
    for context in [tcp, shm, Context::new()] {
        let (client, server) = pair(&context, &context).await;
        test(context, client, server).await;
    }
}

/// A context as between two machines, with these limits.
fn limited(change: impl FnOnce(&mut Limits)) -> Context {
    over_tcp().limits(limits(change)).build().unwrap()
}

fn limits(change: impl FnOnce(&mut Limits)) -> Limits {
    let mut limits = Limits::default();
    change(&mut limits);
    limits
}

fn timeouts(change: impl FnOnce(&mut Timeouts)) -> Timeouts {
    let mut timeouts = Timeouts::default();
    change(&mut timeouts);
    timeouts
}

/// Message `number`, whose tensor is made of its number.
fn message(number: u64, len: usize) -> Message {
    let tensor = Tensor::from_vec(pattern(len, number), [len as u64]).unwrap();
    Message::new(number.to_le_bytes().to_vec()).tensor(tensor)
}

#[track_caller]
fn check(message: &Message, number: u64, len: usize) {
    assert_eq!(message.metadata[..], number.to_le_bytes());
    let bytes = message.tensors[0].tensor.as_bytes().unwrap();
    assert_same(bytes, &pattern(len, number), "the tensor");
}

/// The next message is this one.
async fn comes(to: &Pipe, number: u64, len: usize) {
    check(&soon("a message", to.read()).await.unwrap(), number, len);
}

/// The next message, of which only the head is here.
async fn head(to: &Pipe) -> Incoming {
    soon("a descriptor", to.read_descriptor()).await.unwrap()
}

async fn exchange(from: &Pipe, to: &Pipe, number: u64, len: usize) {
    let (written, read) = soon("an exchange", async {
        tokio::join!(from.write(message(number, len)), to.read())
    })
    .await;
    written.unwrap();
    check(&read.unwrap(), number, len);
}

/// All memory that was taken of its pool comes back.
async fn memory_is_back(context: &Context) {
    let is_back = || context.pool().stats().outstanding_bytes == 0;
    eventually("memory back", is_back).await;
}

async fn pause(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}
