//! The child's side: reads its plan, serves it, ends with its stdin.

use std::io::{BufRead, Write};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;

use super::{Greeting, HANDSHAKE};
use crate::cores;
use crate::plan::Plan;
use crate::system::{Ready, by_name};

/// Serves until stdin ends. This is what `tp-bench serve` does.
///
/// # Errors
/// When it cannot serve; the parent was told so.
pub(crate) fn serve() -> Result<()> {
    let plan = orders()?;
    let served = run(plan);
    if let Err(error) = &served {
        greet(&Greeting::Failed(format!("{error:#}")))?;
    }
    served
}

fn run(plan: Plan) -> Result<()> {
    if let Some((_, core)) = plan.cores {
        cores::pin(core)?;
    }
    let system = by_name(&plan.system)?;
    plan.runtime.build()?.block_on(async {
        let (ready, address) = Ready::new();
        if plan.busy_us > 0 {
            tokio::spawn(compute(Duration::from_micros(plan.busy_us)));
        }
        // A task, so that it is polled where its connections are, on either kind of runtime.
        let serving = tokio::spawn(system.serve(plan, ready));
        if let Ok(address) = address.await {
            greet(&Greeting::Ready(address))?;
        }
        serving.await?
    })
}

/// What a server has to do beside its calls: a handler that computes, and others that wait for their turn.
async fn compute(time: Duration) {
    loop {
        let begun = Instant::now();
        while begun.elapsed() < time {
            std::hint::spin_loop();
        }
        tokio::task::yield_now().await;
    }
}

/// The parent's line. From then on a thread waits for the end of stdin and ends the process.
///
/// # Errors
/// When there is none, or one that is not understood.
pub(crate) fn orders<T: DeserializeOwned>() -> Result<T> {
    let (sender, line) = mpsc::channel();
    std::thread::spawn(move || {
        let mut stdin = std::io::stdin().lock();
        let mut line = String::new();
        let _ = sender.send(stdin.read_line(&mut line).map(|_| line));
        let mut rest = String::new();
        // Whatever the parent may still say, its end is all that counts.
        while matches!(stdin.read_line(&mut rest), Ok(read) if read > 0) {
            rest.clear();
        }
        std::process::exit(0);
    });
    let line = line
        .recv_timeout(HANDSHAKE)
        .context("no orders came, this command is for tp-bench itself")??;
    serde_json::from_str(&line).context("the first line is not what was expected")
}

/// The child's line.
///
/// # Errors
/// When nobody reads it.
pub(crate) fn greet(greeting: &Greeting) -> Result<()> {
    let mut line = serde_json::to_vec(greeting)?;
    line.push(b'\n');
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&line)?;
    stdout.flush()?;
    Ok(())
}
