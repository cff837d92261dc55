//! The whole training from one command: starts a server and workers, watches them, measures, reports, ends them.
//!
//! A worker may die at any time: the server counts steps, not workers, so the others take over what it would have
//! done. The server may not. Whatever happens, every child has ended when [`run`] returns.

use std::future::pending;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Error, Result, anyhow, bail};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tensorpipe_rpc::CallError;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::args::Launch;
use crate::connection::{connect, failed};
use crate::data::{self, Digits};
use crate::ending::{Ending, interrupted};
use crate::model::names;
use crate::process::Process;
use crate::progress::Progress;
use crate::report::Report;
use crate::server::{FAREWELL, GLANCE, LISTENING, MEASURE, measure};
use crate::service::{ParameterServerClient, Status};

/// How long the server may take to listen.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long children get to end when asked to, before they are killed.
const GRACE: Duration = Duration::from_secs(2);
/// How long workers get to notice by themselves that the server is gone, and to say so.
const NOTICE: Duration = Duration::from_secs(5);

/// Runs a training from start to report.
pub(crate) async fn run(launch: Launch) -> Result<Ending> {
    let mut training = Training {
        progress: Progress::new(launch.steps),
        server: None,
        workers: Vec::new(),
    };
    let outcome = tokio::select! {
        outcome = training.run(&launch) => outcome.map(Outcome::Finished),
        ending = interrupted() => ending.map(Outcome::Stopped),
    };
    training.progress.end();
    if outcome.is_err() {
        training.dismiss(NOTICE).await;
    }
    training.stop().await;
    match outcome? {
        Outcome::Finished(report) => {
            report.print(launch.json)?;
            Ok(Ending::Done)
        }
        Outcome::Stopped(ending) => {
            training
                .progress
                .say("interrupted; server and workers have ended");
            Ok(ending)
        }
    }
}

enum Outcome {
    Finished(Report),
    Stopped(Ending),
}

/// A training under way.
struct Training {
    progress: Progress,
    server: Option<Process>,
    workers: Vec<Process>,
}

impl Training {
    async fn run(&mut self, launch: &Launch) -> Result<Report> {
        let url = self.start_server(launch).await?;
        for number in 0..launch.workers {
            let role = ["--role", "worker", "--connect", &url];
            let name = format!("worker {number}");
            let worker = Process::start(&name, &role, self.progress.voice())?;
            self.progress.say(format!("{} computes", worker.title()));
            self.workers.push(worker);
        }
        let mut view = View::new(&url).await?;
        match self.finish(&mut view).await {
            Err(error) if is_silence(&error) => Err(self.explain(error, &view.status).await),
            outcome => outcome,
        }
    }

    /// Starts the server; its address.
    async fn start_server(&mut self, launch: &Launch) -> Result<String> {
        let steps = launch.steps.to_string();
        let role = [
            "--role",
            "server",
            "--listen",
            &launch.listen,
            "--steps",
            &steps,
        ];
        let server = Process::start("server", &role, self.progress.voice())?;
        let server = self.server.insert(server);
        let url = server.said(LISTENING, PATIENCE).await?;
        self.progress
            .say(format!("{} listens on {url}", server.title()));
        Ok(url)
    }

    /// Watches until the training is over, and measures what came out.
    async fn finish(&mut self, view: &mut View) -> Result<Report> {
        self.watch(view).await?;
        self.dismiss(FAREWELL).await;
        let accuracy = view.measure().await?;
        view.look().await?;
        view.show(&mut self.progress);
        let route = view.server.connection().route().clone();
        let transport = route.transport.clone();
        Ok(Report::new(&view.status, accuracy, &transport, &[route]))
    }

