//! The server's process: it answers calls on a [`Store`] until the training is over.
//!
//! Under a launcher it says only where it listens and serves until it is released, because the launcher measures and
//! reports. By hand it does that itself, from its own parameters.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tensorpipe::{Context, Route, Timeouts};
use tensorpipe_rpc::Server;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::args::Serve;
use crate::data::{self, Digits};
use crate::ending::{Ending, interrupted, released};
use crate::model::{self, Network, Tensors};
use crate::progress::Progress;
use crate::report::Report;
use crate::service::{ParameterServerService, Status};
use crate::store::Store;

/// What the line on standard output begins with that tells a launcher, or a person, the address.
pub(crate) const LISTENING: &str = "listening on ";

/// How often the display is brought up to date.
pub(crate) const GLANCE: Duration = Duration::from_millis(100);
/// How often the accuracy is measured in between.
pub(crate) const MEASURE: Duration = Duration::from_millis(500);
/// How long workers get to hear that the training is over.
pub(crate) const FAREWELL: Duration = Duration::from_secs(2);

const SEED: u64 = 7;

/// Serves at `serve.listen`.
pub(crate) async fn run(serve: Serve) -> Result<Ending> {
    let mut timeouts = Timeouts::default();
    // A worker that hangs does not keep the server.
    timeouts.linger = FAREWELL;
    let context = Context::builder().timeouts(timeouts).build()?;
    let store = Store::new(model::initial(SEED)?, serve.steps, context.pool())?;
    let store = Arc::new(store);
    let server = Server::builder()
        .context(&context)
        .service(ParameterServerService::from_arc(Arc::clone(&store)))
        .listen(&serve.listen)
        .await
        .with_context(|| format!("cannot listen on {}", serve.listen))?;
    writeln!(std::io::stdout(), "{LISTENING}{}", server.url())
        .context("cannot write the address to standard output")?;
    let ending = tokio::select! {
        result = oversee(&store, &serve, &server) => result,
        () = note_lent(&store, &server) => Ok(Ending::Done),
        ending = interrupted() => ending,
        ending = released(serve.supervised) => Ok(ending),
    };
    server.shutdown().await;
    ending
}

/// Keeps the store's number of lent bytes up to date, until it is dropped.
async fn note_lent(store: &Store, server: &Server) {
    let mut glance = interval(GLANCE);
    loop {
        glance.tick().await;
        store.note_lent(server.stats().bytes_lent);
    }
}

/// Measures how much of `test` a network with these parameters recognises, from 0 to 1.
pub(crate) async fn measure(parameters: Tensors, test: &Arc<Digits>) -> Result<f64> {
    let test = Arc::clone(test);
    let measured = spawn_blocking(move || Network::new(parameters)?.accuracy(&test));
    measured.await.context("measuring the accuracy")?
}

async fn oversee(store: &Store, serve: &Serve, server: &Server) -> Result<Ending> {
    if serve.supervised {
        return std::future::pending().await;
    }
    let test = Arc::new(data::load()?.test);
    let mut progress = Progress::new(serve.steps);
    progress.say(format!(
        "start workers with: parameter_server --role worker --connect {}",
        server.url()
    ));
    let mut glance = interval(GLANCE);
    glance.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut accuracy, mut measured) = (None, Instant::now());
    let mut routes: Vec<Route> = Vec::new();
    loop {
        glance.tick().await;
        note_routes(&mut routes, server);
        let status = store.progress();
        if status.done > 0 && measured.elapsed() >= MEASURE {
            accuracy = Some(measure(store.parameters(), &test).await?);
            measured = Instant::now();
        }
        progress.show(status.done, status.loss, accuracy);
        if status.is_over() {
            break;
        }
    }
    note_routes(&mut routes, server);
    progress.end();
    let status = dismissed(store).await;
    let accuracy = measure(store.parameters(), &test).await?;
    let listened = server.url().transport();
    Report::new(&status, accuracy, listened, &routes).print(serve.json)?;
    Ok(Ending::Done)
}

/// Keeps one route of each transport that workers come over.
fn note_routes(routes: &mut Vec<Route>, server: &Server) {
    for pipe in server.pipes() {
        let route = pipe.route();
        if routes
            .iter()
            .all(|known| known.transport != route.transport)
        {
            routes.push(route.clone());
        }
    }
}

/// Waits until every worker was told that the training is over; some may be dead, so not for long.
async fn dismissed(store: &Store) -> Status {
    let until = Instant::now() + FAREWELL;
    loop {
        let status = store.progress();
        if status.dismissed >= status.workers || Instant::now() >= until {
            return status;
        }
        sleep(Duration::from_millis(10)).await;
    }
}
