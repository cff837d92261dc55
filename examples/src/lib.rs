//! What examples share: the start of a second process; of those that train, the digits, the display, and how their processes begin
//! and end.
#![forbid(unsafe_code)]

// A profile of this workspace that aborts is not built: a handler's panic fails its call, and nothing else.
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

/// This program in another process, which ends with this.
#[derive(Debug)]
pub struct Second {
    child: Child,
    /// Where it listens.
    pub url: String,
}

impl Second {
    /// Starts it with these arguments, and waits for its first line: where it listens.
    ///
    /// # Errors
    /// It cannot be started, ends, or says nothing.
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

    /// Ends it.
    ///
    /// # Errors
    /// As the system says.
    pub async fn end(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }
}