    /// Shows the progress until the training is over.
    async fn watch(&mut self, view: &mut View) -> Result<()> {
        let mut glance = interval(GLANCE);
        glance.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let Some(server) = &mut self.server else {
            bail!("the training has no server");
        };
        loop {
            view.look().await?;
            view.show(&mut self.progress);
            if view.status.is_over() {
                return Ok(());
            }
            tokio::select! {
                biased;
                exit = server.exited() => return Err(gone(server, exit?, &view.status)),
                (worker, exit) = next_exit(&mut self.workers) => {
                    let exit = exit?;
                    view.look().await?;
                    let title = self.workers[worker].title();
                    let left = self.workers.iter().filter(|worker| !worker.has_ended()).count();
                    let Status { done, steps, .. } = view.status;
                    if left == 0 && !view.status.is_over() {
                        bail!("no worker is left at step {done} of {steps}; the last, {title}, ended ({exit})");
                    }
                    if !exit.success() {
                        self.progress.say(format!("{title} ended ({exit}) at step {done}; {left} go on"));
                    }
                }
                _ = glance.tick() => view.measure_now_and_then().await?,
            }
        }
    }

    /// Why the server does not answer: its end explains more than a broken connection.
    async fn explain(&mut self, error: Error, status: &Status) -> Error {
        let Some(server) = &mut self.server else {
            return error;
        };
        match timeout(NOTICE, server.exited()).await {
            Ok(Ok(exit)) => gone(server, exit, status),
            Ok(Err(_)) | Err(_) => error.context(format!("{} is alive but silent", server.title())),
        }
    }

    /// Waits until all workers have ended by themselves, `patience` at the most.
    async fn dismiss(&mut self, patience: Duration) {
        let exits: FuturesUnordered<_> = self.workers.iter_mut().map(Process::exited).collect();
        let _ = timeout(patience, exits.collect::<Vec<_>>()).await;
    }

    /// Ends every child, gently at first.
    async fn stop(&mut self) {
        let children = self.workers.iter_mut().chain(&mut self.server);
        let ends: FuturesUnordered<_> = children.map(|child| child.end(GRACE)).collect();
        ends.collect::<()>().await;
    }
}

/// What the launcher knows of the training.
struct View {
    server: ParameterServerClient,
    url: String,
    test: Arc<Digits>,
    status: Status,
    accuracy: Option<f64>,
    measured: Instant,
}

impl View {
    async fn new(url: &str) -> Result<Self> {
        Ok(Self {
            server: connect(url).await?,
            url: url.to_owned(),
            test: Arc::new(data::load()?.test),
            status: Status::default(),
            accuracy: None,
            measured: Instant::now(),
        })
    }

    async fn look(&mut self) -> Result<()> {
        let status = self.server.status().await;
        self.status = status.map_err(|error| failed(error, &self.url))?;
        Ok(())
    }

    async fn measure(&mut self) -> Result<f64> {
        let parameters = self.server.pull(names()).await;
        let parameters = parameters.map_err(|error| failed(error, &self.url))?;
        let accuracy = measure(parameters, &self.test).await?;
        self.accuracy = Some(accuracy);
        self.measured = Instant::now();
        Ok(accuracy)
    }

    async fn measure_now_and_then(&mut self) -> Result<()> {
        if self.measured.elapsed() >= MEASURE {
            self.measure().await?;
        }
        Ok(())
    }

    fn show(&self, progress: &mut Progress) {
        progress.show(self.status.done, self.status.loss, self.accuracy);
    }
}

/// Whether the server does not answer, for a reason that only the end of its process may tell.
fn is_silence(error: &Error) -> bool {
    let call = error.downcast_ref::<CallError>();
    call.is_some_and(|call| {
        matches!(
            call,
            CallError::Connection { .. } | CallError::Deadline { .. } | CallError::ShuttingDown
        )
    })
}

fn gone(server: &Process, exit: ExitStatus, status: &Status) -> Error {
    anyhow!(
        "{} ended ({exit}) at step {} of {}; its parameters are lost, run the training again",
        server.title(),
        status.done,
        status.steps
    )
}

/// The next of `processes` to end, and how; never when all have ended.
async fn next_exit(processes: &mut [Process]) -> (usize, Result<ExitStatus>) {
    let living = processes
        .iter_mut()
        .enumerate()
        .filter(|(_, process)| !process.has_ended());
    let mut exits: FuturesUnordered<_> = living
        .map(|(index, process)| async move { (index, process.exited().await) })
        .collect();
    match exits.next().await {
        Some(exit) => exit,
        None => pending().await,
    }
}
