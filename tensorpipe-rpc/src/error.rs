//! Why a call has no result, and why a client has no connection.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::codec::{DecodeError, EncodeError};
use crate::schema::Method;

/// Why a call has no result. `E` is the method's own error, if it has one; derive `thiserror::Error` for it. If `E` is `Debug` and
/// `Display`, this is an [`Error`](std::error::Error), so `?` converts it into `anyhow::Error` or a `Box<dyn Error>`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CallError<E = Infallible> {
    /// What the method itself returned.
    Service(E),
    /// The method panicked. It ran in part; the server goes on.
    Panicked {
        /// The panic's message.
        message: Arc<str>,
        /// The method, as `Service::method`. Empty if it is not known.
        method: Arc<str>,
    },
    /// The server has too much to do; the method did not run. The text is the server's.
    Overloaded(Arc<str>),
    /// The server does not let this caller call the method ([`Builder::authorize`](crate::Builder::authorize)); it did not run. The
    /// text is the server's, and names the identity under which it saw the caller.
    Denied(Arc<str>),
    /// The server has no such method: it was built with another version of the service.
    Unimplemented(Arc<str>),
    /// Time was up for a call, or for the whole of a stream: 60 s, or what the client's `with_deadline` says. The method may have
    /// run, unless there was no time from the beginning. If no replica was live in that time, the error is
    /// [`CallError::Unavailable`].
    #[non_exhaustive]
    Deadline {
        /// The bound. If the server gave the call up earlier ([`ServerLimits::longest_call`](crate::ServerLimits::longest_call)), how
        /// long it took.
        after: Duration,
        /// Tensors or payloads of the call, or of its answer, were still on their way: the network may be slow, or silently drop
        /// large packets.
        moving: bool,
        /// Whether the method may have run: `false` if there was no time when the call was made.
        may_have_run: bool,
        /// The items that had come by then, if the method answers with a stream.
        items: Option<u64>,
        /// The method, as `Service::method`. Empty if it is not known.
        method: Arc<str>,
    },
    /// The server is shutting down; the method did not run. Call another server.
    ShuttingDown,
    /// An argument cannot be sent, so nothing was sent.
    Encode(EncodeError),
    /// The server cannot use the arguments: it cannot decode them, or cannot join them to a batch. The method did not run. The text is
    /// the server's.
    BadArguments(Arc<str>),
    /// The method ran, but the server could not send its result. The text is the server's.
    BadReply(Arc<str>),
    /// The method ran, but its reply cannot be decoded here.
    Decode(DecodeError),
    /// The connection ended before the answer, or did not take the call.
    Connection {
        /// How it failed.
        error: tensorpipe::Error,
        /// Whether the method may have run.
        may_have_run: bool,
    },
    /// No replica could be called in time. Calls with a stream do not wait for one: they fail at once.
    Unavailable {
        /// The last error of each replica.
        replicas: Arc<[ReplicaError]>,
        /// Whether the method may have run on a replica that was lost.
        may_have_run: bool,
    },
    /// An argument refers to a value that does not exist: the call that was to make it failed, or its holder has released it. The
    /// method did not run. The text is the server's.
    Unresolved(Arc<str>),
    /// A tensor cannot be where the caller wants it: by a `#[tensor(device = "…")]`, a [`DeviceMap`](crate::DeviceMap) or
    /// [`Remote::fetch_to`](crate::Remote::fetch_to).
    NoPlace {
        /// Why not, and what to do.
        error: PlaceError,
        /// Whether the method may have run.
        may_have_run: bool,
    },
    /// Another reason, for example an item of a stream argument that the server could not decode. The text is the server's.
    Other(Arc<str>),
}

/// Why a tensor of a call cannot be where its caller wants it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// This end could not send it there, or could not receive a result there:
    /// [`Misuse::OutOfReach`](tensorpipe::Misuse::OutOfReach), [`Misuse::NotAsRequired`](tensorpipe::Misuse::NotAsRequired) or [`Misuse::NoAllocator`](tensorpipe::Misuse::NoAllocator).
    #[error(transparent)]
    Here(tensorpipe::Misuse),
    /// The server could not receive it there, or could not send a result there. The text is the server's.
    #[error("at the server {0}")]
    There(Arc<str>),
}

/// Why one of several replicas cannot be called.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReplicaError {
    /// The replica's URL.
    pub url: Arc<str>,
    /// The last error; `None` if there was none yet.
    pub error: Option<ConnectError>,
}

