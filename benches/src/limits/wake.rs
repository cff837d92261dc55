//! There and back between two threads that sleep in the kernel until they are woken.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use nix::sys::eventfd::EventFd;

use super::Cores;
use crate::cores;
use crate::measure::median;

/// What wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    Eventfd,
    Unix,
    Tcp,
}

impl Wake {
    pub(crate) const ALL: [Self; 3] = [Self::Eventfd, Self::Unix, Self::Tcp];

    /// The name in tables and in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Eventfd => "eventfd",
            Self::Unix => "unix",
            Self::Tcp => "tcp",
        }
    }
}

/// Microseconds of a round trip between `cores` over `what`, the median of some hundred.
///
/// # Errors
/// When the system refuses.
pub(crate) fn wake(what: Wake, cores: Cores) -> Result<f64> {
    match what {
        Wake::Eventfd => {
            // Each carries one direction.
            let (there, back) = (EventFd::new()?, EventFd::new()?);
            let ask = || {
                there.write(1)?;
                back.read().map(drop).context("eventfd")
            };
            let answer = || {
                there.read()?;
                back.write(1).map(drop).context("eventfd")
            };
            turns(cores, ask, answer)
        }
        Wake::Unix => {
            let (near, far) = UnixStream::pair()?;
            for end in [&near, &far] {
                end.set_read_timeout(Some(PATIENCE))?;
            }
            over(cores, near, far)
        }
        Wake::Tcp => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let near = TcpStream::connect(listener.local_addr()?)?;
            let (far, _) = listener.accept()?;
            for end in [&near, &far] {
                end.set_nodelay(true)?;
                end.set_read_timeout(Some(PATIENCE))?;
            }
            over(cores, near, far)
        }
    }
}

fn over<S: Read + Write + Send>(cores: Cores, mut near: S, mut far: S) -> Result<f64> {
    let mut byte = [0];
    let ask = move || {
        near.write_all(&[1])?;
        near.read_exact(&mut byte).context("read")
    };
    let answer = move || {
        far.read_exact(&mut byte)?;
        far.write_all(&[1]).context("write")
    };
    turns(cores, ask, answer)
}

fn turns(
    cores: Cores,
    mut ask: impl FnMut() -> Result<()> + Send,
    mut answer: impl FnMut() -> Result<()> + Send,
) -> Result<f64> {
    std::thread::scope(|scope| {
        // Nobody may wait for one who has no core.
        let probe = scope.spawn(move || cores::pin(cores.0).and_then(|()| cores::pin(cores.1)));
        probe.join().map_err(|_| anyhow!("a thread panicked"))??;
        let answering = scope.spawn(move || {
            cores::pin(cores.1)?;
            (0..ROUNDS).try_for_each(|_| answer())
        });
        let asking = scope.spawn(move || {
            cores::pin(cores.0)?;
            let mut times = Vec::with_capacity(ROUNDS);
            for _ in 0..ROUNDS {
                let start = Instant::now();
                ask()?;
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
            median(&times).context("nothing was tried")
        });
        let micros = asking.join().map_err(|_| anyhow!("a thread panicked"))?;
        let answered = answering.join().map_err(|_| anyhow!("a thread panicked"))?;
        answered.and(micros)
    })
}

const ROUNDS: usize = 600;
/// For one answer, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_is_woken() -> Result<()> {
        let Ok(cores) = cores::pair() else {
            return Ok(());
        };
        for what in Wake::ALL {
            let micros = wake(what, cores)?;
            assert!(micros > 0.5, "{what:?}: two system calls in {micros} µs");
        }
        Ok(())
    }
}
