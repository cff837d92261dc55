//! `tp-bench idle` and `connections`: the cost of open connections while they are idle, and while all of them carry calls.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use super::{choose, legend, spinning, with_server};
use crate::host::{Resident, processor_time, resident};
use crate::plan::{Case, Options, Plan, Transport, name};
use crate::report;
use crate::size::Size;
use crate::system::{ALL, Choice};

#[derive(Debug, Args)]
pub(crate) struct Idle {
    /// Systems to measure, for example rpc@shm,rpc@tcp; without it all, over every transport between processes.
    #[arg(long, value_delimiter = ',')]
    system: Vec<String>,
    /// Open connections.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    connections: u32,
    #[command(flatten)]
    options: Options,
}

#[derive(Debug, Args)]
pub(crate) struct Connections {
    /// Systems to measure.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "rpc@shm,tokio@unix,rpc@tcp,tokio@tcp"
    )]
    system: Vec<String>,
    /// Numbers of connections.
    #[arg(long, value_delimiter = ',', default_value = "1,10,100,1000", value_parser = clap::value_parser!(u32).range(1..=4000))]
    connections: Vec<u32>,
    /// Beside them a further connection calls once in 2 ms: also says how long its calls take.
    #[arg(long)]
    rare: bool,
    #[command(flatten)]
    options: Options,
}

/// An idle server.
#[derive(Clone, Debug, Serialize)]
pub(super) struct IdleRow {
    system: String,
    case: &'static str,
    transport: String,
    channel: String,
    connections: u32,
    seconds: f64,
    /// Processor time, in percent of one core.
    pub(super) cpu_percent: f64,
    /// Private memory of the server for each connection, after some traffic on it.
    pub(super) anon_kib: f64,
    /// Shared memory mapped and touched by the server for each connection, which its peer has mapped, too.
    pub(super) shmem_kib: f64,
    /// The system as it was asked for.
    name: String,
}

/// Results with a given number of connections.
#[derive(Debug, Serialize)]
struct ConnectionsRow {
    system: String,
    case: &'static str,
    transport: String,
    connections: u32,
    /// Microseconds to open one connection; they are opened one after another.
    open_us: f64,
    calls_per_second: f64,
    /// Calls of the slowest connection, divided by the mean: shows whether connections are served fairly.
    least: f64,
    /// Microseconds that a call of the further connection took.
    rare_p50_us: Option<f64>,
    rare_p99_us: Option<f64>,
}

/// Measures idle servers and prints.
pub(crate) fn idle(arguments: &Idle) -> Result<()> {
    let options = &arguments.options;
    let connections = arguments.connections;
    let base = Plan {
        bytes: options.size.first().unwrap_or(&IDLE_SIZE).0,
        ..options.plan()?
    };
    let choices = match &arguments.system[..] {
        [] => every_system(options.transport)?,
        names => choose(names, |_| true, Case::Echo, base.transport)?,
    };
    let spinning = spinning(&base);
    let steps = choices.into_iter();
    let steps = steps.map(|choice| (format!("{} idle", choice.name), choice));
    report::run(
        options.json,
        steps.collect(),
        |choice| {
            Ok(vec![measure_idle(
                &choice,
                &choice.plan(&base)?,
                connections,
            )?])
        },
        |rows| {
            let size = Size(base.bytes);
            let what = format!(
                "idle servers with {connections} connections, after a few calls of {size} each"
            );
            let notes = legend(rows.iter().map(|row| row.system.as_str())) + IDLE_NOTES;
            report::page(&report::head(&what, &base), IDLE, rows, &notes, &spinning)
        },
    )
}

/// Every system over every transport between processes, or over that which was asked for.
fn every_system(asked: Option<Transport>) -> Result<Vec<Choice>> {
    let between = [Transport::Tcp, Transport::Unix, Transport::Shm];
    let over = asked.map_or_else(|| between.to_vec(), |asked| vec![asked]);
    let mut choices = Vec::new();
    for transport in over {
        for system in ALL {
            let choice = Choice::parse(&format!("{}@{}", system.about().name, name(transport)))?;
            choices.extend(
                choice
                    .check(Case::Echo, transport)
                    .is_ok()
                    .then_some(choice),
            );
        }
    }
    Ok(choices)
}

