//! Whether the system supports something: found once, by trying.

use super::fork::OnceBox;
use crate::error::SystemError;

/// The outcome of an attempt. It is kept, unless it may change soon (no descriptors are left): then the next caller tries again.
#[derive(Debug)]
pub(crate) struct Probe(OnceBox<Result<(), SystemError>>);

impl Probe {
    pub(crate) const fn new() -> Self {
        Self(OnceBox::new())
    }

    /// The known outcome, or that of this attempt.
    pub(crate) fn outcome(
        &self,
        attempt: impl FnOnce() -> Result<(), SystemError>,
    ) -> Result<(), SystemError> {
        if let Some(known) = self.0.get() {
            return known.clone();
        }
        let found = attempt();
        if !matches!(&found, Err(error) if !error.is_lasting()) {
            // A faster thread has found the same.
            self.0.get_or_init(|| found.clone());
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_descriptors_is_for_a_moment_and_a_filter_for_good() {
        let fails = |errno| {
            move || {
                let source = std::io::Error::from_raw_os_error(errno);
                Err(SystemError::new("memfd_create", "", source))
            }
        };
        let probe = Probe::new();
        probe.outcome(fails(libc::EMFILE)).unwrap_err();
        probe.outcome(|| Ok(())).unwrap();
        probe.outcome(|| unreachable!("it is known")).unwrap();
        let probe = Probe::new();
        probe.outcome(fails(libc::ENOSYS)).unwrap_err();
        probe.outcome(|| unreachable!("it is known")).unwrap_err();
    }
}
