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

    /// Whether it is no use to try again: the system has no such call, or a filter hides it.
    pub(crate) fn is_lasting(&self) -> bool {
        match self.source.raw_os_error() {
            Some(libc::ENOSYS) => true,
            Some(libc::EPERM | libc::EACCES) => self.call == MEMFD,
            _ => false,
        }
    }
}

/// Refused by filters and security modules only, to whoever asks for ordinary pages.
const MEMFD: &str = "memfd_create";

impl std::fmt::Display for SystemError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.call)?;
        if !self.object.is_empty() {
            write!(f, " {}", self.object)?;
        }
        write!(f, ": {}", self.source)?;
        match self.source.raw_os_error() {
            _ if self.call == MEMFD && self.is_lasting() => write!(
                f,
                "; shared memory needs this call: allow it (most often a seccomp filter hides it), or use `tcp`"
            ),
            Some(libc::ENOSYS) => write!(
                f,
                "; this kernel lacks the call, or a seccomp filter hides it: allow it"
            ),
            Some(libc::EMFILE) => write!(f, "; raise the limit of open files (`ulimit -n`)"),
            Some(libc::EFBIG) => write!(f, "; raise the limit on the size of files (`ulimit -f`)"),
            Some(libc::EADDRINUSE) => write!(
                f,
                "; another process listens there, choose another port or 0"
            ),
            Some(libc::EACCES | libc::EPERM) => write!(f, "; this user may not do that"),
            _ => Ok(()),
        }
    }
}

/// Without a `source()`, since the message holds it: reporters that walk the chain would say it twice.
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
        ] {
            let error = error(call, errno);
            assert_eq!(error.is_lasting(), lasting, "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
