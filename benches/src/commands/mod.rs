//! The commands, one file each, and what they share: choosing systems and measuring one row.

pub(crate) mod baseline;
pub(crate) mod compare;
pub(crate) mod idle;
pub(crate) mod ours;
mod rows;

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::args::Options;
use crate::cores;
use crate::peer::Server;
use crate::plan::{Case, Plan, Transport};
use crate::report::Row;
use crate::system::{ALL, AnySystem, by_name};

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
        transport: options.transport,
        channel: options.channel.clone(),
        alloc: options.alloc,
        runtime: options.runtime,
        bytes: 0,
        seconds: options.seconds,
        cores,
    })
}

/// The systems called `names`, or all that `offered` lets through, that have `case` over `transport`.
///
/// # Errors
/// When a named one lacks it, or when there is none at all.
fn choose(
    names: &[String],
    offered: impl Fn(&dyn AnySystem) -> bool,
    case: Case,
    transport: Transport,
) -> Result<Vec<&'static dyn AnySystem>> {
    let has = |system: &dyn AnySystem| {
        system.cases().contains(&case) && system.transports().contains(&transport)
    };
    if names.is_empty() {
        let all: Vec<_> = ALL
            .iter()
            .copied()
            .filter(|system| offered(*system) && has(*system))
            .collect();
        ensure!(
            !all.is_empty(),
            "no system has `{}` over {}, choose another case or transport",
            case.name(),
            transport.name()
        );
        return Ok(all);
    }
    let mut chosen = Vec::new();
    for name in names {
        let system = by_name(name)?;
        if !has(system) {
            bail!(
                "`{name}` has no `{}` over {}, choose another case or transport",
                case.name(),
                transport.name()
            );
        }
        chosen.push(system);
    }
    Ok(chosen)
}

/// Measures one row: a fresh server, a fresh runtime, one connection.
fn measure(system: &dyn AnySystem, plan: &Plan) -> Result<Row> {
    let what = || {
        format!(
            "{} {} of {} bytes",
            plan.system,
            plan.case.name(),
            plan.bytes
        )
    };
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

    fn names(chosen: Vec<&'static dyn AnySystem>) -> Vec<&'static str> {
        chosen.iter().map(|system| system.name()).collect()
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
        assert!(all.contains(&"tarpc") && !all.contains(&"tokio"), "{all:?}");
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
            &["tokio".to_owned()],
            everything,
            Case::Pipeline,
            Transport::Tcp,
        );
        let error = error
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        assert!(
            error.starts_with("`tokio` has no `pipeline` over tcp"),
            "{error}"
        );
        assert!(choose(&[], |_| false, Case::Echo, Transport::Tcp).is_err());
    }
}
