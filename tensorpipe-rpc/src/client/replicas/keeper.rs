//! The task of one replica: connects, asks for the services, sees it go, and connects again.
//!
//! Between two attempts there is always a pause, also after a pipe that worked. Some pipes count as an attempt that failed. Such a
//! pipe never answered a call and ended soon; or a question, or calls in a row, had no answer on it. So a server that takes pipes
//! and dies, or says nothing, is not connected to in a loop, nor for ever.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tensorpipe::{ConnectPolicy, Context, Error};
use tokio::time::Instant;

use super::backoff::chance;
use super::replica::Live;
use super::table::Shared;
use crate::client::bind::bind;
use crate::client::connection::Connection;
use crate::error::{CallError, ConnectError};

/// Keeps replica number `index` connected, for ever.
pub(super) async fn keep(shared: Arc<Shared>, context: Context, index: usize) {
    let (url, news) = shared.url(index);
    let options = &shared.options;
    let (mut failures, mut since) = (0, Instant::now());
    let mut on_trial = false;
    loop {
        shared.connecting(index);
        let connected = context.connect_with(&*url, &ConnectPolicy::once()).await;
        let connected = connected.and_then(|pipe| Ok(Connection::over(pipe)?));
        let hopeless = match connected {
            Ok(connection) => {
                let begun = Instant::now();
                connection.was_reached_at(&url);
                let live = Live::new(connection, on_trial);
                shared.came(index, &live);
                let (error, worked_until) = serve(&shared, index, &live).await;
                shared.mark_lost(index, &live, error);
                let unanswering = live.unanswering.load(Ordering::Relaxed);
                let answered = live.answered.load(Ordering::Relaxed);
                let lasted = worked_until - begun >= options.backoff.longest;
                if answered || (lasted && !unanswering) {
                    (failures, since) = (0, Instant::now());
                }
                if unanswering || !(answered || lasted) {
                    failures += 1;
                }
                on_trial = unanswering;
                false
            }
            Err(error) => {
                failures += 1;
                // An address that is none, or the context has been closed.
                let hopeless = matches!(error, Error::Misuse(_));
                let error = after(failures, since.elapsed(), error);
                shared.failed(index, error.into());
                hopeless
            }
        };
        let pause = options.backoff.pause(failures, chance());
        let up = since.elapsed().saturating_add(pause) > options.give_up_after;
        let again_at = if hopeless || failures >= options.attempts || up {
            shared.given_up(index);
            None
        } else {
            Some(Instant::now() + pause)
        };
        loop {
            let told = news.notified();
            if shared.is_hurried(index) {
                (failures, since) = (0, Instant::now());
                break;
            }
            match again_at {
                None => told.await,
                Some(at) if tokio::time::timeout_at(at, told).await.is_err() => break,
                Some(_) => {}
            }
        }
    }
}

/// The error of the last of so many attempts, which knows of itself alone.
fn after(attempts: u32, waited: Duration, error: Error) -> Error {
    match error {
        Error::Connect { url, source, .. } => Error::Connect {
            url,
            waited,
            attempts,
            source,
        },
        other => other,
    }
}

/// Asks for services as clients want them, until the replica is gone: how, and when it worked last. One that did not answer a
/// question has not worked since it was asked.
async fn serve(shared: &Shared, index: usize, live: &Arc<Live>) -> (ConnectError, Instant) {
    let (_, news) = shared.url(index);
    let engine = &live.connection.engine;
    let closed = || {
        ConnectError::Pipe(Error::Closed {
            pipe: engine.pipe.name().into(),
            by_peer: true,
        })
    };
    let mut put_off = 0;
    loop {
        let mut again_at = None;
        while let Some(schema) = shared.unasked(index, live) {
            let asked = Instant::now();
            match bind(engine, schema).await {
                Err(error @ (ConnectError::NoService { .. } | ConnectError::Mismatch(_))) => {
                    shared.asked(index, live, Err(error));
                }
                // What it has goes on; another pipe would only be more to do.
                Err(ConnectError::Call(CallError::Overloaded(_))) => {
                    put_off += 1;
                    let pause = shared.options.backoff.pause(put_off, chance());
                    again_at = Some(Instant::now() + pause);
                    break;
                }
                Err(error) => return (error, asked),
                Ok(number) => shared.asked(index, live, Ok(number)),
            }
            put_off = 0;
        }
        let again = async {
            match again_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = engine.calls.over.notified() => {
                return (live.connection.gone().unwrap_or_else(closed), Instant::now());
            }
            () = news.notified() => {
                if !shared.is_live(index, live) {
                    // A call has taken it out, with its reason; this one is not used.
                    return (closed(), Instant::now());
                }
            }
            () = again => {}
        }
    }
}
