//! How a call ended, in one word, and who is to blame.

use tracing::Level;

use crate::codec::Outcome;
use crate::error::CallError;
use crate::header::FailureCode;

/// A word for it, and how bad it is for whoever looks after the system.
pub(super) type Verdict = (&'static str, Level);

pub(super) const OK: &str = "ok";
pub(super) const SERVICE_ERROR: Verdict = ("service_error", Level::DEBUG);
pub(super) const CANCELLED: Verdict = ("cancelled", Level::DEBUG);
pub(super) const DEADLINE: Verdict = ("deadline", Level::WARN);
pub(super) const NO_PLACE: Verdict = ("no_place", Level::WARN);
pub(super) const PANICKED: Verdict = ("panicked", Level::ERROR);

/// Of a call made here.
pub(super) fn of_error<E>(error: &CallError<E>) -> Verdict {
    match error {
        CallError::Service(_) => SERVICE_ERROR,
        CallError::Panicked(_) => PANICKED,
        CallError::Overloaded(_) => ("overloaded", Level::WARN),
        CallError::Unimplemented(_) => ("unimplemented", Level::WARN),
        CallError::Deadline { .. } => DEADLINE,
        CallError::ShuttingDown => ("shutting_down", Level::WARN),
        CallError::Encode(_) => ("encode", Level::WARN),
        CallError::BadArguments(_) => ("bad_arguments", Level::WARN),
        CallError::BadReply(_) => ("bad_reply", Level::ERROR),
        CallError::Decode(_) => ("decode", Level::ERROR),
        CallError::Connection { .. } => ("connection", Level::WARN),
        CallError::Unavailable { .. } => ("unavailable", Level::WARN),
        CallError::Unresolved(_) => ("unresolved", Level::WARN),
        CallError::NoPlace { .. } => NO_PLACE,
        CallError::Other(_) => ("other", Level::WARN),
    }
}

/// Of a handler that is ready; `None` if all is well.
pub(super) fn of_reply(reply: &Outcome) -> Option<(Verdict, String)> {
    let verdict = match reply {
        Outcome::Value(_) => return None,
        Outcome::Error(_) => (SERVICE_ERROR, "the method's own".to_owned()),
        Outcome::Unsendable(error) => (("bad_reply", Level::ERROR), error.to_string()),
        Outcome::Refused(reason) => (("bad_reply", Level::ERROR), reason.clone()),
        Outcome::NoPlace(reason) => (NO_PLACE, reason.clone()),
        Outcome::BadArguments(error) => (("bad_arguments", Level::WARN), error.to_string()),
        Outcome::Panicked(text) => (PANICKED, text.clone()),
        Outcome::Unfit(reason) => (("bad_arguments", Level::WARN), reason.clone()),
        Outcome::Overloaded(reason) => (("overloaded", Level::WARN), reason.clone()),
        Outcome::UnknownMethod(_) => (("unimplemented", Level::WARN), "no such method".to_owned()),
    };
    Some(verdict)
}

/// Of a call that was refused on its header.
pub(crate) fn of_failure(code: FailureCode) -> &'static str {
    match code {
        FailureCode::Overloaded => "overloaded",
        FailureCode::Unimplemented => "unimplemented",
        FailureCode::ShuttingDown => "shutting_down",
        FailureCode::BadArguments => "bad_arguments",
        _ => "other",
    }
}
