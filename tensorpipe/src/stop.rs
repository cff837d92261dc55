//! Named points at which a process stops itself, so that a test can kill it exactly there.
//!
//! With the feature `conformance`, the variable `TENSORPIPE_STOP_AT` names one point, as `NAME` or, for the n-th time that
//! it is reached, `NAME:N`. There the process prints `@stopped NAME` on a line of its own and stops as a whole (SIGSTOP), with its
//! sockets open. Without the feature the points are empty functions.

/// After the connection is there, before a byte is sent.
pub(crate) const CONNECTED: &str = "connected";
/// HELLO is with the system.
pub(crate) const HELLO_SENT: &str = "hello-sent";
/// HELLO is here, and not answered.
pub(crate) const HELLO_RECEIVED: &str = "hello-received";
/// ANSWER is with the system, and the pipe not open.
pub(crate) const ANSWER_SENT: &str = "answer-sent";
/// ANSWER is here, and nothing done about it.
pub(crate) const ANSWER_RECEIVED: &str = "answer-received";
/// The connection to upgrade to is there (over `shm`: with its memory), before a byte is sent.
pub(crate) const JOIN_CONNECTED: &str = "join-connected";
/// The connection to upgrade to has introduced itself.
pub(crate) const JOIN_SENT: &str = "join-sent";
/// The connection to upgrade to is here, and its pipe does not know.
pub(crate) const JOIN_RECEIVED: &str = "join-received";
/// A MESSAGE frame is with the system.
pub(crate) const MESSAGE_SENT: &str = "message-sent";
/// The first half of what is sent with a MESSAGE frame is with the system.
pub(crate) const MESSAGE_HALF_SENT: &str = "message-half-sent";
/// More than [`SOME`] bytes are with the system: a large tensor is on its way.
pub(crate) const TENSOR_HALF_SENT: &str = "tensor-half-sent";
/// More than [`SOME`] bytes are here.
pub(crate) const TENSOR_HALF_RECEIVED: &str = "tensor-half-received";
/// A go-ahead is with the system.
pub(crate) const GRANT_SENT: &str = "grant-sent";
/// The first piece of a tensor has been read out of the writer's memory, and others have not.
pub(crate) const MEMORY_HALF_READ: &str = "memory-half-read";
/// FIN is with the system.
pub(crate) const FIN_SENT: &str = "fin-sent";

/// In bytes.
pub(crate) const SOME: u64 = 1 << 20;

#[cfg(not(feature = "conformance"))]
#[inline(always)]
pub(crate) fn at(_: &'static str) {}

#[cfg(not(feature = "conformance"))]
#[inline(always)]
pub(crate) fn is_next(_: &'static str) -> bool {
    false
}

#[cfg(not(feature = "conformance"))]
#[inline(always)]
pub(crate) fn is_armed(_: &'static str) -> bool {
    false
}

#[cfg(not(feature = "conformance"))]
#[inline(always)]
pub(crate) fn is_any_armed() -> bool {
    false
}

#[cfg(feature = "conformance")]
pub(crate) use armed::{at, is_any_armed, is_armed, is_next};

#[cfg(feature = "conformance")]
mod armed {
    use std::io::Write;
    use std::sync::OnceLock;

    use crate::sync::{AtomicU64, Ordering};

    struct Armed {
        name: String,
        /// How often it is still passed before the stop.
        left: AtomicU64,
    }

    fn armed(name: &str) -> Option<&'static Armed> {
        any().filter(|armed| armed.name == name)
    }

    fn any() -> Option<&'static Armed> {
        static ARMED: OnceLock<Option<Armed>> = OnceLock::new();
        let armed = ARMED.get_or_init(|| {
            let value = std::env::var("TENSORPIPE_STOP_AT").ok()?;
            let (name, times) = value.split_once(':').unwrap_or((&value, "1"));
            Some(Armed {
                name: name.to_owned(),
                left: AtomicU64::new(times.parse().unwrap_or(1)),
            })
        });
        armed.as_ref()
    }

    /// Whether the process is to stop some time, wherever.
    pub(crate) fn is_any_armed() -> bool {
        any().is_some()
    }

    /// Whether the process is to stop at `name` some time.
    pub(crate) fn is_armed(name: &'static str) -> bool {
        armed(name).is_some()
    }

    /// Whether it does when it gets there next.
    pub(crate) fn is_next(name: &'static str) -> bool {
        armed(name).is_some_and(|armed| armed.left.load(Ordering::SeqCst) == 1)
    }

    /// Stops here, if this is the point.
    pub(crate) fn at(name: &'static str) {
        let Some(armed) = armed(name) else { return };
        if armed.left.fetch_sub(1, Ordering::SeqCst) != 1 {
            return;
        }
        // Not through `println!`, whose output a test harness may keep.
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "\n@stopped {name}");
        let _ = out.flush();
        drop(out);
        let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGSTOP);
    }
}
