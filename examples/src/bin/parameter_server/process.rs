//! A child process of the launcher: this same program in another role.
//!
//! Its standard input is a pipe that nobody writes to; closing it, or dying, tells the child to end (see
//! [`crate::ending`]). It gets a process group of its own, so that a Ctrl-C in the terminal reaches the launcher alone,
//! which then ends everybody in order. What it writes to standard error appears under its name.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::progress::Voice;

/// How long its last lines may take to arrive once it has ended.
const LAST_LINES: Duration = Duration::from_secs(1);

/// A started child.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    id: u32,
    child: Child,
    /// Held, not used: see above.
    input: Option<ChildStdin>,
    output: Option<BufReader<ChildStdout>>,
    lines: JoinHandle<()>,
    ended: bool,
}

impl Process {
    /// Starts this program again with `arguments`.
    pub(crate) fn start(name: &str, arguments: &[&str], voice: Voice) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut child = Command::new(&program)
            .args(arguments)
            .arg("--supervised")
            // Several workers share this machine: each computes on one core.
            .env("RAYON_NUM_THREADS", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start the {name} ({})", program.display()))?;
        let errors = child.stderr.take().context("no pipe for standard error")?;
        let label = name.to_owned();
        let lines = tokio::spawn(async move {
            let mut lines = BufReader::new(errors).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                voice.say(format!("{label}: {line}"));
            }
        });
        Ok(Self {
            name: name.to_owned(),
            id: child.id().context("it ended at once")?,
            input: child.stdin.take(),
            output: child.stdout.take().map(BufReader::new),
            child,
            lines,
            ended: false,
        })
    }

    /// Name and process id, for messages.
    pub(crate) fn title(&self) -> String {
        format!("{} (process {})", self.name, self.id)
    }

    /// Whether [`exited`](Self::exited) has told how it ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// The rest of the line of its standard output that begins with `mark`.
    ///
    /// # Errors
    /// It ended first, or said nothing for `patience`.
    pub(crate) async fn said(&mut self, mark: &str, patience: Duration) -> Result<String> {
        let title = self.title();
        let Some(output) = &mut self.output else {
            bail!("the output of {title} is taken already");
        };
        let search = async {
            let mut lines = output.lines();
            while let Some(line) = lines.next_line().await? {
                if let Some(rest) = line.strip_prefix(mark) {
                    return Ok(Some(rest.to_owned()));
                }
            }
            Ok::<_, std::io::Error>(None)
        };
        match timeout(patience, search).await {
            Ok(found) => match found.with_context(|| format!("cannot read what {title} says"))? {
                Some(rest) => Ok(rest),
                None => bail!(
                    "{title} ended before it was ready ({})",
                    self.exited().await?
                ),
            },
            Err(_) => bail!("{title} was not ready within {} s", patience.as_secs()),
        }
    }

    /// Waits until it has ended and its last lines are shown. May be dropped and called again.
    pub(crate) async fn exited(&mut self) -> Result<ExitStatus> {
        let status = self.child.wait().await;
        let status = status.with_context(|| format!("cannot wait for {}", self.title()))?;
        if !self.lines.is_finished() {
            let _ = timeout(LAST_LINES, &mut self.lines).await;
        }
        self.ended = true;
        Ok(status)
    }

    /// Asks it to end and waits for `grace`, then kills it.
    pub(crate) async fn end(&mut self, grace: Duration) {
        drop(self.input.take());
        if timeout(grace, self.exited()).await.is_err() {
            // Fails only if it has ended meanwhile.
            let _ = self.child.start_kill();
            let _ = timeout(grace, self.exited()).await;
        }
    }
}
