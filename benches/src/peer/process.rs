//! The parent's side: a child that was started, greeted, and ends when this is dropped.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::{Greeting, HANDSHAKE};

/// A serving child process.
#[derive(Debug)]
pub(crate) struct Peer {
    child: Child,
    /// Open as long as the child shall live.
    stdin: Option<ChildStdin>,
    address: String,
}

impl Peer {
    /// Starts this binary again with the command `role`, gives it its orders and returns when it serves.
    ///
    /// # Errors
    /// When it cannot be started, says why it cannot serve, or is silent for [`HANDSHAKE`].
    pub(crate) fn start(role: &str, orders: &impl Serialize) -> Result<Self> {
        let binary = std::env::current_exe().context("this binary's path is not known")?;
        let mut command = Command::new(binary);
        command.arg(role);
        Self::greet(command, orders)
    }

    fn greet(mut command: Command, orders: &impl Serialize) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("the second process did not start")?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("the child has no stdout")?;
        // From here on dropping `peer` ends the child.
        let mut peer = Self {
            child,
            stdin,
            address: String::new(),
        };
        let mut line = serde_json::to_vec(orders)?;
        line.push(b'\n');
        peer.stdin
            .as_mut()
            .context("the child has no stdin")?
            .write_all(&line)
            .context("the second process did not take its orders")?;
        let (sender, greeting) = mpsc::channel();
        // Ends with the child's stdout, that is with the child.
        std::thread::spawn(move || {
            let mut line = String::new();
            let read = BufReader::new(stdout).read_line(&mut line).map(|_| line);
            let _ = sender.send(read);
        });
        let line = match greeting.recv_timeout(HANDSHAKE) {
            Ok(line) => line.context("the second process's stdout")?,
            Err(_) => bail!("the second process did not say a word for {HANDSHAKE:?}"),
        };
        if line.is_empty() {
            let status = peer.wait(LAST_WORDS)?;
            bail!("the second process ended at once: {status}");
        }
        match serde_json::from_str(&line) {
            Ok(Greeting::Ready(address)) => peer.address = address,
            Ok(Greeting::Failed(why)) => bail!("the second process cannot serve: {why}"),
            Err(_) => bail!(
                "the second process said something else: {}",
                line.trim_end()
            ),
        }
        Ok(peer)
    }

    /// Where it accepts, in the system's own notation.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it has ended, if it has.
    ///
    /// # Errors
    /// What the system refuses.
    pub(crate) fn has_ended(&mut self) -> Result<Option<String>> {
        Ok(self.child.try_wait()?.map(|status| status.to_string()))
    }

    /// Kills it as nothing can be refused (SIGKILL), and waits until it is gone.
    ///
    /// # Errors
    /// What the system refuses.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits until it has ended by itself, and kills it when that takes longer than `bound`.
    fn wait(&mut self, bound: Duration) -> Result<String> {
        let end = Instant::now() + bound;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status.to_string());
            }
            if Instant::now() > end {
                self.child.kill()?;
                self.child.wait()?;
                return Ok("killed".to_owned());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.stdin.take());
        if let Err(error) = self.wait(LAST_WORDS) {
            eprintln!("tp-bench: ending the second process: {error:#}");
        }
    }
}

/// How long a child may take to end after its stdin has.
const LAST_WORDS: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Case;
    use crate::plan::tests::plan;

    fn shell(script: &str) -> Result<Peer> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Peer::greet(command, &plan("tokio", Case::Echo, 64))
    }

    #[test]
    fn a_child_that_greets_is_a_peer_and_ends_with_it() -> Result<()> {
        let peer = shell(r#"read plan; echo '{"ready":"there"}'; cat"#)?;
        assert_eq!(peer.address(), "there");
        let stat = format!("/proc/{}/stat", peer.id());
        assert!(std::fs::exists(&stat)?);
        drop(peer);
        assert!(
            !std::fs::exists(&stat)?,
            "the child is neither ended nor reaped"
        );
        Ok(())
    }

    #[test]
    fn a_child_that_fails_says_why() {
        let cases = [
            (
                r#"read plan; echo '{"failed":"no port"}'"#,
                "cannot serve: no port",
            ),
            ("read plan; exit 3", "ended at once: exit status: 3"),
            ("read plan; echo hello", "said something else: hello"),
        ];
        for (script, expected) in cases {
            let error = format!("{:#}", shell(script).expect_err(script));
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_child_that_is_killed_is_gone_at_once() -> Result<()> {
        let mut peer = shell(r#"read plan; echo '{"ready":"there"}'; exec sleep 60"#)?;
        assert_eq!(peer.has_ended()?, None);
        peer.kill()?;
        let status = peer.has_ended()?.context("it runs")?;
        assert!(status.contains("signal: 9"), "{status}");
        Ok(())
    }

    #[test]
    fn a_child_that_does_not_end_is_killed() -> Result<()> {
        let peer = shell(r#"read plan; echo '{"ready":"there"}'; exec sleep 60"#)?;
        let start = Instant::now();
        drop(peer);
        let took = start.elapsed();
        assert!(took >= LAST_WORDS && took < LAST_WORDS * 3, "{took:?}");
        Ok(())
    }
}
