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
}

impl std::fmt::Display for SystemError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.call)?;
        if !self.object.is_empty() {
            write!(f, " {}", self.object)?;
        }
        write!(f, ": {}", self.source)?;
        match self.source.raw_os_error() {
            Some(libc::EMFILE) => write!(f, "; raise the limit of open files (`ulimit -n`)"),
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
