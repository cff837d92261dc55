//! Starts a server process for a client that was given a model instead of an address.

use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;

use crate::serve::LISTENING;

/// How long the server may take to open its model.
const BOUND: Duration = Duration::from_secs(120);

/// How long the server may take to end before it is killed. It gives up by itself a little sooner.
const GRACE: Duration = Duration::from_secs(8);

/// A running server; killed when it is dropped.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    /// Only held: the server ends when this pipe is closed.
    input: Option<ChildStdin>,
    url: String,
}

impl ServerProcess {
    /// Starts `program` (this program's own path) as a server of the model in `directory`, at any free port.
    ///
    /// # Errors
    /// The server cannot be started, ended at once (its standard error says why), or took longer than two minutes.
    pub async fn start(program: &Path, directory: &Path) -> Result<Self> {
        let mut child = Command::new(program)
            .arg("serve")
            .arg(directory)
            .arg("--supervised")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A Ctrl-C in the terminal is for the client, which ends the server in its turn.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start the server ({})", program.display()))?;
        let output = child.stdout.take().context("no pipe for standard output")?;
        let mut lines = BufReader::new(output).lines();
        let Ok(line) = timeout(BOUND, lines.next_line()).await else {
            bail!("the server was not ready within {} s", BOUND.as_secs());
        };
        let line = line.context("cannot read what the server says")?;
        let Some(url) = line
            .as_deref()
            .and_then(|line| line.strip_prefix(LISTENING))
        else {
            bail!("the server ended before it was ready");
        };
        Ok(Self {
            url: url.to_owned(),
            input: child.stdin.take(),
            child,
        })
    }

    /// URL at which the server listens.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its process id, while it runs.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Asks the server to end and returns its exit status. Kills it if it takes too long.
    pub async fn end(mut self) -> Option<ExitStatus> {
        drop(self.input.take());
        if let Ok(ended) = timeout(GRACE, self.child.wait()).await {
            return ended.ok();
        }
        // Fails only if the server has ended meanwhile.
        let _ = self.child.kill().await;
        None
    }
}
