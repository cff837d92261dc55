//! Why a value was not sent, or not received.

use std::sync::Arc;
use std::time::Duration;

use tensorpipe::Misuse;

use super::key::{Key, KeyError};
use crate::error::{CallError, ConnectError};

/// Why a value was not sent. Nothing is kept of it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The rendezvous was aborted.
    #[error(transparent)]
    Aborted(#[from] Aborted),
    /// The step is finished in this process.
    #[error("step {step} is finished in this process; send before `finish`")]
    Finished {
        /// The step.
        step: u64,
    },
    /// A value was sent under this key before.
    #[error(
        "a value was sent as `{0}` before; a key names one value, give the next one another step or name"
    )]
    AlreadySent(Key),
    /// Too much is sent and not received yet. There was no room for as long as the sender would wait.
    #[error(
        "{held} bytes in {values} values wait to be received, {bytes} more are beyond the bound; receive or finish steps, wait \
         for room with `send_or_wait`, or raise `Limits`"
    )]
    Full {
        /// Bytes held.
        held: u64,
        /// Values held.
        values: usize,
        /// Bytes of the value that was to be sent.
        bytes: u64,
    },
    /// The producer in this key is another process, or another incarnation of this one.
    #[error(
        "the values of `{key}` are made by another process than `{name}` as incarnation {incarnation:016x}; make its key with `key_to`"
    )]
    NotProducer {
        /// The key.
        key: Key,
        /// This process.
        name: Arc<str>,
        /// Its incarnation.
        incarnation: u64,
    },
}

/// Why a value was not received. Unless the variant says so, the value is not lost: if it was sent, it stays where it is for the
/// next receive.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecvError {
    /// The rendezvous of this process, or the producer's, was aborted. Its values are gone.
    #[error(transparent)]
    Aborted(#[from] Aborted),
    /// The step is finished here, or at the producer. Its values are gone.
    #[error("step {step} is finished; receive before `finish`")]
    Finished {
        /// The step.
        step: u64,
    },
    /// Another receive already waits for it.
    #[error("somebody waits for `{0}` already; a value has one receiver")]
    Awaited(Key),
    /// Another receive has it already.
    #[error("`{0}` was received before; a value has one receiver")]
    Received(Key),
    /// The consumers of so many lent values have not confirmed them that no more are lent.
    #[error(
        "{values} values are lent and not known to have arrived; await the receives that are under way, then ask again"
    )]
    Unconfirmed {
        /// How many.
        values: usize,
    },
    /// It did not come in time.
    #[error(
        "`{key}` did not come within {after:?}; its producer is slow or not there, wait longer with `recv_within`"
    )]
    Deadline {
        /// The key.
        key: Key,
        /// The bound.
        after: Duration,
    },
    /// The producer was started again since the key was made. All that the earlier one sent is gone with it.
    #[error(
        "`{producer}` was started again, as incarnation {found:016x}; what it sent as {expected:016x} is gone, make keys anew with `key_from`"
    )]
    Restarted {
        /// The producer.
        producer: Arc<str>,
        /// Its incarnation in the key.
        expected: u64,
        /// Its incarnation now.
        found: u64,
    },
    /// The consumer in this key is another process.
    #[error("`{key}` is for `{}`, and this is `{name}`; receive it there", key.consumer())]
    NotConsumer {
        /// The key.
        key: Key,
        /// This process.
        name: Arc<str>,
    },
    /// A name cannot stand in a key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The producer was not reached in time to ask for its incarnation.
    #[error(
        "`{producer}` was not there within {after:?}; start it, or check the URL given to `add_peer`"
    )]
    Absent {
        /// The producer.
        producer: Arc<str>,
        /// The bound.
        after: Duration,
    },
    /// The producer's URL is unknown.
    #[error("nobody said where `{producer}` is; name its URL with `add_peer`")]
    UnknownPeer {
        /// The producer.
        producer: Arc<str>,
    },
    /// Another process is at the producer's URL.
    #[error("`{found}` is where `{producer}` should be; check the URL given to `add_peer`")]
    WrongPeer {
        /// The expected process.
        producer: Arc<str>,
        /// The process that is there.
        found: Arc<str>,
    },
    /// There is no connection to the producer.
    #[error("cannot reach `{producer}`: {error}")]
    Unreachable {
        /// The producer.
        producer: Arc<str>,
        /// The reason.
        error: ConnectError,
    },
    /// The producer is gone, or does not answer as it should.
    #[error("cannot receive from `{producer}`: {error}")]
    Call {
        /// The producer.
        producer: Arc<str>,
        /// The reason.
        error: CallError,
    },
}

/// A rendezvous was aborted: all sends and receives at it, waiting or later, fail with this.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the rendezvous of `{by}` was aborted: {reason}")]
#[non_exhaustive]
pub struct Aborted {
    /// The process whose rendezvous it was.
    pub by: Arc<str>,
    /// The reason, in the text of whoever aborted it.
    pub reason: Arc<str>,
}

/// Why there is no rendezvous.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Its name, or a peer's, cannot stand in a key.
    #[error(transparent)]
    Name(#[from] KeyError),
    /// It was made outside a tokio runtime.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// The system gives no random number for the incarnation.
    #[error("the system gives no random number: {0}; name the incarnation with `incarnation`")]
    Random(Arc<str>),
}
