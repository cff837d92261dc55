//! What can go wrong, sorted by who is to blame.
//!
//! [`Misuse`] is the caller's fault, [`PeerFault`] the peer's (never a bare string), [`SystemError`] what this machine
//! refused, and the rest says how a pipe or an operation ended. Every error is cheap to clone, because the first one
//! of a pipe is given to each operation that is pending or comes later.

mod device;
mod misuse;
mod peer;
mod reset;
mod system;

pub use device::DeviceError;
pub use misuse::Misuse;
pub use peer::PeerFault;
pub(crate) use peer::{TEXT_MAX, legible};
pub use reset::ResetCode;
pub use system::SystemError;
pub(crate) use system::with_advice;

use std::sync::Arc;
use std::time::Duration;

/// How a pipe or one of its operations ended.
///
/// Cheap to clone: the first error of a pipe is given to every pending and later operation.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller's fault; nothing was sent. A message that was to be read is skipped.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// The peer broke the protocol; the pipe has ended.
    #[error("pipe {pipe}: {}{fault}", fault.blames())]
    Peer {
        /// The pipe's name.
        pipe: Arc<str>,
        /// What it did.
        fault: PeerFault,
    },
    /// This machine refused something.
    #[error(transparent)]
    System(#[from] SystemError),
    /// No pipe could be made to this address.
    #[error("no pipe to {url} after {} and {attempts} attempt{}: {source}", seconds(*.waited), if *.attempts == 1 { "" } else { "s" })]
    Connect {
        /// Where to.
        url: Arc<str>,
        /// How long it was tried.
        waited: Duration,
        /// How many times.
        attempts: u32,
        /// What the last attempt met. Raw, so that it is no `source()`: the message holds it already, and reporters that
        /// walk the chain would say everything twice.
        r#source: Box<Self>,
    },
    /// The listener does not want this pipe, or a connection that was to become one of its.
    #[error("{peer} refused the pipe: {reason}")]
    Rejected {
        /// The listener's name, or its address.
        peer: Arc<str>,
        /// In its words.
        reason: Arc<str>,
        /// Whether trying again later can help.
        transient: bool,
    },
    /// The connection broke without a goodbye: the peer's process or machine is gone, or the network is.
    #[error("pipe {pipe}: the connection to the peer was lost: {reason}")]
    Lost {
        /// The pipe's name.
        pipe: Arc<str>,
        /// What the transport said.
        reason: Arc<str>,
    },
    /// Nothing was heard from the peer for too long.
    #[error("pipe {pipe}: nothing heard from the peer for {}: it hangs, or the network is cut; raise `Timeouts::silence` if it may block that long", seconds(*.silence))]
    Silent {
        /// The pipe's name.
        pipe: Arc<str>,
        /// For how long.
        silence: Duration,
    },
    /// The pipe was closed in good order.
    #[error("pipe {pipe} was closed by {}", if *.by_peer { "the peer" } else { "this side" })]
    Closed {
        /// The pipe's name.
        pipe: Arc<str>,
        /// By the peer, or here.
        by_peer: bool,
    },
    /// The peer did not take in time what was written before closing.
    #[error("pipe {pipe}: the peer did not take within {} what was written before closing; raise `Timeouts::linger` if it may be that slow", seconds(*.linger))]
    Undelivered {
        /// The pipe's name.
        pipe: Arc<str>,
        /// The bound on closing.
        linger: Duration,
    },
    /// This side had to end the pipe: its memory, one of its channels, or its handler failed.
    #[error("pipe {pipe} was ended by this side: {reason}")]
    Ended {
        /// The pipe's name.
        pipe: Arc<str>,
        /// In words.
        reason: Arc<str>,
    },
    /// The peer takes no more messages; this one was not looked at.
    #[error(
        "pipe {pipe}: the peer takes no more messages ({reason}); this one was not processed, send it elsewhere"
    )]
    GoingAway {
        /// The pipe's name.
        pipe: Arc<str>,
        /// In the peer's words.
        reason: Arc<str>,
    },
    /// The writer abandoned this message.
    #[error("the peer abandoned the message: {code}{}{reason}", if .reason.is_empty() { "" } else { ": " })]
    Reset {
        /// Why.
        code: ResetCode,
        /// In the peer's words.
        reason: Arc<str>,
    },
    /// The reader did not want this message.
    #[error("the peer did not take the message: {code}{}{reason}", if .reason.is_empty() { "" } else { ": " })]
    Refused {
        /// Why.
        code: ResetCode,
        /// In the peer's words.
        reason: Arc<str>,
    },
    /// A bounded wait ended.
    #[error("{what} took longer than {}{}{hint}", seconds(*.after), if .hint.is_empty() { "" } else { "; " })]
    Timeout {
        /// What was waited for.
        what: Arc<str>,
        /// The bound.
        after: Duration,
        /// What to do.
        hint: &'static str,
    },
    /// A channel could not move a tensor.
    #[error("channel `{channel}`: {reason}")]
    Channel {
        /// The channel.
        channel: &'static str,
        /// In words.
        reason: Arc<str>,
    },
    /// A channel could not send a part of a message of this side's, which is abandoned; the pipe goes on.
    #[error("{what} was not sent over channel `{channel}`: {}", cause(.channel, .r#source))]
    Unsent {
        /// Which payload or tensor.
        what: Arc<str>,
        /// The channel.
        channel: &'static str,
        /// Why. Raw, as in [`Error::Connect`].
        r#source: Box<Self>,
    },
    /// There is not enough memory for a message.
    #[error("no memory for a message of {bytes} bytes: {reason}")]
    OutOfMemory {
        /// The size wanted.
        bytes: u64,
        /// The limit that was met, and how to raise it.
        reason: Arc<str>,
    },
}

impl Error {
    /// Whether the pipe has ended, not only this operation, or a direction of it: after a [`finish`](crate::Pipe::finish) at either end,
    /// [`Error::Closed`] leaves the other direction open. [`Pipe::has_ended`](crate::Pipe::has_ended) tells.
    pub fn ends_pipe(&self) -> bool {
        matches!(
            self,
            Self::Peer { .. }
                | Self::Lost { .. }
                | Self::Silent { .. }
                | Self::Closed { .. }
                | Self::Rejected { .. }
                | Self::Undelivered { .. }
                | Self::Ended { .. }
                | Self::System(_)
        )
    }
}

/// What a channel says, without its name once more.
fn cause(channel: &str, error: &Error) -> String {
    match error {
        Error::Channel {
            channel: of,
            reason,
        } if *of == channel => reason.to_string(),
        error => error.to_string(),
    }
}

/// How long a wait lasted, for messages.
pub(crate) fn seconds(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        format!("{} ms", duration.as_millis())
    } else {
        format!("{:.1} s", duration.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn a_message_is_whole_and_no_source_repeats_it() {
        let refused = std::io::Error::from_raw_os_error(libc::ECONNREFUSED);
        let source = Box::new(SystemError::new("connect", "host:1", refused).into());
        let error = Error::Connect {
            url: "tcp://host:1".into(),
            waited: Duration::from_secs(2),
            attempts: 3,
            source,
        };
        let said = error.to_string();
        assert!(said.starts_with("no pipe to tcp://host:1 after 2.0 s and 3 attempts: connect host:1: Connection refused"), "{said}");
        assert!(error.source().is_none());
    }
}
