//! How workers and the launcher come to their server, and what a call that failed says about it.

use std::time::Duration;

use anyhow::{Context as _, Error, Result};
use tensorpipe::Context;
use tensorpipe_rpc::CallError;
use tokio::time::timeout;

use crate::progress::Voice;
use crate::service::ParameterServerClient;

/// How long anybody waits for an answer; each takes the server far less than a second.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a server may take to be there before somebody who waits for it says so.
const QUIET: Duration = Duration::from_secs(1);

/// Connects to the server at `url`; one that is not there yet is waited for.
///
/// # Errors
/// Nobody listens there for half a minute, or something else than this server.
pub(crate) async fn connect(url: &str, voice: Voice) -> Result<ParameterServerClient> {
    let connecting = ParameterServerClient::connect_with(Context::global(), url);
    tokio::pin!(connecting);
    let connected = match timeout(QUIET, &mut connecting).await {
        Ok(connected) => connected,
        Err(_) => {
            voice.say(format!("waiting for a server at {url}"));
            connecting.await
        }
    };
    let client = connected.with_context(|| format!("cannot reach the server at {url}"))?;
    Ok(client.with_deadline(PATIENCE))
}

/// A failed call as an error for people; `place` is the URL of the server, and what else is known.
pub(crate) fn failed<E>(error: CallError<E>, place: &str) -> Error
where
    CallError<E>: std::error::Error + Send + Sync + 'static,
{
    let verdict = match &error {
        CallError::Connection { .. } => "lost the server",
        CallError::Deadline { .. } => "no answer from the server",
        CallError::ShuttingDown => "sent away by the server",
        _ => "a call failed on the server",
    };
    Error::new(error).context(format!("{verdict} at {place}"))
}
