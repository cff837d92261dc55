//! `tp-bench idle`: what a server with open connections costs while nobody calls it, in processor time and in memory.
//!
//! Every connection has carried some calls before. The memory is what the server has more after the others than it had
//! after the first one, which also pays for what all share.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{legend, plan, spinning};
use crate::args::Idle;
use crate::memory::{Resident, resident};
use crate::peer::Server;
use crate::plan::{Case, Plan, Transport};
use crate::processor::Used;
use crate::progress::Progress;
use crate::report::{self, Align, IdleRow, Table};
use crate::size::Size;
use crate::system::{ALL, Choice, Route};

/// Measures and prints.
///
/// # Errors
/// When a system cannot be measured; what was measured before it is printed all the same.
pub(crate) fn run(arguments: &Idle) -> Result<()> {
    let options = &arguments.options;
    let mut base = plan(options)?;
    base.bytes = options.size.first().unwrap_or(&USUAL_SIZE).0;
    let choices = choices(&arguments.system, options.transport)?;
    let before = spinning(&base);
    let progress = Progress::new(choices.len());
    let mut rows = Vec::new();
    let mut outcome = Ok(());
    for choice in choices {
        progress.begin(format!("{} idle", choice.name));
        match measure(&choice, &choice.plan(&base), arguments.connections) {
            Ok(row) => {
                if options.json {
                    progress.print(&serde_json::to_string(&row)?);
                }
                rows.push(row);
            }
            Err(error) => {
                outcome = Err(error);
                break;
            }
        }
        progress.end();
    }
    drop(progress);
    if !options.json {
        let connections = arguments.connections;
        let what = format!(
            "idle servers with {connections} connections, after a few calls of {} each",
            Size(base.bytes)
        );
        report::say(format_args!(
            "{}\n\n{}",
            report::head(&what, &base),
            table(&rows)
        ));
        print!("{}", legend(rows.iter().map(|row| row.system.as_str())));
        report::say(format_args!(
            "{LEGEND}\n  {}",
            report::spinning(before, spinning(&base))
        ));
    }
    outcome
}

/// The systems called `names`, else all: over `asked`, else over every transport between processes.
fn choices(names: &[String], asked: Option<Transport>) -> Result<Vec<Choice>> {
    if !names.is_empty() {
        let usual = asked.unwrap_or(Transport::Tcp);
        let chosen = names.iter().map(|name| {
            let choice = Choice::parse(name)?;
            choice.check(Case::Echo, usual)?;
            Ok(choice)
        });
        return chosen.collect();
    }
    let between = [Transport::Tcp, Transport::Unix, Transport::Shm];
    let over = asked.map_or_else(|| between.to_vec(), |asked| vec![asked]);
    let all = over.iter().flat_map(|transport| {
        ALL.iter()
            .map(|system| Choice::of(*system).over(*transport))
    });
    Ok(all
        .filter(|choice| choice.check(Case::Echo, Transport::Tcp).is_ok())
        .collect())
}

/// Measures one server with `connections` open connections, for the plan's seconds.
///
/// # Errors
/// When the server does not start, or ends.
pub(super) fn measure(choice: &Choice, plan: &Plan, connections: u32) -> Result<IdleRow> {
    let what = || format!("{} idle", choice.name);
    let runtime = plan.runtime.build()?;
    let server = Server::start(plan, &runtime).with_context(what)?;
    let address = server.address().to_owned();
    let hold = |count: u32| {
        choice
            .system
            .hold(plan.clone(), address.clone(), count as usize)
    };
    let (first, others) = (hold(1), hold(connections.saturating_sub(1)));
    let process = server.process_id();
    let length = plan.duration();
    let measured = runtime.block_on(async {
        let (first, route) = tokio::spawn(first).await.context("the holding task")??;
        tokio::time::sleep(SETTLE).await;
        let memory_before = resident(process)?;
        let (others, _) = tokio::spawn(others).await.context("the holding task")??;
        // What the rounds left to do, and spinning that ends by itself, is not idleness.
        tokio::time::sleep(SETTLE).await;
        let memory = resident(process)?;
        let start = Instant::now();
        let before = Used::by(process)?;
        tokio::time::sleep(length).await;
        let used = Used::by(process)?.since(&before);
        let percent = 100.0 * used.as_secs_f64() / start.elapsed().as_secs_f64();
        drop((first, others));
        let each = |field: fn(&Resident) -> u64| {
            let more = field(&memory) as f64 - field(&memory_before) as f64;
            more / f64::from(connections.saturating_sub(1).max(1))
        };
        let memory = (each(|memory| memory.anon), each(|memory| memory.shmem));
        anyhow::Ok((percent, memory, route))
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    let (cpu_percent, (anon_kib, shmem_kib), route): (_, _, Route) = measured.with_context(what)?;
    Ok(IdleRow {
        system: plan.system.clone(),
        case: "idle",
        transport: route.transport,
        channel: route.channel,
        connections,
        seconds: plan.seconds,
        cpu_percent,
        anon_kib,
        shmem_kib,
        name: choice.name.clone(),
    })
}

fn table(rows: &[IdleRow]) -> Table {
    let mut table = Table::new(&[
        ("system", Align::Left),
        ("over", Align::Left),
        ("connections", Align::Right),
        ("cpu %", Align::Right),
        ("KiB each", Align::Right),
        ("of it shared", Align::Right),
    ]);
    for row in rows {
        table.push(vec![
            row.name.clone(),
            report::over(&row.transport, &row.channel),
            row.connections.to_string(),
            format!("{:.2}", row.cpu_percent),
            format!("{:.0}", row.anon_kib + row.shmem_kib),
            format!("{:.0}", row.shmem_kib),
        ]);
    }
    table
}

const SETTLE: Duration = Duration::from_millis(500);

/// More than a ring holds, over a few calls: all that a connection ever touches has been touched.
pub(super) const USUAL_SIZE: Size = Size(64 * Size::KIB);

const LEGEND: &str = "  cpu %: of one core, all threads of the server
  KiB each: resident memory of the server for each further connection, RssAnon and RssShmem";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_names_every_system_is_measured_over_all_it_has() -> Result<()> {
        let names = |asked| -> Result<Vec<_>> {
            let chosen = choices(&[], asked)?;
            Ok(chosen.into_iter().map(|choice| choice.name).collect())
        };
        let all = names(None)?;
        for name in ["tokio@tcp", "rpc@tcp", "tarpc@unix", "pipe@shm", "rpc@shm"] {
            assert!(all.iter().any(|found| found == name), "{name} in {all:?}");
        }
        assert_eq!(names(Some(Transport::Shm))?, ["pipe@shm", "rpc@shm"]);
        assert!(choices(&["tokio@shm".to_owned()], None).is_err());
        Ok(())
    }
}
