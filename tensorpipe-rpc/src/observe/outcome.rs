//! How a call ended, in one word, and how serious that is.

use tracing::Level;

use crate::error::CallError;
use crate::header::FailureCode;

/// The word for an outcome, and the log level that it deserves.
pub(crate) type Verdict = (&'static str, Level);

pub(super) const OK: &str = "ok";
pub(super) const SERVICE_ERROR: Verdict = ("service_error", Level::DEBUG);
pub(super) const CANCELLED: Verdict = ("cancelled", Level::DEBUG);
pub(crate) const DEADLINE: Verdict = ("deadline", Level::WARN);
pub(super) const NO_PLACE: Verdict = ("no_place", Level::WARN);
pub(super) const PANICKED: Verdict = ("panicked", Level::ERROR);

/// The verdict on a call made here.
pub(crate) fn of_error<E>(error: &CallError<E>) -> Verdict {
    match error {
        CallError::Service(_) => SERVICE_ERROR,
        CallError::Panicked { .. } => PANICKED,
        CallError::Overloaded(_) => of_failure(FailureCode::Overloaded),
        CallError::Denied(_) => of_failure(FailureCode::Denied),
        CallError::Unimplemented(_) => of_failure(FailureCode::Unimplemented),
        CallError::Deadline { .. } => DEADLINE,
        CallError::ShuttingDown => of_failure(FailureCode::ShuttingDown),
        CallError::Encode(_) => ("encode", Level::WARN),
        CallError::BadArguments(_) => of_failure(FailureCode::BadArguments),
        CallError::BadReply(_) => of_failure(FailureCode::BadReply),
        CallError::Decode(_) => ("decode", Level::ERROR),
        CallError::Connection { .. } => ("connection", Level::WARN),
        CallError::Unavailable { .. } => ("unavailable", Level::WARN),
        CallError::Unresolved(_) => of_failure(FailureCode::Unresolved),
        CallError::NoPlace { .. } => NO_PLACE,
        CallError::Other(_) => ("other", Level::WARN),
    }
}

/// The verdict on a call that a server answered with this failure.
pub(crate) fn of_failure(code: FailureCode) -> Verdict {
    match code {
        FailureCode::Panicked => PANICKED,
        FailureCode::Overloaded => ("overloaded", Level::WARN),
        FailureCode::Denied => ("denied", Level::WARN),
        FailureCode::Unimplemented => ("unimplemented", Level::WARN),
        FailureCode::BadArguments => ("bad_arguments", Level::WARN),
        FailureCode::Deadline => DEADLINE,
        FailureCode::ShuttingDown => ("shutting_down", Level::WARN),
        FailureCode::BadReply => ("bad_reply", Level::ERROR),
        FailureCode::Unresolved => ("unresolved", Level::WARN),
        FailureCode::NoPlace | FailureCode::NoPlaceForResult => NO_PLACE,
        FailureCode::Mismatch
        | FailureCode::NoService
        | FailureCode::BadItem
        | FailureCode::Other => ("other", Level::WARN),
    }
}
