//! `tp-bench idle`: what a server with open connections costs while nobody calls it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::unistd::{SysconfVar, sysconf};

use super::{choose, legend, plan};
use crate::args::Idle;
use crate::peer::Server;
use crate::plan::{Case, Plan};
use crate::progress::Progress;
use crate::report::{self, Align, IdleRow, Table};
use crate::system::AnySystem;

/// Measures and prints.
///
/// # Errors
/// When a system cannot be measured.
pub(crate) fn run(arguments: &Idle) -> Result<()> {
    let options = &arguments.options;
    let mut base = plan(options)?;
    base.bytes = options.size.first().map_or(0, |size| size.0);
    let systems = choose(&arguments.system, |_| true, Case::Echo, options.transport)?;
    let progress = Progress::new(systems.len());
    let mut rows = Vec::new();
    for system in systems {
        let mut plan = base.clone();
        plan.system = system.name().to_owned();
        progress.begin(format!("{} idle", plan.system));
        let row = measure(system, &plan, arguments.connections)?;
        if options.json {
            progress.print(&serde_json::to_string(&row)?);
        }
        rows.push(row);
        progress.end();
    }
    drop(progress);
    if !options.json {
        let what = format!("idle servers with {} connections", arguments.connections);
        println!("{}\n\n{}", report::head(&what, &base), table(&rows));
        println!("{}", legend(rows.iter().map(|row| row.system.as_str())));
    }
    Ok(())
}

fn measure(system: &dyn AnySystem, plan: &Plan, connections: u32) -> Result<IdleRow> {
    let what = || format!("{} idle", plan.system);
    let runtime = plan.runtime.build()?;
    let server = Server::start(plan, &runtime).with_context(what)?;
    let address = server.address().to_owned();
    let holding = system.hold(plan.clone(), address, connections as usize);
    let process = server.process_id();
    let length = plan.duration();
    let measured = runtime.block_on(async {
        let (held, route) = tokio::spawn(holding).await.context("the holding task")??;
        // What the rounds left to do, and spinning that ends by itself, is not idleness.
        tokio::time::sleep(SETTLE).await;
        let start = Instant::now();
        let before = cpu_time(process)?;
        tokio::time::sleep(length).await;
        let used = cpu_time(process)?.saturating_sub(before);
        let percent = 100.0 * used.as_secs_f64() / start.elapsed().as_secs_f64();
        drop(held);
        anyhow::Ok((percent, route))
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    let (cpu_percent, route) = measured.with_context(what)?;
    Ok(IdleRow {
        system: plan.system.clone(),
        case: "idle",
        transport: route.transport,
        channel: route.channel,
        connections,
        seconds: plan.seconds,
        cpu_percent,
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
    ]);
    for row in rows {
        table.push(vec![
            row.system.clone(),
            report::over(&row.transport, &row.channel),
            row.connections.to_string(),
            format!("{:.2}", row.cpu_percent),
        ]);
    }
    table
}

const SETTLE: Duration = Duration::from_millis(500);

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
