//! `tp-bench idle`: what a server with open connections costs while nobody calls it, in processor time and in memory.
//!
//! Every connection has carried some calls before. The memory is what the server has more after the others than it had
//! after the first one, which also pays for what all share.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::unistd::{SysconfVar, sysconf};

use super::{legend, plan, spinning};
use crate::args::Idle;
use crate::memory::{Resident, resident};
use crate::peer::Server;
use crate::plan::{Case, Plan, Transport};
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
        println!("{}\n\n{}", report::head(&what, &base), table(&rows));
        print!("{}", legend(rows.iter().map(|row| row.system.as_str())));
        println!("{LEGEND}\n  {}", report::spinning(before, spinning(&base)));
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

fn measure(choice: &Choice, plan: &Plan, connections: u32) -> Result<IdleRow> {
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
        let before = cpu_time(process)?;
        tokio::time::sleep(length).await;
        let used = cpu_time(process)?.saturating_sub(before);
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

/// Processor time of all threads of `process` so far, in the kernel's ticks of usually 10 ms.
fn cpu_time(process: u32) -> Result<Duration> {
    let path = format!("/proc/{process}/stat");
    let stat =
        std::fs::read_to_string(&path).with_context(|| format!("{path}, has the server ended"))?;
    let ticks = ticks(&stat).with_context(|| format!("{path} is not as expected: {stat}"))?;
    let per_second =
        sysconf(SysconfVar::CLK_TCK)?.context("the kernel does not say how long a tick is")?;
    Ok(Duration::from_secs_f64(ticks as f64 / per_second as f64))
}

/// User and system time of a line of `/proc/PID/stat`: its 14th and 15th field.
fn ticks(stat: &str) -> Option<u64> {
    // The second field is the program's name, which may hold spaces and brackets.
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
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
const USUAL_SIZE: Size = Size(64 * Size::KIB);

const LEGEND: &str = "  cpu %: of one core, all threads of the server
  KiB each: resident memory of the server for each further connection, RssAnon and RssShmem";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_found_behind_a_name_with_brackets() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 0 0 0 17 5 0 0 20 0 1 0 100 1 1";
        assert_eq!(ticks(stat), Some(22));
        assert_eq!(ticks("42 (cut) S 1"), None);
    }

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

    #[test]
    fn work_shows_in_the_processor_time() -> Result<()> {
        let before = cpu_time(std::process::id())?;
        let start = Instant::now();
        // Other work on the machine may keep us from the processor for a while.
        while start.elapsed() < Duration::from_secs(10) {
            if cpu_time(std::process::id())? > before {
                return Ok(());
            }
        }
        anyhow::bail!("10 s of work left no trace")
    }
}
