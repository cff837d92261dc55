//! What an attempt's error means for a retry, and for the replica: a pure function.

use tensorpipe::{Error, Misuse};

use crate::error::CallError;

/// See the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// No retry: any replica would fail alike, or nobody can tell.
    Final,
    /// The replica takes no more calls: it is gone, silent, or shutting down.
    Gone,
    /// The replica does not take this call, or lost it; it goes on.
    NotHere,
    /// The replica cannot take this call, and it cost its server no work.
    Unfit,
}

pub(super) fn verdict(error: &CallError) -> Verdict {
    match error {
        CallError::ShuttingDown => Verdict::Gone,
        CallError::Overloaded(_) => Verdict::NotHere,
        // This server is older than the others.
        CallError::Unimplemented(_) => Verdict::Unfit,
        // Each replica has its own route and channels.
        CallError::NoPlace {
            may_have_run: false,
            ..
        } => Verdict::Unfit,
        CallError::Connection { error, .. } => match error {
            // As above. If the pipe notices late, some tensors have moved: that costs bandwidth, but no handler ran.
            Error::Misuse(Misuse::NotAsRequired { .. }) => Verdict::Unfit,
            // Each replica has its own limits and channels, too.
            Error::Misuse(Misuse::TooLarge { .. } | Misuse::OutOfReach { .. }) => Verdict::Unfit,
            // Its pipe is full: it does not read.
            Error::Misuse(Misuse::TooManyWrites(_)) => Verdict::NotHere,
            // The fault is on this end, so any server would fail alike.
            Error::Misuse(_) | Error::OutOfMemory { .. } => Verdict::Final,
            Error::GoingAway { .. } => Verdict::Gone,
            error if error.ends_pipe() => Verdict::Gone,
            _ => Verdict::NotHere,
        },
        _ => Verdict::Final,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tensorpipe::{Device, ResetCode};

    use super::*;
    use crate::error::PlaceError;

    fn connection(error: Error) -> CallError {
        CallError::Connection {
            error,
            may_have_run: true,
        }
    }

    #[test]
    fn each_error_has_its_verdict() {
        let pipe = || "p".into();
        let lost = Error::Lost {
            pipe: pipe(),
            reason: "cut".into(),
        };
        let silent = Error::Silent {
            pipe: pipe(),
            silence: Duration::from_secs(10),
        };
        let going = Error::GoingAway {
            pipe: pipe(),
            reason: "bye".into(),
        };
        for gone in [lost, silent, going] {
            assert_eq!(verdict(&connection(gone)), Verdict::Gone);
        }
        assert_eq!(verdict(&CallError::ShuttingDown), Verdict::Gone);
        let full = Misuse::TooManyWrites(1).into();
        assert_eq!(verdict(&connection(full)), Verdict::NotHere);
        let refused = Error::Refused {
            code: ResetCode::Failed,
            reason: "behind".into(),
        };
        let required = Error::from(Misuse::NotAsRequired {
            what: "tensor 0".into(),
            required: "lease".into(),
            instead: "basic".into(),
            reason: "another machine".into(),
        });
        let too_large = Misuse::TooLarge {
            what: "bytes of a tensor",
            found: 2,
            limit: 1,
            field: "tensor",
        };
        let out_of_reach = Misuse::OutOfReach {
            what: "tensor 0".into(),
            device: Device::CPU,
            reason: "no channel reaches it".into(),
        };
        let no_place = |may_have_run| CallError::NoPlace {
            error: PlaceError::There("no such device".into()),
            may_have_run,
        };
        for error in [connection(refused), CallError::Overloaded("busy".into())] {
            assert_eq!(verdict(&error), Verdict::NotHere, "{error:?}");
        }
        let unfit = [
            no_place(false),
            connection(required),
            connection(too_large.into()),
            connection(out_of_reach.into()),
            CallError::Unimplemented("old".into()),
        ];
        for error in unfit {
            assert_eq!(verdict(&error), Verdict::Unfit, "{error:?}");
        }
        let after = Duration::from_secs(1);
        let last = [
            connection(Misuse::NoRuntime.into()),
            CallError::late(after, false),
            no_place(true),
            CallError::Panicked {
                message: "oh".into(),
                method: "Store::push".into(),
            },
            CallError::BadArguments("what".into()),
            CallError::Other("new".into()),
        ];
        for error in last {
            assert_eq!(verdict(&error), Verdict::Final, "{error:?}");
        }
    }
}
