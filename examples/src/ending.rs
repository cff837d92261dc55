//! How a process ends: by itself, by a signal, or because the launcher that started it is gone.
//!
//! A launcher holds the other end of each child's standard input and never writes to it. When the launcher ends, in whatever way, the
//! kernel closes that end and the child reads end-of-file. Unlike a signal handler, this works even after SIGKILL.

use std::io::{Read as _, stdin};
use std::process::{ExitCode, exit};
use std::time::Duration;

use anyhow::Result;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// How long a child may take to end in good order once its launcher is gone.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How the work of a process ended, short of an error.
#[derive(Clone, Copy, Debug)]
pub enum Ending {
    /// The work is done.
    Done,
    /// A signal with this number asked the process to end.
    Interrupted(u8),
    /// The launcher is gone, and nobody waits for the result.
    Orphaned,
}

impl From<Ending> for ExitCode {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Done => Self::SUCCESS,
            // A shell reports the same code for a program that a signal ended.
            Ending::Interrupted(signal) => Self::from(128 + signal),
            Ending::Orphaned => Self::FAILURE,
        }
    }
}

/// Completes when the user (Ctrl-C) or the system (SIGTERM) asks this process to end.
pub async fn interrupted() -> Result<Ending> {
    let (interrupt, terminate) = (SignalKind::interrupt(), SignalKind::terminate());
    let (mut first, mut second) = (signal(interrupt)?, signal(terminate)?);
    let number = tokio::select! {
        _ = first.recv() => interrupt.as_raw_value(),
        _ = second.recv() => terminate.as_raw_value(),
    };
    Ok(Ending::Interrupted(number as u8))
}

/// Completes when the launcher is gone or wants this child to end; never if there is none (`supervised` is false).
pub async fn released(supervised: bool) -> Ending {
    if !supervised {
        return std::future::pending().await;
    }
    let (gone, released) = oneshot::channel();
    // A thread, not a task: it must work even if the runtime hangs, and a read of standard input cannot be cancelled.
    std::thread::spawn(move || {
        let mut byte = [0];
        while stdin().read(&mut byte).is_ok_and(|read| read > 0) {}
        let _ = gone.send(());
        std::thread::sleep(LAST_WORDS);
        exit(1);
    });
    let _ = released.await;
    Ending::Orphaned
}
