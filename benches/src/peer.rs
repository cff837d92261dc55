//! The second process: this binary again, with a hidden command.
//!
//! ```text
//! parent                                      child
//!   orders, a line of JSON          ->  stdin
//!                                stdout  ->    {"ready":"127.0.0.1:4711"} or {"failed":"why"}
//!   ... the measurement, over what the system uses ...
//!   closes stdin                    ->         ends itself
//! ```
//! The child ends when its stdin ends, whatever else it is doing, so it never outlives its parent. The parent waits a
//! bounded time for each step and kills a child that does not end.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use crate::host;
use crate::plan::{Plan, spin};
use crate::system::{Ready, by_name};

/// The child's one line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Greeting {
    /// The child accepts connections at this address.
    Ready(String),
    /// The child failed, with the reason.
    Failed(String),
}

/// How long a new server may take until it accepts, and either process for its line.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a child may take to end after its stdin has.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// A serving child process; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Peer {
    child: Child,
    /// Held open; closing it ends the child.
    stdin: Option<ChildStdin>,
    address: String,
}

impl Peer {
    /// Starts this binary again with the command `role`, gives it its orders and returns when it serves.
    pub(crate) fn start(role: &str, orders: &impl Serialize) -> Result<Self> {
        let binary = std::env::current_exe().context("this binary's path is not known")?;
        let mut child = Command::new(binary)
            .arg(role)
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
        let stdin = peer.stdin.as_mut().context("the child has no stdin")?;
        let orders = serde_json::to_string(orders)?;
        writeln!(stdin, "{orders}").context("the second process did not take its orders")?;
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
            bail!("the second process ended at once: {}", peer.wait()?);
        }
        let greeting = serde_json::from_str(&line);
        match greeting.with_context(|| format!("the second process said {line:?}"))? {
            Greeting::Ready(address) => peer.address = address,
            Greeting::Failed(why) => bail!("the second process cannot serve: {why}"),
        }
        Ok(peer)
    }

    /// The child's address, in the system's own notation.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The child's process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The child's exit status, if it has ended.
    pub(crate) fn has_ended(&mut self) -> Result<Option<String>> {
        Ok(self.child.try_wait()?.map(|status| status.to_string()))
    }

    /// Kills the child (SIGKILL) and waits until it is gone.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits until the child has ended by itself. Kills it after [`LAST_WORDS`].
    fn wait(&mut self) -> Result<String> {
        let end = Instant::now() + LAST_WORDS;
        while Instant::now() < end {
            if let Some(status) = self.has_ended()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.kill()?;
        Ok("killed".to_owned())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.stdin.take());
        if let Err(error) = self.wait() {
            eprintln!("tp-bench: ending the second process: {error:#}");
        }
    }
}

/// A running server: in its own process, or in this one for transports within a process.
#[derive(Debug)]
pub(crate) enum Server {
    Process(Peer),
    Here(String),
}

impl Server {
    /// Starts the server that `plan` asks for; returns when it accepts.
    pub(crate) fn start(plan: &Plan, runtime: &Runtime) -> Result<Self> {
        if plan.in_process() {
            return runtime.block_on(here(plan.clone())).map(Self::Here);
        }
        Ok(Self::Process(Peer::start("serve", plan)?))
    }

    pub(crate) fn address(&self) -> String {
        match self {
            Self::Process(peer) => peer.address.clone(),
            Self::Here(address) => address.clone(),
        }
    }

    /// The server's process.
    pub(crate) fn process_id(&self) -> u32 {
        match self {
            Self::Process(peer) => peer.id(),
            Self::Here(_) => std::process::id(),
        }
    }
}

/// Spawns the server on this runtime, and ends with the runtime.
async fn here(plan: Plan) -> Result<String> {
    let system = by_name(&plan.system)?;
    let (ready, address) = Ready::new();
    let serving = tokio::spawn(system.serve(plan, ready));
    match tokio::time::timeout(HANDSHAKE, address).await? {
        Ok(address) => Ok(address),
        // The server ended before it announced its address: its error says why.
        Err(_) => Err(match serving.await? {
            Err(error) => error,
            Ok(()) => anyhow::anyhow!("the server ended at once"),
        }),
    }
}

/// The child's side of a command: reads its orders, serves until stdin ends, and tells the parent if it cannot.
pub(crate) fn play<T: DeserializeOwned>(
    runtime: fn(&T) -> Result<Runtime>,
    serve: impl AsyncFnOnce(T) -> Result<()>,
) -> Result<()> {
    let orders = orders()?;
    let served = runtime(&orders).and_then(|runtime| runtime.block_on(serve(orders)));
    if let Err(error) = &served {
        // After the first greeting the parent reads no more lines.
        let _ = greet(&Greeting::Failed(format!("{error:#}")));
    }
    served
}

/// Tells the parent where this process accepts.
pub(crate) fn announce(address: impl ToString) -> Result<()> {
    greet(&Greeting::Ready(address.to_string()))
}

/// Serves a plan. This is what `tp-bench serve` does.
pub(crate) fn serve() -> Result<()> {
    play(pinned, async |plan: Plan| {
        let system = by_name(&plan.system)?;
        let (ready, address) = Ready::new();
        if plan.busy_us > 0 {
            tokio::spawn(compute(Duration::from_micros(plan.busy_us)));
        }
        // A task, so that it is polled where its connections are, on either kind of runtime.
        let serving = tokio::spawn(system.serve(plan, ready));
        if let Ok(address) = address.await {
            announce(address)?;
        }
        serving.await?
    })
}

/// The runtime that a plan wants, on the core that it wants.
pub(crate) fn pinned(plan: &Plan) -> Result<Runtime> {
    if let Some((_, core)) = plan.cores {
        host::pin(core)?;
    }
    plan.build_runtime()
}

/// Load beside the server's calls: computes for `time` again and again, so that other tasks wait.
async fn compute(time: Duration) {
    loop {
        spin(time);
        tokio::task::yield_now().await;
    }
}

/// Reads the parent's line. From then on a thread waits for the end of stdin and then ends the process.
fn orders<T: DeserializeOwned>() -> Result<T> {
    let (sender, line) = mpsc::channel();
    std::thread::spawn(move || {
        let mut lines = std::io::stdin().lock().lines();
        let _ = sender.send(lines.next());
        // Further lines from the parent are ignored; only the end of stdin counts.
        while let Some(Ok(_)) = lines.next() {}
        std::process::exit(0);
    });
    let line = line.recv_timeout(HANDSHAKE).ok().flatten();
    let line = line.context("no orders came, this command is for tp-bench itself")??;
    serde_json::from_str(&line).context("the first line is not what was expected")
}

fn greet(greeting: &Greeting) -> Result<()> {
    let line = serde_json::to_string(greeting)?;
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}")?;
    Ok(stdout.flush()?)
}
