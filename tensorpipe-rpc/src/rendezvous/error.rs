//! Why a value was not sent, or not received.

use std::sync::Arc;
use std::time::Duration;

use tensorpipe::Misuse;

use super::key::{Key, KeyError};
use crate::error::{CallError, ConnectError};

/// Why a value was not sent. Nothing of it is kept.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The rendezvous was aborted.
    #[error(transparent)]
    Aborted(#[from] Aborted),
    /// The step is over here.
    #[error("step {step} is finished in this process; send before `finish`")]
    Finished {
        /// The step.
        step: u64,
    },
    /// There was a value of this key before.
    #[error(
        "a value was sent as `{0}` before; a key names one value, give the next one another step or name"
    )]
    AlreadySent(Key),
    /// There is no room for what nobody has received yet, and was none for as long as the sender would wait.
    #[error(
        "{held} bytes in {values} values wait to be received, {bytes} more are beyond the bound; receive or finish steps, wait \
         for room with `send_or_wait`, or raise `Limits`"
    )]
    Full {
        /// Bytes held.
        held: u64,
        /// Values held.
        values: usize,
        /// Bytes of the one that was to be sent.
        bytes: u64,
    },
    /// Another process, or another incarnation of this one, makes the values of this key.
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

/// Why a value was not received. Unless it says so, the value is lost to nobody: if it was sent, it stays where it is for the
/// next who asks.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecvError {
    /// The rendezvous here, or the producer's, was aborted. Its values are gone.
    #[error(transparent)]
    Aborted(#[from] Aborted),
    /// The step is over here or at the producer's. Its values are gone.
    #[error("step {step} is finished; receive before `finish`")]
    Finished {
        /// The step.
        step: u64,
    },
    /// Somebody waits for it already.
    #[error("somebody waits for `{0}` already; a value has one receiver")]
    Awaited(Key),
    /// Somebody has it already.
    #[error("`{0}` was received before; a value has one receiver")]
    Received(Key),
    /// Consumers have not said of so many values that they have them, so that no more are lent.
    #[error(
        "{values} values are lent and not known to have arrived; await the receives that are under way, then ask again"
    )]
    Unconfirmed {
        /// How many.
        values: usize,
    },
    /// It was not there in time.
    #[error(
        "`{key}` did not come within {after:?}; its producer is slow or not there, wait longer with `recv_within`"
    )]
    Deadline {
        /// The key.
        key: Key,
        /// The bound.
        after: Duration,
    },
    /// The producer was started again since the key was made: what the earlier one sent is gone with it.
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
    /// The values of this key are for another process.
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
    /// Nobody was there in time to say which incarnation it is.
    #[error(
        "`{producer}` was not there within {after:?}; start it, or check the URL given to `add_peer`"
    )]
    Absent {
        /// The producer.
        producer: Arc<str>,
        /// The bound.
        after: Duration,
    },
    /// Nobody said where the producer is.
    #[error("nobody said where `{producer}` is; name its URL with `add_peer`")]
    UnknownPeer {
        /// The producer.
        producer: Arc<str>,
    },
    /// Another process is at the producer's URL.
    #[error("`{found}` is where `{producer}` should be; check the URL given to `add_peer`")]
    WrongPeer {
        /// Who should be there.
        producer: Arc<str>,
        /// Who is.
        found: Arc<str>,
    },
    /// There is no connection to the producer.
    #[error("cannot reach `{producer}`: {error}")]
    Unreachable {
        /// The producer.
        producer: Arc<str>,
        /// Why.
        error: ConnectError,
    },
    /// The producer is gone, or does not answer as it should.
    #[error("cannot receive from `{producer}`: {error}")]
    Call {
        /// The producer.
        producer: Arc<str>,
        /// Why.
        error: CallError,
    },
}

/// A rendezvous that was given up: everybody who waits at it, and everybody who comes later, is told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the rendezvous of `{by}` was aborted: {reason}")]
#[non_exhaustive]
pub struct Aborted {
    /// Whose it was.
    pub by: Arc<str>,
    /// In the words of whoever aborted it.
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
