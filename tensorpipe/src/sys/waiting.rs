//! Waiting for many descriptors at once.

use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollTimeout, poll};

/// How long an event may go unnoticed if the system takes fewer descriptors than there are.
const PAUSE: Duration = Duration::from_millis(20);

/// Like `poll`, for any number of descriptors. The system takes no more at once than the process may open (`RLIMIT_NOFILE`), a limit that
/// may have been lowered since these were opened. Then this polls them in groups, and returns after a pause if nothing has happened.
///
/// # Errors
/// As `poll`, `EINVAL` only where the process may open none.
pub(crate) fn poll_all(fds: &mut [PollFd<'_>], timeout: PollTimeout) -> Result<(), Errno> {
    match poll(fds, timeout) {
        Err(Errno::EINVAL) => {}
        other => return other.map(drop),
    }
    // Negative means no timeout; `as_millis` would panic then.
    let pause = u64::try_from(i32::from(timeout))
        .map_or(PAUSE, |millis| PAUSE.min(Duration::from_millis(millis)));
    if poll_now(fds)? == 0 {
        std::thread::sleep(pause);
    }
    Ok(())
}

/// Polls once, without waiting, in as many steps as necessary.
fn poll_now(fds: &mut [PollFd<'_>]) -> Result<i32, Errno> {
    match poll(fds, PollTimeout::ZERO) {
        Err(Errno::EINVAL) if fds.len() > 1 => {
            let (some, others) = fds.split_at_mut(fds.len() / 2);
            Ok(poll_now(some)? + poll_now(others)?)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::poll::PollFlags;
    use nix::sys::eventfd::EventFd;

    use super::*;
    use crate::sys::fork::tests::{in_a_child, open_at_most, opens_files_anyway};

    #[test]
    fn a_forked_child_waits_for_more_than_it_may_open() {
        if opens_files_anyway() {
            return;
        }
        let events: Vec<_> = (0..9).map(|_| EventFd::new().unwrap()).collect();
        events[2].write(1).unwrap();
        events[8].write(1).unwrap();
        assert!(in_a_child(|| {
            let fds = events.iter().map(AsFd::as_fd);
            let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
            let all = (1..12).all(|most| {
                open_at_most(most);
                let polled = poll_all(&mut fds, PollTimeout::NONE).is_ok();
                let ready = fds.iter().map(|fd| fd.any() == Some(true));
                polled && ready.eq((0..9).map(|i| i == 2 || i == 8))
            });
            open_at_most(0);
            all && poll_all(&mut fds, PollTimeout::NONE) == Err(Errno::EINVAL)
        }));
    }
}
