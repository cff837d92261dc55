//! A handler's values panic when they are dropped. Wherever that happens, the call gets an error, its slot becomes free,
//! and the connection goes on.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context as Task, Poll};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use tensorpipe::Context;
use tensorpipe_rpc::{CallError, Server, tensor_service};

use super::lab::{serve, tcp, until};

thread_local! {
    /// On the caller's side mines are safe.
    static SAFE: Cell<bool> = const { Cell::new(false) };
}

fn safely<T>(make: impl FnOnce() -> T) -> T {
    SAFE.set(true);
    let made = make();
    SAFE.set(false);
    made
}

/// Panics when it is dropped.
#[derive(Debug, Serialize, Deserialize)]
struct Mine {
    armed: bool,
}

impl Drop for Mine {
    fn drop(&mut self) {
        if self.armed && !SAFE.get() && !std::thread::panicking() {
            panic!("a mine");
        }
    }
}

/// Nothing is right for it, but on the caller's side.
#[derive(Serialize)]
struct Picky;

impl<'de> Deserialize<'de> for Picky {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <()>::deserialize(deserializer)?;
        match SAFE.get() {
            true => Ok(Self),
            false => Err(serde::de::Error::custom("picky")),
        }
    }
}

#[tensor_service]
trait Minefield {
    async fn argument(&self, mine: Mine, wait: bool) -> ();
    async fn before_another(&self, mine: Mine, picky: Picky) -> ();
    async fn result(&self, armed: bool) -> Mine;
    async fn error(&self, armed: bool) -> Result<(), Mine>;
    async fn future(&self, armed: bool, wait: bool) -> ();
    async fn panic(&self, armed: bool) -> ();
}

struct Field;

/// A future by hand: it panics when it is dropped, done or not.
struct Trap {
    _mine: Mine,
    wait: bool,
}

impl Future for Trap {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Task<'_>) -> Poll<()> {
        match self.wait {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    }
}

impl Minefield for Field {
    async fn argument(&self, mine: Mine, wait: bool) {
        if wait {
            std::future::pending::<()>().await;
        }
        drop(mine);
    }

    async fn before_another(&self, _: Mine, _: Picky) {}

    async fn result(&self, armed: bool) -> Mine {
        Mine { armed }
    }

    async fn error(&self, armed: bool) -> Result<(), Mine> {
        Err(Mine { armed })
    }

    fn future(&self, armed: bool, wait: bool) -> impl Future<Output = ()> + Send {
        let _mine = Mine { armed };
        Trap { _mine, wait }
    }

    async fn panic(&self, armed: bool) {
        if armed {
            // What the panic carries panics in turn.
            std::panic::panic_any(Mine { armed });
        }
    }
}

async fn over_each(test: impl AsyncFn(&MinefieldClient, &Server)) {
    for context in [tcp, Context::builder] {
        let context = context().build().unwrap();
        let server = serve(&context, MinefieldService::new(Field)).await;
        let client = safely(|| MinefieldClient::SCHEMA.describe());
        assert_eq!(client.methods.len(), 6);
        let client = MinefieldClient::connect_with(&context, server.url());
        let client = client.await.unwrap();
        let told = async { test(&client, &server).await };
        let told = tokio::time::timeout(Duration::from_secs(30), told).await;
        told.expect("every call is answered");
        assert_eq!(server.pipes().len(), 1, "the connection goes on");
        until(|| server.calls_in_flight() == 0).await;
        assert_eq!(client.connection().calls_in_flight(), 0);
        client.future(false, false).await.unwrap();
    }
}

#[track_caller]
fn is_its_panic<T: std::fmt::Debug, E: std::fmt::Debug>(
    result: Result<T, CallError<E>>,
    text: &str,
) {
    match result {
        Err(CallError::Panicked { message: panic, .. }) => assert_eq!(&*panic, text),
        other => panic!("{other:?}"),
    }
}

/// Often enough that the method runs on the connection's task; the mine that follows goes off there.
const HARMLESS: usize = 50;

#[tokio::test]
async fn when_a_handler_has_ended() {
    over_each(async |client, _| {
        for _ in 0..3 {
            let mine = || Mine { armed: true };
            is_its_panic(safely(|| client.argument(mine(), false)).await, "a mine");
            is_its_panic(client.future(true, false).await, "a mine");
            is_its_panic(client.result(true).await, "a mine");
            is_its_panic(client.error(true).await, "a mine");
            is_its_panic(client.panic(true).await, "with no message");
            let refused = safely(|| client.before_another(mine(), Picky));
            is_its_panic(refused.await, "a mine");
            for _ in 0..HARMLESS {
                let harmless = Mine { armed: false };
                client.argument(harmless, false).await.unwrap();
                client.future(false, false).await.unwrap();
                client.result(false).await.unwrap();
                client.error(false).await.unwrap_err();
                client.panic(false).await.unwrap();
            }
        }
    })
    .await;
}

#[tokio::test]
async fn when_a_call_is_cancelled() {
    over_each(async |client, server| {
        for _ in 0..3 {
            let calls = [
                safely(|| client.argument(Mine { armed: true }, true)),
                client.future(true, true),
            ];
            until(|| server.calls_in_flight() == 2).await;
            drop(calls);
            until(|| server.calls_in_flight() == 0).await;
            for _ in 0..HARMLESS {
                client.future(false, false).await.unwrap();
            }
        }
    })
    .await;
}

#[tokio::test]
async fn when_time_is_up() {
    over_each(async |client, server| {
        let hurried = client.with_deadline(Duration::from_millis(30));
        for _ in 0..3 {
            let calls = [
                safely(|| hurried.argument(Mine { armed: true }, true)),
                hurried.future(true, true),
            ];
            for call in calls {
                let error = call.await.unwrap_err();
                assert!(matches!(error, CallError::Deadline { .. }), "{error}");
            }
            until(|| server.calls_in_flight() == 0).await;
        }
    })
    .await;
}

#[tokio::test]
async fn when_the_connection_ends() {
    over_each(async |client, server| {
        let other = MinefieldClient::connect(server.url());
        let other = other.await.unwrap();
        let call = safely(|| other.argument(Mine { armed: true }, true));
        until(|| server.calls_in_flight() == 1).await;
        other.connection().close().await.unwrap();
        assert!(call.await.unwrap_err().may_have_run());
        until(|| server.calls_in_flight() == 0 && server.pipes().len() == 1).await;
        client.future(false, false).await.unwrap();
    })
    .await;
}
