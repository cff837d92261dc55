//! The commands, one file each, and what they share: choosing systems and measuring one row.

pub(crate) mod baseline;
pub(crate) mod batch;
pub(crate) mod chain;
pub(crate) mod churn;
pub(crate) mod compare;
pub(crate) mod crowd;
#[cfg(feature = "gpu")]
pub(crate) mod gpu;
pub(crate) mod idle;
pub(crate) mod limits;
pub(crate) mod ours;
pub(crate) mod rendezvous;
mod rows;
pub(crate) mod soak;
pub(crate) mod targets;

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::args::Options;
use crate::cores;
use crate::limits::{self as machine, Cores};
use crate::peer::Server;
use crate::plan::{Alloc, Begin, Case, Plan, Transport};
use crate::report::Row;
use crate::system::{ALL, AnySystem, Choice, Kind};

/// Fills a plan from the options. Pins the calling thread when that was asked for, so call it once, before
/// anything else is started.
fn plan(options: &Options) -> Result<Plan> {
    let cores = if options.pin {
        let pair = cores::pair()?;
        cores::pin(pair.0)?;
        Some(pair)
    } else {
        None
    };
    Ok(Plan {
        system: String::new(),
        case: Case::Echo,
        transport: options.transport.unwrap_or(Transport::Tcp),
        channel: options.channel.clone(),
        lanes: options.lanes,
        pace: options.pace.map(|pace| pace.0),
        alloc: options.alloc,
        runtime: options.runtime,
        bytes: 0,
        seconds: options.seconds,
        busy_us: options.busy_us,
        sum: false,
        begin: Begin::AsTheyAre,
        cores,
    })
}

/// The cores that `plan` runs on, or may run on.
fn cores_of(plan: &Plan) -> Option<Cores> {
    // Once pinned we are shown one core only.
    plan.cores.or_else(|| cores::pair().ok())
}

/// The spinning round trip of the moment.
fn spinning(plan: &Plan) -> Option<f64> {
    cores_of(plan).and_then(cores::spinning_round_trip)
}

/// The systems called `names`, or all that `offered` lets through, that have `case`; over `transport` where the name does
/// not say otherwise.
///
/// # Errors
/// When a named one lacks it, or when there is none at all.
fn choose(
    names: &[String],
    offered: impl Fn(&dyn AnySystem) -> bool,
    case: Case,
    transport: Transport,
) -> Result<Vec<Choice>> {
    if names.is_empty() {
        let all = ALL.iter().copied().filter(|system| offered(*system));
        let able = all
            .map(Choice::of)
            .filter(|choice| choice.check(case, transport).is_ok());
        let able: Vec<_> = able.collect();
        ensure!(
            !able.is_empty(),
            "no system has `{}` over {}, choose another case or transport",
            case.name(),
            transport.name()
        );
        return Ok(able);
    }
    let mut chosen = Vec::new();
    for name in names {
        let choice = Choice::parse(name)?;
        choice.check(case, transport)?;
        chosen.push(choice);
    }
    Ok(chosen)
}

/// Measures one row, with what the options want beside it.
fn measure(choice: &Choice, plan: &Plan, options: &Options) -> Result<Row> {
    let plan = &Plan {
        begin: options.warm.begin(plan),
        ..plan.clone()
    };
    let cores_us = spinning(plan);
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
    if let Some(cores) = cores_of(plan).filter(|_| options.limits) {
        let leased = row.channel == "lease" && plan.alloc == Alloc::Pool;
        row.limit_us = machine::floor(plan, leased, cores).context("the machine's limit")?;
    }
    Ok(row)
}

/// Measures once: a fresh server, a fresh runtime, one connection.
fn once(system: &dyn AnySystem, plan: &Plan) -> Result<Row> {
    let what = || {
        format!(
            "{} {} of {} bytes",
            plan.system,
            plan.case.name(),
            plan.bytes
        )
    };
    ensure!(
        plan.pace.is_none() || system.kind() == Kind::Ours,
        "`{}` cannot be paced, leave out --pace or that system",
        plan.system
    );
    let runtime = plan.runtime.build()?;
    let server = Server::start(plan, &runtime).with_context(what)?;
    let measuring = system.measure(plan.clone(), server.address().to_owned());
    // A task, so that it is polled where its connection is, on either kind of runtime.
    let measured = runtime.block_on(async { tokio::spawn(measuring).await });
    runtime.shutdown_timeout(Duration::from_secs(1));
    let (samples, route) = measured.context("the measuring task")?.with_context(what)?;
    Ok(Row::new(plan, &samples, route))
}

/// What the systems in a table are, one line each, in the order of [`ALL`].
fn legend<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.collect();
    let shown = ALL.iter().filter(|system| names.contains(&system.name()));
    shown
        .map(|system| format!("  {}: {}\n", system.name(), system.about()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(chosen: Vec<Choice>) -> Vec<String> {
        chosen.into_iter().map(|choice| choice.name).collect()
    }

    #[test]
    fn systems_are_chosen_by_name_or_by_what_they_have() -> Result<()> {
        let everything = |_: &dyn AnySystem| true;
        let named = choose(
            &["tarpc".to_owned()],
            everything,
            Case::Echo,
            Transport::Tcp,
        )?;
        assert_eq!(names(named), ["tarpc"]);
        let all = names(choose(&[], everything, Case::Pipeline, Transport::Tcp)?);
        let has = |name: &str| all.iter().any(|found| found == name);
        assert!(has("tokio") && has("rpc") && !has("pipe"), "{all:?}");
        Ok(())
    }

    #[test]
    fn a_legend_names_each_system_once() {
        let legend = legend(["tarpc", "tokio", "tarpc"].into_iter());
        assert_eq!(legend.lines().count(), 2);
        assert!(legend.starts_with("  tokio: "), "{legend}");
    }

    #[test]
    fn what_a_system_lacks_is_said() {
        let everything = |_: &dyn AnySystem| true;
        let error = choose(
            &["pipe".to_owned()],
            everything,
            Case::Pipeline,
            Transport::Tcp,
        );
        let error = error
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        assert!(
            error.starts_with("`pipe` has no `pipeline` over tcp"),
            "{error}"
        );
        assert!(choose(&[], |_| false, Case::Echo, Transport::Tcp).is_err());
    }
}
