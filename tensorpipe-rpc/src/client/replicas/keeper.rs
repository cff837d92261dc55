//! The task of one replica: connects, binds the services, notices a lost pipe, and connects again.
//!
//! There is always a pause between two attempts, also after a pipe that worked. Two kinds of pipes count as a failed attempt: one
//! that ended soon without answering a call, and one that left a bind, or calls in a row, unanswered. So a server that accepts
//! pipes and dies, or stays silent, is not connected to in a loop, nor for ever.

use std::any::Any;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tensorpipe::{ConnectPolicy, Context, Error, Misuse};
use tokio::time::Instant;

use super::absence::Absence;
use super::backoff::chance;
use super::replica::Live;
use super::table::Shared;
use crate::client::bind::bind;
use crate::client::connection::Connection;
use crate::error::{CallError, ConnectError};
use crate::lock::Notify;

/// One replica, whose task is at work.
pub(super) struct Keeper {
    pub(super) shared: Arc<Shared>,
    pub(super) number: usize,
}

impl Drop for Keeper {
    /// Nobody connects the replica any more: its runtime has ended, if nothing else has.
    fn drop(&mut self) {
        let text = "the runtime on which it was connected has ended; connect anew".to_owned();
        let error = ConnectError::Pipe(Misuse::Other(text).into());
        self.shared.forsaken(self.number, error);
    }
}

/// Keeps a replica connected for as long as the task runs.
pub(super) async fn keep(keeper: Keeper, context: Context) {
    let Keeper { shared, number } = &keeper;
    let number = *number;
    let Some((url, wake)) = shared.url(number) else {
        return;
    };
    let options = &shared.options;
    let (mut failures, mut since) = (0, Instant::now());
    let mut absence = Absence::begin(since);
    let mut on_trial = false;
    loop {
        if !shared.connecting(number) {
            return;
        }
        let connected = context.connect_with(&*url, &ConnectPolicy::once()).await;
        let connected = connected.and_then(|pipe| Ok(Connection::over(pipe)?));
        let hopeless = match connected {
            Ok(connection) => {
                let begun = Instant::now();
                connection.set_peer_url(&url);
                let these: Weak<dyn Any + Send + Sync> = Arc::<Shared>::downgrade(shared);
                let _ = connection.engine.replicas.set(these);
                let live = Live::new(connection, on_trial);
                shared.connected(number, &live);
                let (error, worked_until) = serve(shared, number, &wake, &live).await;
                shared.mark_lost(number, &live, error);
                absence = Absence::begin(Instant::now());
                let unanswering = live.unanswering.load(Ordering::Relaxed);
                let calls = &live.connection.engine.calls;
                let answered = live.answered.load(Ordering::Relaxed)
                    || calls.has_served.load(Ordering::Relaxed);
                let lasted = worked_until - begun >= options.backoff.longest;
                if answered || (lasted && !unanswering) {
                    (failures, since) = (0, Instant::now());
                } else if lasted && !on_trial {
                    // Until its first hang it was well, used or not.
                    since = Instant::now();
                }
                if unanswering || !(answered || lasted) {
                    failures += 1;
                }
                on_trial = unanswering;
                false
            }
            Err(error) => {
                failures += 1;
                // The address is malformed, or the context has been closed.
                let hopeless = matches!(error, Error::Misuse(_));
                let error = after(failures, since.elapsed(), error);
                let warns = absence.warns(Instant::now());
                shared.failed(number, error.into(), warns);
                hopeless
            }
        };
        let pause = options.backoff.pause(failures, chance());
        let up = since.elapsed().saturating_add(pause) > options.give_up_after;
        let again_at = if hopeless || failures >= options.connect_attempts || up {
            shared.given_up(number);
            None
        } else {
            Some(Instant::now() + pause)
        };
        loop {
            let told = wake.notified();
            if shared.should_reconnect_now(number) {
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

/// Adds the number of attempts, and the time waited, to the last attempt's error.
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

/// Whether the pipe goes on, and has only not taken the question.
fn may_be_asked_again(error: &ConnectError) -> bool {
    matches!(
        error,
        ConnectError::Call(CallError::Overloaded(_))
            | ConnectError::Pipe(Error::Misuse(Misuse::TooManyWrites(_)))
    )
}

/// Whether the replica has answered, or could not be asked, and would always answer so of this service. Its others go on.
fn is_of_the_service(error: &ConnectError) -> bool {
    match error {
        ConnectError::NoService { .. } | ConnectError::Mismatch(_) => true,
        ConnectError::Pipe(error) => matches!(error, Error::Misuse(Misuse::TooLarge { .. })),
        ConnectError::Call(error) => {
            matches!(error, CallError::BadArguments(_) | CallError::Encode(_))
        }
        _ => false,
    }
}

/// Binds services as clients want them, until the replica is gone. Returns why it is gone, and until when it worked. If it did not
/// answer a bind, it has not worked since that was sent.
async fn serve(
    shared: &Shared,
    number: usize,
    wake: &Notify,
    live: &Arc<Live>,
) -> (ConnectError, Instant) {
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
        while let Some(schema) = shared.next_unbound(number, live) {
            let asked = Instant::now();
            match bind(engine, schema).await {
                Err(error) if is_of_the_service(&error) => {
                    shared.record_bind(number, live, Err(error));
                }
                // The services that it has go on. Another pipe would only add load.
                Err(error) if may_be_asked_again(&error) => {
                    shared.put_off(number, live, error);
                    put_off += 1;
                    let pause = shared.options.backoff.pause(put_off, chance());
                    again_at = Some(Instant::now() + pause);
                    break;
                }
                Err(error) => return (error, asked),
                Ok(service) => shared.record_bind(number, live, Ok(service)),
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
            () = engine.calls.closing.notified() => {
                return (live.connection.unavailable_reason().unwrap_or_else(closed), Instant::now());
            }
            () = wake.notified() => {
                if !shared.is_live(number, live) {
                    // A call has taken it out, and reported the reason; the error returned here is not used.
                    return (closed(), Instant::now());
                }
            }
            () = again => {}
        }
    }
}