/// Measures one server with `connections` open connections, for the plan's seconds.
///
/// Every connection has carried some calls before. The memory of the first connection is not counted, because it includes
/// memory that all connections share.
pub(super) fn measure_idle(choice: &Choice, plan: &Plan, connections: u32) -> Result<IdleRow> {
    let (system, length) = (choice.system, plan.duration());
    let others = connections.saturating_sub(1);
    let measured = with_server(plan, |server| {
        let (address, process) = (server.address(), server.process_id());
        let first = system.hold(plan.clone(), address.clone(), 1);
        let rest = system.hold(plan.clone(), address, others);
        async move {
            let (first, route) = first.await?;
            tokio::time::sleep(SETTLE).await;
            let before = resident(process)?;
            let (rest, _) = rest.await?;
            // Leftover work of the rounds, and busy-polling that ends by itself, are not part of being idle.
            tokio::time::sleep(SETTLE).await;
            let memory = resident(process)?;
            let (used, start) = (processor_time(process)?, std::time::Instant::now());
            tokio::time::sleep(length).await;
            let used = processor_time(process)?.saturating_sub(used);
            let percent = 100.0 * used.as_secs_f64() / start.elapsed().as_secs_f64();
            drop((first, rest));
            let each = move |field: fn(&Resident) -> u64| {
                let more = field(&memory) as f64 - field(&before) as f64;
                more / f64::from(others.max(1))
            };
            Ok((percent, each(|it| it.anon), each(|it| it.shmem), route))
        }
    });
    let (cpu_percent, anon_kib, shmem_kib, route) = measured?;
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

/// Measures calls over many connections and prints.
pub(crate) fn connections(arguments: &Connections) -> Result<()> {
    let options = &arguments.options;
    let base = Plan {
        bytes: options.size.first().map_or(0, |size| size.0),
        ..options.plan()?
    };
    let choices = choose(&arguments.system, |_| true, Case::Echo, Transport::Tcp)?;
    let spinning = spinning(&base);
    // The systems take turns, so that machine drift affects all alike.
    let steps = arguments.connections.iter().flat_map(|connections| {
        let named = |choice: &Choice| format!("{} over {connections} connections", choice.name);
        let steps = choices
            .iter()
            .map(move |choice| (named(choice), (choice, *connections)));
        steps.collect::<Vec<_>>()
    });
    report::run(
        options.json,
        steps.collect(),
        |(choice, connections)| {
            let plan = choice.plan(&base)?;
            let called = with_server(&plan, |server| {
                let address = server.address();
                choice
                    .system
                    .call_over_many(plan.clone(), address, connections, arguments.rare)
            })?;
            let rounds = &called.rounds;
            let all: u64 = rounds.iter().sum();
            let least = rounds.iter().copied().min().unwrap_or(0);
            Ok(vec![ConnectionsRow {
                system: choice.name.clone(),
                case: "connections",
                transport: name(plan.transport),
                connections,
                open_us: called.opening.as_secs_f64() * 1e6 / f64::from(connections),
                calls_per_second: all as f64 / called.took.as_secs_f64(),
                least: least as f64 * rounds.len() as f64 / all.max(1) as f64,
                rare_p50_us: called.rare.as_ref().map(|rare| rare.micros(0.5)),
                rare_p99_us: called.rare.as_ref().map(|rare| rare.micros(0.99)),
            }])
        },
        |rows| {
            let what = format!("calls over many connections, {} each", Size(base.bytes));
            let (mut fields, mut notes) = (CONNECTIONS.to_owned(), CONNECTIONS_NOTES.to_owned());
            if arguments.rare {
                fields += RARE;
                notes += RARE_NOTES;
            }
            report::page(
                &report::head(&what, &base),
                &fields,
                rows,
                &notes,
                &spinning,
            )
        },
    )
}

const SETTLE: Duration = Duration::from_millis(500);

/// A few calls carry more than a ring holds, so every page of a connection has been touched.
const IDLE_SIZE: Size = Size(64 * Size::KIB);

const IDLE: &str = "name transport channel connections cpu_percent anon_kib shmem_kib";

const IDLE_NOTES: &str = "\
cpu_percent: of one core, all threads of the server
anon_kib, shmem_kib: resident memory of the server for each further connection, private and shared";

const CONNECTIONS: &str = "system connections open_us calls_per_second least";

const CONNECTIONS_NOTES: &str = "\
open_us: to open one connection, the next one only then
calls_per_second: of all connections together
least: calls of the connection that made fewest, of an average one's";

const RARE: &str = " rare_p50_us rare_p99_us";

const RARE_NOTES: &str = "
rare_p50, rare_p99: a call on a further connection, which rests for 2 ms before each";
