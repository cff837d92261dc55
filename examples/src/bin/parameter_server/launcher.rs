//! The whole training from one command: starts a server and workers, shows what they say, ends them.
//!
//! A worker may die at any time: the server counts steps, not workers, so the other workers take its steps. If the
//! server dies, the training is lost. In every case, all children have ended when [`run`] returns.

use std::future::pending;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tensorpipe_examples::ending::{Ending, interrupted};
use tensorpipe_examples::process::Process;
use tensorpipe_examples::progress::{Progress, Voice};
use tokio::time::timeout;

use crate::server::LISTENING;

/// How long the server may take to listen.
const BOUND: Duration = Duration::from_secs(10);
/// How long children get to end when asked to, before they are killed.
const GRACE: Duration = Duration::from_secs(2);
/// How long workers get to notice by themselves that the server is gone, and to say so.
const NOTICE: Duration = Duration::from_secs(5);

/// Runs a training from start to report.
pub(crate) async fn run(count: u16, steps: u64, listen: &str, json: bool) -> Result<Ending> {
    let voice = Progress::new(steps).voice();
    let steps = steps.to_string();
    let mut role = vec!["--role", "server", "--listen", listen, "--steps", &steps];
    role.extend(json.then_some("--json"));
    let mut server = Process::start("server", &role, voice.clone())?;
    let mut workers = Vec::new();
    let ending = tokio::select! {
        result = train(&mut server, &mut workers, count, &voice) => result.map(|()| Ending::Done),
        ending = interrupted() => ending,
    };
    if ending.is_err() {
        let all = join_all(workers.iter_mut().map(Process::exited));
        let _ = timeout(NOTICE, all).await;
    }
    let children = workers.iter_mut().chain([&mut server]);
    join_all(children.map(|child| child.end(GRACE))).await;
    if let Ok(Ending::Interrupted(_)) = ending {
        voice.say("interrupted; server and workers have ended");
    }
    ending
}

async fn train(
    server: &mut Process,
    workers: &mut Vec<Process>,
    count: u16,
    voice: &Voice,
) -> Result<()> {
    let url = server.said(LISTENING, BOUND).await?;
    let title = server.title();
    voice.say(format!("{title} listens on {url}"));
    for number in 0..count {
        let role = ["--role", "worker", "--connect", &url];
        let worker = Process::start(&format!("worker {number}"), &role, voice.clone())?;
        voice.say(format!("{} computes", worker.title()));
        workers.push(worker);
    }
    let mut is_over = false;
    let exit = loop {
        tokio::select! {
            biased;
            exit = server.exited() => break exit?,
            (worker, exit) = next_exit(workers) => {
                let (exit, title) = (exit?, workers[worker].title());
                is_over |= exit.success();
                let left = workers.iter().filter(|worker| !worker.has_ended()).count();
                if left == 0 && !is_over {
                    // If the server has died too, report that: the workers ended because of it.
                    match timeout(GRACE, server.exited()).await {
                        Ok(exit) => break exit?,
                        Err(_) => bail!("no worker is left; the last, {title}, ended ({exit})"),
                    }
                }
                if !exit.success() {
                    voice.say(format!("{title} ended ({exit}); {left} go on"));
                }
            }
        }
    };
    let lost = "its parameters are lost, run the training again";
    ensure!(exit.success(), "{title} ended ({exit}); {lost}");
    print!("{}", server.rest().await?);
    Ok(())
}

/// The next of `processes` to end, and how; never when all have ended.
async fn next_exit(processes: &mut [Process]) -> (usize, Result<ExitStatus>) {
    let living = processes.iter_mut().enumerate();
    let living = living.filter(|(_, process)| !process.has_ended());
    let exits = living.map(|(index, process)| async move { (index, process.exited().await) });
    match exits.collect::<FuturesUnordered<_>>().next().await {
        Some(exit) => exit,
        None => pending().await,
    }
}
