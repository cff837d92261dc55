//! What a handler returned, encoded on the spot: its value need not be `Send` or live any longer.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::encoder::{Encoded, Encoder};
use super::error::{DecodeError, EncodeError, Subject};
use crate::context::within_call;
use crate::header::FailureCode;
use crate::observe::ServerStats;
use crate::remote::{EncodedReferences, MINE, Referent};
use crate::scratch;

/// Bytes kept free at the front of a reply's metadata for the header of the call.
pub const REPLY_HEADER: usize = 12;

/// What became of a call: what its method returned, or why it was not run.
#[derive(Clone, Debug)]
pub struct Reply {
    outcome: Returned,
    /// What was measured, for a caller who asks.
    figures: Option<Box<ServerStats>>,
}

/// See [`Reply`].
#[derive(Clone, Debug)]
pub(crate) enum Returned {
    /// The method returned this value. The metadata begins with [`REPLY_HEADER`] zero bytes.
    Value(Encoded),
    /// The method returned this error of its own. Likewise.
    Error(Encoded),
    /// The method returned what cannot be sent.
    Unsendable(EncodeError),
    /// The method was not run: its arguments make no sense.
    BadArguments(DecodeError),
    /// There is no result, for this reason.
    Failed(FailureCode, String),
}

impl Reply {
    /// The reply of a method that returns a `T`.
    pub fn value<T: Serialize + DeserializeOwned>(value: T) -> Self {
        Self::of(&value)
    }

    /// A copy of a value that stays.
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

    /// A reference to a value of this side's, as the reply to `call`.
    pub(crate) fn reference(call: u64, referent: Arc<dyn Referent>) -> Self {
        let mut reply =
            Self::encode::<(u8, u64, u32)>(Subject::Reply, &(MINE, call, 0), Returned::Value);
        if let Returned::Value(encoded) = &mut reply.outcome {
            encoded.met = Some(Box::new(EncodedReferences {
                exports: vec![referent],
                ..EncodedReferences::default()
            }));
        }
        reply
    }

    /// The reply of a method that returned this error.
    pub(crate) fn error<E: Serialize + DeserializeOwned>(error: &E) -> Self {
        Self::encode(Subject::Error, error, Returned::Error)
    }

    /// The reply of a method whose result does not suit calls.
    pub(crate) fn unsendable(error: EncodeError) -> Self {
        Self::ended(Returned::Unsendable(error))
    }

    /// The reply to a call that has no result.
    pub(crate) fn failed(code: FailureCode, reason: String) -> Self {
        Self::ended(Returned::Failed(code, reason))
    }

    /// The reply to a call whose arguments make no sense.
    pub fn bad_arguments(error: DecodeError) -> Self {
        Self::ended(Returned::BadArguments(error))
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
            figures: None,
        }
    }

    /// Whether the method ran, and returned no value: running it again may end otherwise.
    pub(crate) fn is_of_the_method(&self) -> bool {
        !matches!(
            self.outcome,
            Returned::Value(_) | Returned::Failed(FailureCode::Overloaded, _)
        )
    }

    pub(crate) fn outcome(&self) -> &Returned {
        &self.outcome
    }

    /// Has figures go with it.
    pub(crate) fn measured(&mut self, figures: ServerStats) {
        self.figures = Some(Box::new(figures));
    }

    pub(crate) fn take_figures(&mut self) -> Option<Box<ServerStats>> {
        self.figures.take()
    }

    pub(crate) fn into_outcome(self) -> Returned {
        self.outcome
    }

    fn encode<T: Serialize + DeserializeOwned>(
        subject: Subject,
        value: &T,
        outcome: impl FnOnce(Encoded) -> Returned,
    ) -> Self {
        // Room for the call's header, so that it and the value share one vector.
        let mut header = scratch::take();
        header.resize(REPLY_HEADER, 0);
        let mut encoder = Encoder::after(header).about(subject);
        let (written, met) = within_call(|| encoder.write::<T, T>(value));
        let outcome = match written {
            Ok(()) => outcome(Encoded {
                met,
                ..encoder.finish()
            }),
            Err(error) => Returned::Unsendable(error),
        };
        Self::ended(outcome)
    }
}