impl<E> CallError<E> {
    /// Whether the method may have run, in part or whole. If so, only an idempotent method can simply be called again.
    pub fn may_have_run(&self) -> bool {
        match self {
            Self::Service(_)
            | Self::Panicked { .. }
            | Self::BadReply(_)
            | Self::Decode(_)
            | Self::Other(_) => true,
            Self::Deadline { may_have_run, .. }
            | Self::Connection { may_have_run, .. }
            | Self::Unavailable { may_have_run, .. }
            | Self::NoPlace { may_have_run, .. } => *may_have_run,
            Self::Overloaded(_)
            | Self::Denied(_)
            | Self::Unimplemented(_)
            | Self::ShuttingDown
            | Self::Encode(_)
            | Self::BadArguments(_)
            | Self::Unresolved(_) => false,
        }
    }
}

impl<E> CallError<E> {
    /// Converts the method's own error.
    pub fn map_service<F>(self, map: impl FnOnce(E) -> F) -> CallError<F> {
        match self {
            Self::Service(error) => CallError::Service(map(error)),
            Self::Panicked { message, method } => CallError::Panicked { message, method },
            Self::Overloaded(reason) => CallError::Overloaded(reason),
            Self::Denied(reason) => CallError::Denied(reason),
            Self::Unimplemented(reason) => CallError::Unimplemented(reason),
            Self::Deadline {
                after,
                moving,
                may_have_run,
                items,
                method,
            } => CallError::Deadline {
                after,
                moving,
                may_have_run,
                items,
                method,
            },
            Self::ShuttingDown => CallError::ShuttingDown,
            Self::Encode(error) => CallError::Encode(error),
            Self::BadArguments(reason) => CallError::BadArguments(reason),
            Self::BadReply(reason) => CallError::BadReply(reason),
            Self::Decode(error) => CallError::Decode(error),
            Self::Connection {
                error,
                may_have_run,
            } => CallError::Connection {
                error,
                may_have_run,
            },
            Self::Unavailable {
                replicas,
                may_have_run,
            } => CallError::Unavailable {
                replicas,
                may_have_run,
            },
            Self::Unresolved(reason) => CallError::Unresolved(reason),
            Self::NoPlace {
                error,
                may_have_run,
            } => CallError::NoPlace {
                error,
                may_have_run,
            },
            Self::Other(reason) => CallError::Other(reason),
        }
    }
}

impl CallError {
    /// Time was up after `after`.
    pub(crate) fn late(after: Duration, moving: bool) -> Self {
        Self::Deadline {
            after,
            moving,
            may_have_run: true,
            items: None,
            method: Arc::default(),
        }
    }

    /// There was no time when the call was made.
    pub(crate) fn no_time() -> Self {
        Self::Deadline {
            after: Duration::ZERO,
            moving: false,
            may_have_run: false,
            items: None,
            method: Arc::default(),
        }
    }

    /// The same error, which names the method that was called.
    #[cold]
    pub(crate) fn in_call(mut self, called: &Method) -> Self {
        let Method { service, name, .. } = called;
        match &mut self {
            Self::Deadline { method, .. } | Self::Panicked { method, .. } => {
                *method = format!("{service}::{name}").into();
            }
            Self::Unimplemented(what) => *what = format!("method `{service}::{name}`").into(),
            _ => {}
        }
        self
    }

    /// The error of a call whose message failed on the pipe. `placed`: the caller wants tensors on a device.
    pub(crate) fn of_pipe(error: tensorpipe::Error, placed: bool, may_have_run: bool) -> Self {
        match no_place(&error) {
            Some(misuse) if placed => Self::NoPlace {
                error: PlaceError::Here(misuse.clone()),
                may_have_run,
            },
            _ => Self::Connection {
                error,
                may_have_run,
            },
        }
    }

    /// The same error, for a method that has an error of its own.
    pub(crate) fn without_service<E>(self) -> CallError<E> {
        self.map_service(|never| match never {})
    }
}

