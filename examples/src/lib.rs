//! Code that several examples share: starting a second process and, for examples that train, the data set, the progress display, and
//! starting and ending child processes.
#![forbid(unsafe_code)]

// A handler's panic must fail its call and nothing else, so the workspace does not build with `panic = "abort"`.
#[cfg(not(panic = "unwind"))]
compile_error!("no profile of the workspace may set `panic = \"abort\"`: see docs/decisions/0029");

pub mod data;
pub mod ending;
pub mod process;
pub mod progress;
pub mod random;

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// How long the other process may take to say where it listens.
const BOUND: Duration = Duration::from_secs(30);

/// This program in a second process, which is killed when this value is dropped.
#[derive(Debug)]
pub struct Second {
    child: Child,
    /// URL at which the second process listens.
    pub url: String,
}

impl Second {
    /// Starts the second process with `arguments` and waits for its first line, the URL.
    ///
    /// # Errors
    /// The process cannot be started, ends early, or prints no line in time.
    pub async fn start(arguments: &[&str]) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("starting the server")?;
        let out = child.stdout.take().context("the server's output")?;
        let mut lines = BufReader::new(out).lines();
        let url = tokio::time::timeout(BOUND, lines.next_line()).await;
        let url = url.context("waiting for the server")??;
        let url = url.context("the server ended before it said where it listens")?;
        Ok(Self { child, url })
    }

    /// Kills the process.
    ///
    /// # Errors
    /// The system could not kill it.
    pub async fn end(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }
}
