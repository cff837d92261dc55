//! The commands: their options, measurements, and table columns. This file has the shared parts: choosing systems, and
//! measuring one row.

pub(crate) mod batch;
pub(crate) mod callers;
pub(crate) mod chain;
pub(crate) mod chart;
pub(crate) mod compare;
pub(crate) mod connections;
#[cfg(feature = "gpu")]
pub(crate) mod gpu;
pub(crate) mod limits;
pub(crate) mod rendezvous;
pub(crate) mod rows;
pub(crate) mod targets;

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::host::{self, Cores};
use crate::limits as machine;
use crate::peer::Server;
use crate::plan::{Case, Options, Plan, Transport, name};
use crate::report::{Row, Spinning};
use crate::system::{ALL, About, AnySystem, Choice};

/// The cores that `plan` runs on, or may run on.
fn cores_of(plan: &Plan) -> Option<Cores> {
    // A pinned process sees only one core.
    plan.cores.or_else(|| host::pair().ok())
}

fn spinning(plan: &Plan) -> Spinning {
    Spinning::before(cores_of(plan))
}

/// The systems called `names`, or all that `offered` accepts, if they support `case`. `transport` applies where the name
/// has none.
fn choose(
    names: &[String],
    offered: impl Fn(&About) -> bool,
    case: Case,
    transport: Transport,
) -> Result<Vec<Choice>> {
    if !names.is_empty() {
        let choices = names.iter().map(|name| {
            let choice = Choice::parse(name)?;
            choice.check(case, transport)?;
            Ok(choice)
        });
        return choices.collect();
    }
    let offered = ALL.iter().filter(|system| offered(system.about()));
    let offered = offered.map(|system| Choice::parse(system.about().name));
    let mut able = offered.collect::<Result<Vec<_>>>()?;
    able.retain(|choice| choice.check(case, transport).is_ok());
    let (case, transport) = (name(case), name(transport));
    ensure!(
        !able.is_empty(),
        "no system has `{case}` over {transport}, choose another case or transport"
    );
    Ok(able)
}

/// Measures one row, with the extra figures that the options ask for.
fn measure(choice: &Choice, plan: &Plan, options: &Options) -> Result<Row> {
    let plan = &Plan {
        begin: options.warm.begin(plan),
        ..plan.clone()
    };
    let cores = cores_of(plan);
    let cores_us = cores.and_then(host::spinning_round_trip);
    let mut row = once(choice.system, plan)?;
    row.name.clone_from(&choice.name);
    row.cores_us = cores_us;
    if options.sum && plan.bytes > 0 {
        let summing = Plan {
            sum: true,
            ..plan.clone()
        };
        row.p50_sum_us = Some(once(choice.system, &summing)?.p50_us);
    }
    if let Some(cores) = cores.filter(|_| options.limits) {
        let leased = row.channel == "lease" && row.pages.is_some();
        row.limit_us = machine::floor(plan, leased, cores).context("the machine's limit")?;
    }
    Ok(row)
}

/// Measures once: a fresh server, a fresh runtime, one connection.
fn once(system: &dyn AnySystem, plan: &Plan) -> Result<Row> {
    ensure!(
        plan.pace.is_none() || system.about().is_ours,
        "`{}` cannot be paced, leave out --pace or that system",
        plan.system
    );
    let measured = with_server(plan, |server| {
        system.measure(plan.clone(), server.address())
    });
    let (samples, route) = measured?;
    Ok(Row::new(plan, &samples, route))
}

/// Where the measuring side runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// As a task: it is polled where its connections are, on either kind of runtime.
    Task,
    /// As the future that the runtime's `block_on` runs.
    Main,
}

/// Runs `work` against a fresh server, as a task of a fresh runtime.
fn with_server<T, W>(plan: &Plan, work: impl FnOnce(&Server) -> W) -> Result<T>
where
    T: Send + 'static,
    W: Future<Output = Result<T>> + Send + 'static,
{
    with_server_at(plan, Place::Task, work)
}

/// Like [`with_server`], at `place`.
fn with_server_at<T, W>(plan: &Plan, place: Place, work: impl FnOnce(&Server) -> W) -> Result<T>
where
    T: Send + 'static,
    W: Future<Output = Result<T>> + Send + 'static,
{
    let runtime = plan.build_runtime()?;
    let server = Server::start(plan, &runtime)?;
    let work = work(&server);
    let done = match place {
        Place::Main => runtime.block_on(work),
        Place::Task => {
            let done = runtime.block_on(async { tokio::spawn(work).await });
            done.context("the measuring task").and_then(|done| done)
        }
    };
    runtime.shutdown_timeout(Duration::from_secs(1));
    done
}

/// What the systems in a table are, one line each, in the order of [`ALL`].
fn legend<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.collect();
    let all = ALL.iter().map(|system| system.about());
    let shown = all.filter(|about| names.contains(&about.name));
    let lines = shown.map(|about| format!("{}: {}\n", about.name, about.words));
    lines.collect()
}