impl<E: fmt::Display> fmt::Display for CallError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(error) => error.fmt(f),
            Self::Panicked { message, method } => {
                write!(f, "{} panicked: {message}", named(method))
            }
            Self::Overloaded(reason) => {
                write!(f, "the server has enough to do: {reason}; call again later")
            }
            Self::Denied(reason) => write!(f, "permission denied: {reason}"),
            Self::Unimplemented(what) => {
                write!(
                    f,
                    "the server has no {what}; it was built with another version of the service"
                )
            }
            Self::Deadline {
                may_have_run: false,
                method,
                ..
            } => write!(
                f,
                "{} did not run: it was given no time; `with_deadline` gives it some",
                named(method)
            ),
            Self::Deadline {
                after,
                items: Some(items),
                method,
                ..
            } => write!(
                f,
                "the stream of {} had not ended after {after:?} ({items} items came); the deadline is for the whole stream: raise it by `with_deadline`",
                named(method)
            ),
            Self::Deadline {
                after,
                moving,
                method,
                ..
            } => {
                write!(
                    f,
                    "no answer within {after:?}; {} may have run. `with_deadline` gives it more time",
                    named(method)
                )?;
                match moving {
                    true => f.write_str(
                        "; its tensors were still on their way: if none arrive, compare the MTU along that way, where large packets may vanish",
                    ),
                    false => Ok(()),
                }
            }
            Self::ShuttingDown => f.write_str(
                "the server is shutting down; the method did not run, call another server",
            ),
            Self::Encode(error) => error.fmt(f),
            Self::BadArguments(reason) => {
                write!(f, "the server cannot use the arguments: {reason}")
            }
            Self::BadReply(reason) => write!(
                f,
                "the method ran, but its result could not be sent: {reason}"
            ),
            Self::Decode(error) => error.fmt(f),
            Self::Connection {
                error,
                may_have_run,
            } => {
                write!(f, "{error}; the method {}", ran(*may_have_run))
            }
            Self::Unavailable {
                replicas,
                may_have_run,
            } => {
                write!(
                    f,
                    "{}; the method {}",
                    none_of(replicas),
                    ran(*may_have_run)
                )
            }
            Self::Unresolved(reason) => write!(f, "a reference cannot be used: {reason}"),
            Self::NoPlace {
                error,
                may_have_run,
            } => {
                write!(f, "{error}; the method {}", ran(*may_have_run))
            }
            Self::Other(reason) => f.write_str(reason),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for CallError<E> {}

/// A peer's text, to be shown to a person: at most `most` bytes of it, without what moves a terminal's cursor.
pub(crate) fn printable(words: &[u8], most: usize) -> String {
    let words = &words[..words.len().min(most)];
    let mut shown = String::with_capacity(words.len());
    for c in String::from_utf8_lossy(words).chars() {
        match c {
            '\n' | '\t' => shown.push(c),
            c if c.is_control() => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown
}

/// The misuse in this error, if it says that a tensor cannot be where it was asked to be.
pub(crate) fn no_place(error: &tensorpipe::Error) -> Option<&tensorpipe::Misuse> {
    use tensorpipe::{Error, Misuse};
    match error {
        Error::Misuse(
            misuse @ (Misuse::OutOfReach { .. }
            | Misuse::NotAsRequired { .. }
            | Misuse::NoAllocator { .. }),
        ) => Some(misuse),
        _ => None,
    }
}

fn named(method: &str) -> impl fmt::Display {
    fmt::from_fn(move |f| match method {
        "" => f.write_str("the method"),
        method => write!(f, "`{method}`"),
    })
}

fn ran(may_have_run: bool) -> &'static str {
    if may_have_run {
        "may have run"
    } else {
        "did not run"
    }
}

/// Lists each replica with its last error. Several are numbered, since an error may have commas and semicolons of its own.
fn none_of(replicas: &[ReplicaError]) -> impl fmt::Display {
    fmt::from_fn(move |f| {
        f.write_str("no server can be called")?;
        for (i, ReplicaError { url, error }) in replicas.iter().enumerate() {
            f.write_str(if i == 0 { ": " } else { "; " })?;
            if replicas.len() > 1 {
                write!(f, "({}) ", i + 1)?;
            }
            match error {
                // This error names the URL itself.
                Some(ConnectError::Pipe(error @ tensorpipe::Error::Connect { .. })) => {
                    write!(f, "{error}")?;
                }
                Some(error) => write!(f, "{url} ({error})")?,
                None => write!(f, "{url} (not there yet)")?,
            }
        }
        Ok(())
    })
}

/// Why a client has no connection to its service.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// There is no pipe to the server.
    #[error(transparent)]
    Pipe(#[from] tensorpipe::Error),
    /// The server has no service of this name.
    #[error("the server at the other end of {pipe} {reason}")]
    NoService {
        /// The pipe.
        pipe: Arc<str>,
        /// What it has. The text is the server's.
        reason: Arc<str>,
    },
    /// Client and server were built from different definitions of the service.
    #[error("{0}")]
    Mismatch(Arc<str>),
    /// The server did not answer whether it has the service.
    #[error("the server did not answer the first question: {0}")]
    Call(CallError),
    /// A replica is connected but does not answer calls: it gets no further ones for a while.
    #[error(
        "the server is there and left {calls} calls in a row without an answer; see what its methods wait for"
    )]
    Unanswered {
        /// Calls that were not answered within their deadlines.
        calls: u32,
    },
    /// A replica's server shuts down: it takes no more calls.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// No replica has the service, or none was live in time.
    #[error("{}", none_of(.0))]
    Unavailable(Arc<[ReplicaError]>),
}
