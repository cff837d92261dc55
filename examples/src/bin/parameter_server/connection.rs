//! How workers and the launcher come to their server, and what a call that failed says about it.

use std::time::Duration;

use anyhow::{Context as _, Error, Result};
use tensorpipe::Context;
use tensorpipe_rpc::CallError;

use crate::service::ParameterServerClient;

/// How long anybody waits for an answer. Longer than the silence (10 s) after which the pipe itself gives up a peer that
/// hangs, since that says more.
const PATIENCE: Duration = Duration::from_secs(15);

/// Connects to the server at `url`; one that is not there yet is waited for.
///
/// # Errors
/// Nobody listens there for half a minute, or something else than this server.
pub(crate) async fn connect(url: &str) -> Result<ParameterServerClient> {
    let connected = ParameterServerClient::connect_with(Context::global(), url).await;
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
