//! A handler's result, encoded at once: the value need not be `Send`, nor outlive that.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::encoder::{Encoded, Encoder};
use super::error::{DecodeError, EncodeError, Fault, Subject};
use crate::context::within_call;
use crate::header::FailureCode;
use crate::observe::ServerStats;
use crate::remote::{EncodedReferences, Exports, IN_ERROR, MINE, RESULT, Referent};
use crate::scratch;

/// Bytes kept free at the front of a reply's metadata for the header of the call.
pub const REPLY_HEADER: usize = 12;

/// The outcome of a call: the method's result, or why it was not run.
#[derive(Clone, Debug)]
pub struct Reply {
    outcome: Returned,
    /// The measurements, for a caller who asked for them.
    server_stats: Option<Box<ServerStats>>,
}

/// See [`Reply`].
#[derive(Clone, Debug)]
pub(crate) enum Returned {
    /// The method returned this value. The metadata begins with [`REPLY_HEADER`] zero bytes.
    Value(Encoded),
    /// The method returned this error of its own. The metadata begins with the same zero bytes.
    Error(Encoded),
    /// The method returned a value that cannot be sent.
    Unsendable(EncodeError),
    /// The method was not run, because its arguments cannot be decoded.
    BadArguments(DecodeError),
    /// There is no result, for this reason.
    Failed(FailureCode, String),
}

impl Reply {
    /// The reply of a method that returns a `T`.
    pub fn value<T: Serialize + DeserializeOwned>(value: T) -> Self {
        Self::of(&value)
    }

    /// The reply with a copy of a value that stays here.
    pub(crate) fn of<T: Serialize + DeserializeOwned>(value: &T) -> Self {
        Self::encode(Subject::Reply, value, Returned::Value)
    }

    /// The reply of a method that returns a `Result`.
    pub fn result<T, E>(result: Result<T, E>) -> Self
    where
        T: Serialize + DeserializeOwned,
        E: Serialize + DeserializeOwned,
    {
        match result {
            Ok(value) => Self::of(&value),
            Err(error) => Self::error(&error),
        }
    }

    /// A reference to a value of this end, as the reply to `call`.
    pub(crate) fn reference(call: u64, referent: Referent) -> Self {
        let mut reply =
            Self::encode::<(u8, u64, u32)>(Subject::Reply, &(MINE, call, RESULT), Returned::Value);
        if let Returned::Value(encoded) = &mut reply.outcome {
            encoded.references = Some(Box::new(EncodedReferences {
                exports: Exports::one(referent),
                ..EncodedReferences::default()
            }));
        }
        reply
    }

    /// The reply of a method that returned this error.
    pub(crate) fn error<E: Serialize + DeserializeOwned>(error: &E) -> Self {
        Self::encode(Subject::Error, error, Returned::Error)
    }

    /// The reply of a method whose result calls cannot carry.
    pub(crate) fn unsendable(error: EncodeError) -> Self {
        Self::ended(Returned::Unsendable(error))
    }

    /// The reply to a call that has no result.
    pub(crate) fn failed(code: FailureCode, reason: String) -> Self {
        Self::ended(Returned::Failed(code, reason))
    }

    /// The reply to a call whose arguments cannot be decoded.
    pub fn bad_arguments(error: DecodeError) -> Self {
        match error.fault() {
            Fault::OutOfMemory { others: true, .. } => {
                Self::failed(FailureCode::Overloaded, error.to_string())
            }
            _ => Self::ended(Returned::BadArguments(error)),
        }
    }

    /// The reply to a call of a method that the service does not have at this position of its schema.
    pub fn unknown_method(method: usize) -> Self {
        Self::failed(
            FailureCode::Unimplemented,
            format!("method number {method}"),
        )
    }

    fn ended(outcome: Returned) -> Self {
        Self {
            outcome,
            server_stats: None,
        }
    }

    /// Whether the call gave no value, for another reason than overload: running it again may end otherwise.
    pub(crate) fn is_of_the_method(&self) -> bool {
        !matches!(
            self.outcome,
            Returned::Value(_) | Returned::Failed(FailureCode::Overloaded, _)
        )
    }

    /// Adds measurements.
    pub(crate) fn measured(&mut self, server_stats: ServerStats) {
        self.server_stats = Some(Box::new(server_stats));
    }

    pub(crate) fn take_server_stats(&mut self) -> Option<Box<ServerStats>> {
        self.server_stats.take()
    }

    pub(crate) fn into_outcome(self) -> Returned {
        self.outcome
    }

    fn encode<T: Serialize + DeserializeOwned>(
        subject: Subject,
        value: &T,
        outcome: impl FnOnce(Encoded) -> Returned,
    ) -> Self {
        // Leave room for the call's header, so that header and value share one vector.
        let mut header = scratch::take();
        header.resize(REPLY_HEADER, 0);
        let mut encoder = Encoder::after(header).about(subject);
        let first = match subject {
            Subject::Error => IN_ERROR,
            _ => RESULT,
        };
        let (written, references) = within_call(first, || encoder.write::<T, T>(value));
        let outcome = match written {
            Ok(()) => outcome(Encoded {
                references,
                ..encoder.finish()
            }),
            Err(error) => Returned::Unsendable(error),
        };
        Self::ended(outcome)
    }
}
