//! A child process: this same program in another role.
//!
//! The launcher holds a pipe to the child's standard input and never writes to it. When the launcher closes the pipe or dies, the
//! child ends (see [`crate::ending`]). Each child has its own process group, so a Ctrl-C in the terminal reaches only the launcher,
//! which then ends all children in order. Lines that a child writes to standard error appear under its name.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::progress::Voice;

/// How long a child's last lines may take to arrive after it has ended.
const LAST_LINES: Duration = Duration::from_secs(1);

/// A started child.
#[derive(Debug)]
pub struct Process {
    title: String,
    child: Child,
    /// Only held: closing it tells the child to end.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    lines: JoinHandle<()>,
    ended: bool,
}

impl Process {
    /// Starts this program again with `arguments`.
    pub fn start(name: &str, arguments: &[&str], voice: Voice) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
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
            .with_context(|| format!("cannot start the {name}"))?;
        let output = child.stdout.take().context("no pipe for standard output")?;
        let errors = child.stderr.take().context("no pipe for standard error")?;
        let label = name.to_owned();
        let lines = tokio::spawn(async move {
            let mut lines = BufReader::new(errors).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                voice.say(format!("{label}: {line}"));
            }
        });
        let id = child.id().context("it ended at once")?;
        Ok(Self {
            title: format!("{name} (process {id})"),
            input: child.stdin.take(),
            output: BufReader::new(output),
            child,
            lines,
            ended: false,
        })
    }

    /// Name and process id, for messages.
    pub fn title(&self) -> String {
        self.title.clone()
    }

    /// Whether [`exited`](Self::exited) has told how it ended.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// The rest of its first line of standard output, which must begin with `mark` and come within `bound`.
    pub async fn said(&mut self, mark: &str, bound: Duration) -> Result<String> {
        let (title, mut line) = (self.title(), String::new());
        let read = timeout(bound, self.output.read_line(&mut line)).await;
        read.with_context(|| format!("{title} was not ready within {bound:?}"))??;
        match line.trim_end().strip_prefix(mark) {
            Some(rest) => Ok(rest.to_owned()),
            None => bail!(
                "{title} ended before it was ready ({})",
                self.exited().await?
            ),
        }
    }

    /// Reads standard output to its end.
    pub async fn rest(&mut self) -> Result<String> {
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).await?;
        Ok(rest)
    }

    /// Waits until the child has ended and its last lines are shown. May be dropped and called again.
    pub async fn exited(&mut self) -> Result<ExitStatus> {
        let status = self.child.wait().await?;
        if !self.lines.is_finished() {
            let _ = timeout(LAST_LINES, &mut self.lines).await;
        }
        self.ended = true;
        Ok(status)
    }

    /// Asks it to end and waits for `grace`, then kills it.
    pub async fn end(&mut self, grace: Duration) {
        drop(self.input.take());
        if timeout(grace, self.exited()).await.is_err() {
            // Fails only if it has ended meanwhile.
            let _ = self.child.start_kill();
            let _ = timeout(grace, self.exited()).await;
        }
    }
}
