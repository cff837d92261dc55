//! Why a server has no result, as its caller hears it.
//!
//! The words are a peer's: they are shortened, and do not move the cursor of a terminal.

use std::sync::Arc;

use super::Body;
use super::calls::Outcome;
use super::slot::CallSlot;
use crate::error::{CallError, PlaceError, printable};
use crate::header::FailureCode;

/// How a call has ended that its server answers with this.
pub(super) fn failure(code: FailureCode, body: &Body, slot: &CallSlot) -> Outcome {
    let text: Arc<str> = printable(&body.metadata, SHOWN).into();
    Outcome::Failed(match code {
        FailureCode::Panicked => CallError::Panicked(text),
        FailureCode::Overloaded => CallError::Overloaded(text),
        FailureCode::Denied => CallError::Denied(text),
        FailureCode::Unimplemented => CallError::Unimplemented(text),
        FailureCode::BadArguments => CallError::BadArguments(text),
        FailureCode::Deadline => CallError::Deadline {
            after: slot.bound(),
        },
        FailureCode::ShuttingDown => CallError::ShuttingDown,
        FailureCode::BadReply => CallError::BadReply(text),
        FailureCode::Mismatch | FailureCode::NoService => return Outcome::NotBound(code, text),
        FailureCode::Unresolved => CallError::Unresolved(text),
        FailureCode::NoPlace | FailureCode::NoPlaceForResult => CallError::NoPlace {
            error: PlaceError::There(text),
            may_have_run: code == FailureCode::NoPlaceForResult,
        },
        FailureCode::BadItem | FailureCode::Other(_) => CallError::Other(text),
    })
}

/// How much of a server's words is shown, in bytes.
const SHOWN: usize = 16 << 10;
