//! What this machine refused: the call, what it was applied to, and what the system said.

use std::sync::Arc;

/// A system call that this machine refused.
#[derive(Clone, Debug)]
pub struct SystemError {
    /// The call, e.g. `connect`.
    pub call: &'static str,
    /// What it was applied to, e.g. an address; may be empty.
    pub object: String,
    /// What the system said.
    pub source: Arc<std::io::Error>,
}

impl SystemError {
    /// Wraps what `call` on `object` returned.
    pub fn new(call: &'static str, object: impl Into<String>, source: std::io::Error) -> Self {
        Self {
            call,
            object: object.into(),
            source: Arc::new(source),
        }
    }

    /// The system gave no random bytes.
    pub(crate) fn of_random(error: getrandom::Error) -> Self {
        let code = error.raw_os_error();
        let code = code.map(std::io::Error::from_raw_os_error);
        let other = || std::io::Error::other(error.to_string());
        Self::new("getrandom", "", code.unwrap_or_else(other))
    }

    /// Whether another attempt would be useless: the system lacks the call, or a filter hides it.
    pub(crate) fn is_lasting(&self) -> bool {
        match self.source.raw_os_error() {
            Some(libc::ENOSYS) => true,
            Some(libc::EPERM | libc::EACCES) => self.call == MEMFD,
            _ => false,
        }
    }
}

/// For ordinary pages, only filters and security modules refuse this.
const MEMFD: &str = "memfd_create";

impl std::fmt::Display for SystemError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.call)?;
        if !self.object.is_empty() {
            write!(f, " {}", self.object)?;
        }
        write!(f, ": {}", self.source)?;
        if self.call == MEMFD && self.is_lasting() {
            return write!(
                f,
                "; shared memory needs this call: allow it (most often a seccomp filter hides it), or use `tcp`"
            );
        }
        if self.call == "clone" && self.source.raw_os_error() == Some(libc::EAGAIN) {
            return write!(
                f,
                "; raise the limit of processes (`ulimit -u`, or the container's)"
            );
        }
        if self.call == "listen" && self.source.raw_os_error() == Some(libc::EADDRNOTAVAIL) {
            return write!(
                f,
                "; this machine does not have that address: take one that it has, or `0.0.0.0` or `[::]` for all"
            );
        }
        write!(f, "{}", advice(&self.source))
    }
}

/// What to do about the error, after a semicolon; empty if that is not known.
fn advice(error: &std::io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOSYS) => {
            "; this kernel lacks the call, or a seccomp filter hides it: allow it"
        }
        Some(libc::EMFILE) => "; raise the limit of open files (`ulimit -n`)",
        Some(libc::ENFILE) => "; the machine's files are all open: raise `fs.file-max`",
        Some(libc::EFBIG) => "; raise the limit on the size of files (`ulimit -f`)",
        Some(libc::ENOMEM) => {
            "; free some memory, or raise the limit (`ulimit -v`, or the container's)"
        }
        Some(libc::ENOSPC) => "; free some of what it is to be in, or raise its size",
        Some(libc::ECONNRESET | libc::EPIPE) => {
            "; the peer's process is gone, or has dropped the connection: its log may say why"
        }
        Some(libc::ECONNREFUSED) => {
            "; nobody listens there: start the server, or look whether the address is right"
        }
        Some(libc::EADDRINUSE) => {
            "; something has that address already: choose another one, of tcp another port or 0"
        }
        Some(libc::EACCES | libc::EPERM) => {
            "; this user may not do that, or a sandbox (seccomp, a security module) denies it: allow it"
        }
        _ => "",
    }
}

/// What the system said of a connection, and what to do about it.
pub(crate) fn with_advice(error: &std::io::Error) -> String {
    format!("{error}{}", advice(error))
}

/// Has no `source()`, since the message contains it: reporters that walk the chain would print it twice.
impl std::error::Error for SystemError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_time_heals_is_known_and_says_what_to_do() {
        let error =
            |call, errno| SystemError::new(call, "", std::io::Error::from_raw_os_error(errno));
        for (call, errno, lasting, words) in [
            ("memfd_create", libc::ENOSYS, true, "or use `tcp`"),
            ("memfd_create", libc::EPERM, true, "or use `tcp`"),
            ("memfd_create", libc::EMFILE, false, "ulimit -n"),
            ("ftruncate", libc::EFBIG, false, "ulimit -f"),
            ("pidfd_open", libc::ENOSYS, true, "seccomp"),
            ("connect", libc::EPERM, false, "this user may not"),
            ("connect", libc::EPERM, false, "a sandbox"),
            ("connect", libc::ECONNREFUSED, false, "start the server"),
            ("listen", libc::EADDRNOTAVAIL, false, "`0.0.0.0`"),
            ("clone", libc::EAGAIN, false, "ulimit -u"),
            ("mmap", libc::ENOMEM, false, "ulimit -v"),
        ] {
            let error = error(call, errno);
            assert_eq!(error.is_lasting(), lasting, "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
