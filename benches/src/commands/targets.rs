//! `tp-bench targets`: measures this project's performance targets in one run and says which are met.
//!
//! Each line is measured on both kinds of runtime. Our system and its baseline take turns, each run with fresh processes; the table also
//! has the machine's limit. Then the line is measured once with every byte read, and leased lines once after a pause and once with warm
//! caches. Each of the two processes has a core. Other load on the machine shows in every figure, so run this on an idle machine.

use std::cell::RefCell;
use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;

use super::connections::{IdleRow, measure_idle};
use super::once;
use crate::host::{self, Cores};
use crate::limits::floor;
use crate::measure::median;
use crate::plan::{Begin, Case, Flavor, Plan, seconds};
use crate::report::{self, Spinning};
use crate::size::Size;
use crate::system::{Choice, choice};

#[derive(Clone, Debug, Args)]
pub(crate) struct Targets {
    /// Rows to measure, in the table's order; a name stands for every row that begins with it. Without it all.
    #[arg(long, value_delimiter = ',')]
    rows: Vec<String>,
    /// Runs of each system; they alternate: A B A B …
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Length of each run in seconds, after a warm-up.
    #[arg(long, default_value_t = 0.15, value_parser = seconds)]
    seconds: f64,
    /// How long idle servers are watched, in seconds.
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    idle_seconds: f64,
    /// Leave the threads of the multi_thread runtime on whichever core the system puts them.
    #[arg(long)]
    roam: bool,
    /// Only try that everything works: one short run each, tensors of 1 MiB at most. The figures mean nothing.
    #[arg(long)]
    quick: bool,
    /// Print one JSON object per line instead of a table.
    #[arg(long)]
    json: bool,
}

/// The targets: row | work | unit | ours | baseline, which takes turns with ours | the baseline in words | aim.
///
/// An aim is at most a number (≤), below a number (<), at most the baseline plus a number (+), or at most a multiple of
/// the baseline (×).
const TARGETS: &str = "\
pipe-0       | pipe there and back, metadata only, shm   | us | pipe@shm echo 0                     | tokio@unix echo 0          | tokio, unix   | ≤ 0.8
pipe-4KiB    | … 4 KiB both ways                         | us | pipe@shm echo 4KiB                  | tokio@unix echo 4KiB       | tokio, unix   | ≤ 1.5
pipe-1MiB    | … 1 MiB, ordinary memory                  | us | pipe@shm echo 1MiB                  | tokio@unix echo 1MiB       | tokio, unix   | ≤ 45
pipe-16MiB   | … 16 MiB                                  | us | pipe@shm echo 16MiB                 | tokio@unix echo 16MiB      | tokio, unix   | ≤ 800
pipe-128MiB  | … 128 MiB                                 | us | pipe@shm echo 128MiB                | tokio@unix echo 128MiB     | tokio, unix   | ≤ 14500
lease-4KiB   | … 4 KiB, leased                           | us | pipe@shm+lease:pool echo 4KiB       | pipe@shm echo 0            | metadata only | + 0.5
lease-64KiB  | … 64 KiB, leased                          | us | pipe@shm+lease:pool echo 64KiB      | pipe@shm echo 0            | metadata only | + 0.5
lease-1MiB   | … 1 MiB, leased                           | us | pipe@shm+lease:pool echo 1MiB       | pipe@shm echo 0            | metadata only | + 0.5
lease-16MiB  | … 16 MiB, leased                          | us | pipe@shm+lease:pool echo 16MiB      | pipe@shm echo 0            | metadata only | + 0.5
lease-128MiB | … 128 MiB, leased                         | us | pipe@shm+lease:pool echo 128MiB     | pipe@shm echo 0            | metadata only | + 0.5
lease-1GiB   | … 1 GiB, leased                           | us | pipe@shm+lease:pool echo 1GiB       | pipe@shm echo 0            | metadata only | + 0.5
echo         | rpc echo, shm                             | us | rpc@shm echo 0                      | tarpc@unix echo 0          | tarpc, unix   | ≤ 1.9
in-flight    | rpc, 64 in flight, each                   | us | rpc@shm pipeline 0                  | tokio@unix pipeline 0      | tokio, unix   | ≤ 0.6
upload-64KiB | rpc upload, 64 KiB, ordinary memory       | us | rpc@shm upload 64KiB                | tokio@unix upload 64KiB    | tokio, unix   | + 0
upload-1MiB  | … 1 MiB                                   | us | rpc@shm upload 1MiB                 | tokio@unix upload 1MiB     | tokio, unix   | + 0
upload-16MiB | … 16 MiB                                  | us | rpc@shm upload 16MiB                | tokio@unix upload 16MiB    | tokio, unix   | + 0
upload       | rpc upload, 256 MiB, ordinary memory      | us | rpc@shm upload 256MiB               | tokio@unix upload 256MiB   | tokio, unix   | ≤ 14000
download     | rpc download, 256 MiB, ordinary memory    | us | rpc@shm download 256MiB             | tokio@unix download 256MiB | tokio, unix   | ≤ 14000
upload-pool  | rpc upload, 256 MiB, pool                 | us | rpc@shm+lease:pool upload 256MiB    | rpc@shm echo 0             | rpc echo      | + 0.7
download-pool| rpc download, 256 MiB, pool               | us | rpc@shm+lease:pool download 256MiB  | rpc@shm echo 0             | rpc echo      | + 0.7
echo-tcp     | rpc echo, tcp, hot                        | us | rpc@tcp echo 0                      | tokio@tcp echo 0           | tokio, tcp    | ≤ 15
echo-tls     | … tls                                     | us | rpc@tls echo 0                      | rpc@tcp echo 0             | rpc, tcp      | × 1.3
upload-tls   | rpc upload, 256 MiB, tls, ordinary memory | us | rpc@tls upload 256MiB               | rpc@tcp upload 256MiB      | rpc, tcp      | × 2.5
paced        | rpc echo, shm, calls 1 ms apart           | us | rpc@shm paced 0                     | tarpc@unix paced 0         | tarpc, unix   | + 0
paced-64KiB  | … with 64 KiB, ordinary memory            | us | rpc@shm paced 64KiB                 | tokio@unix paced 64KiB     | tokio, unix   | + 0
paced-256KiB | … 256 KiB                                 | us | rpc@shm paced 256KiB                | tokio@unix paced 256KiB    | tokio, unix   | + 0
paced-1MiB   | … 1 MiB                                   | us | rpc@shm paced 1MiB                  | tokio@unix paced 1MiB      | tokio, unix   | + 0
paced-4MiB   | … 4 MiB                                   | us | rpc@shm paced 4MiB                  | tokio@unix paced 4MiB      | tokio, unix   | + 0
paced-16MiB  | … 16 MiB                                  | us | rpc@shm paced 16MiB                 | tokio@unix paced 16MiB     | tokio, unix   | + 0
idle-cpu     | idle server, 10 pipes over shm, of a core | percent | pipe@shm echo 64KiB            | tokio@unix echo 64KiB      | tokio, unix   | < 0.5
idle-memory  | resident memory of it for each idle pipe  | KiB | pipe@shm echo 64KiB                | tokio@unix echo 64KiB      | tokio, unix   | ≤ 256";

/// A line of the table.
#[derive(Clone, Debug)]
struct Target {
    row: &'static str,
    work: &'static str,
    unit: &'static str,
    ours: Work,
    baseline: Work,
    against: &'static str,
    aim: (Bound, f64),
}

/// A system, and its case and size.
#[derive(Clone, Debug)]
struct Work {
    system: &'static str,
    case: Case,
    bytes: u64,
}

/// The meaning of an aim's number.
#[derive(Clone, Copy, Debug)]
enum Bound {
    AtMost,
    Below,
    /// At most this much more than the baseline.
    Above,
    /// At most this multiple of the baseline.
    Times,
}

/// A measured line.
#[derive(Clone, Debug, Serialize)]
struct Line {
    row: String,
    work: String,
    system: String,
    baseline: String,
    unit: String,
    aimed_at: String,
    /// Figures on the single-threaded runtime, and on that of `#[tokio::main]`.
    current: Figures,
    multi: Figures,
}

/// Medians over the runs, in the line's unit.
#[derive(Clone, Copy, Debug, Serialize)]
struct Figures {
    ours: f64,
    best: f64,
    worst: f64,
    baseline: f64,
    /// A bare round of the same bytes over the same medium.
    limit: Option<f64>,
    /// Ours, if the receiver of a tensor reads every byte.
    sum: Option<f64>,
    /// Ours, if the trips that wake both ends carry a small leased tensor. Only for lines whose rounds begin with both awake.
    hot: Option<f64>,
    /// Ours, if both ends were asleep before the call. For the same lines.
    after_pause: Option<f64>,
    aim: f64,
    met: bool,
    /// The spinning round trip between the cores just before, in microseconds.
    cores_us: Option<f64>,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Targets) -> Result<()> {
    let targets = select(&arguments.rows)?;
    let turns = Turns::new(arguments);
    let spinning = Spinning::before(turns.cores);
    let steps = targets
        .into_iter()
        .map(|target| (target.row.to_owned(), target));
    report::run(
        arguments.json,
        steps.collect(),
        |target| {
            let on = |flavor: Flavor| turns.measure(&target, flavor).context(flavor.name());
            Ok(vec![Line {
                row: target.row.to_owned(),
                work: target.work.to_owned(),
                system: target.ours.system.to_owned(),
                baseline: target.baseline.system.to_owned(),
                unit: target.unit.to_owned(),
                aimed_at: target.aimed_at(),
                current: on(Flavor::Current)?,
                multi: on(Flavor::Multi)?,
            }])
        },
        |lines| {
            let (head, table, cores) = (turns.head(), table(lines), spinning.after());
            format!("{head}\n\n{table}\n\n{NOTES}\n{cores}")
        },
    )
}

/// The lines called `names`, in the order of the table: by the whole name, else all that begin so.
fn select(names: &[String]) -> Result<Vec<Target>> {
    let mut all = TARGETS
        .lines()
        .map(Target::parse)
        .collect::<Result<Vec<_>>>()?;
    if names.is_empty() {
        return Ok(all);
    }
    let known: Vec<_> = all.iter().map(|target| target.row).collect();
    for name in names {
        if !known.iter().any(|known| known.starts_with(name)) {
            bail!("there is no row `{name}`, choose of: {}", known.join(", "));
        }
    }
    let is_wanted = |row: &str, name: &String| {
        row == name || row.starts_with(name) && !known.contains(&name.as_str())
    };
    all.retain(|target| names.iter().any(|name| is_wanted(target.row, name)));
    Ok(all)
}

impl Target {
    fn parse(line: &'static str) -> Result<Self> {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let [row, work, unit, ours, baseline, against, aim] = cells[..] else {
            bail!("{} cells in {line}", cells.len());
        };
        let (bound, number) = aim.split_once(' ').context("an aim without a number")?;
        let bound = match bound {
            "≤" => Bound::AtMost,
            "<" => Bound::Below,
            "+" => Bound::Above,
            "×" => Bound::Times,
            other => bail!("an aim of {other}"),
        };
        Ok(Self {
            row,
            work,
            unit,
            ours: Work::parse(ours)?,
            baseline: Work::parse(baseline)?,
            against,
            aim: (bound, number.parse()?),
        })
    }

    fn aimed_at(&self) -> String {
        let (bound, number) = self.aim;
        let (amount, against) = (amount(self.unit, number), self.against);
        match bound {
            Bound::AtMost => format!("≤ {amount}"),
            Bound::Below => format!("< {amount}"),
            Bound::Above if number == 0.0 => format!("≤ {against}"),
            Bound::Above => format!("≤ {against} + {amount}"),
            Bound::Times => format!("≤ {number} × {against}"),
        }
    }

    /// The medians of all runs, without the figures that are measured separately.
    fn figures(&self, ours: &[f64], baseline: &[f64]) -> Result<Figures> {
        let nothing = "nothing was measured";
        let of_baseline = median(baseline).context(nothing)?;
        let of_ours = median(ours).context(nothing)?;
        let (bound, number) = self.aim;
        let (aim, met) = match bound {
            Bound::AtMost => (number, of_ours <= number),
            Bound::Below => (number, of_ours < number),
            Bound::Above => (of_baseline + number, of_ours <= of_baseline + number),
            Bound::Times => (of_baseline * number, of_ours <= of_baseline * number),
        };
        Ok(Figures {
            ours: of_ours,
            best: ours.iter().copied().fold(f64::INFINITY, f64::min),
            worst: ours.iter().copied().fold(0.0, f64::max),
            baseline: of_baseline,
            limit: None,
            sum: None,
            hot: None,
            after_pause: None,
            aim,
            met,
            cores_us: None,
        })
    }
}

impl Work {
    /// `rpc@shm echo 4KiB`.
    fn parse(text: &'static str) -> Result<Self> {
        let words: Vec<_> = text.split(' ').collect();
        let [system, case, bytes] = words[..] else {
            bail!("`{text}` is no work");
        };
        Ok(Self {
            system,
            case: choice::value(case)?,
            bytes: bytes.parse::<Size>()?.0,
        })
    }
}

/// How lines are measured.
struct Turns {
    asked: Targets,
    /// Larger tensors are cut down to this many bytes.
    largest: u64,
    /// The two cores, where there are two.
    cores: Option<Cores>,
    /// Idle servers have two lines and are measured once: by their system and runtime.
    idle: RefCell<BTreeMap<(&'static str, &'static str), IdleRow>>,
}

impl Turns {
    fn new(arguments: &Targets) -> Self {
        let mut turns = Self {
            asked: arguments.clone(),
            largest: u64::MAX,
            cores: host::pair().ok(),
            idle: RefCell::default(),
        };
        if arguments.quick {
            turns.largest = Size::MIB;
            turns.asked.runs = 1;
            turns.asked.seconds = 0.0;
            turns.asked.idle_seconds = 0.05;
        }
        turns
    }

    fn measure(&self, target: &Target, flavor: Flavor) -> Result<Figures> {
        match target.unit {
            "percent" => self.idle(target, flavor, |row| row.cpu_percent),
            "KiB" => self.idle(target, flavor, |row| row.anon_kib + row.shmem_kib),
            _ => self.time(target, flavor),
        }
    }

    fn time(&self, target: &Target, flavor: Flavor) -> Result<Figures> {
        let (choice, plan) = self.plan(&target.ours, flavor)?;
        let (peer, peer_plan) = self.plan(&target.baseline, flavor)?;
        let cores_us = self.cores.and_then(host::spinning_round_trip);
        let (mut ours, mut baseline, mut limits) = (Vec::new(), Vec::new(), Vec::new());
        let runs = match plan.bytes {
            // A run takes seconds: two of them say enough.
            HUGE.. => self.asked.runs.min(2),
            _ => self.asked.runs,
        };
        for _ in 0..runs {
            ours.push(p50(&choice, &plan)?);
            baseline.push(p50(&peer, &peer_plan)?);
            if let Some(cores) = self.cores {
                let limit = floor(&plan, plan.is_leased(), cores);
                limits.extend(limit.context("the machine's limit")?);
            }
        }
        let but = |change: fn(&mut Plan)| -> Result<f64> {
            let mut plan = plan.clone();
            change(&mut plan);
            p50(&choice, &plan)
        };
        let sum = (plan.bytes > 0).then(|| but(|plan| plan.sum = true));
        let is_warm = plan.begin() == Begin::Awake;
        let after_pause = is_warm.then(|| but(|plan| plan.begin = Begin::Asleep(plan.pause_us)));
        let hot = is_warm.then(|| but(|plan| plan.begin = Begin::Hot));
        Ok(Figures {
            limit: median(&limits),
            sum: sum.transpose()?,
            hot: hot.transpose()?,
            after_pause: after_pause.transpose()?,
            cores_us,
            ..target.figures(&ours, &baseline)?
        })
    }

    fn idle(&self, target: &Target, flavor: Flavor, of: fn(&IdleRow) -> f64) -> Result<Figures> {
        let measure = |work: &Work| {
            let key = (work.system, flavor.name());
            if let Some(measured) = self.idle.borrow().get(&key) {
                return Ok(of(measured));
            }
            let (choice, mut plan) = self.plan(work, flavor)?;
            plan.seconds = self.asked.idle_seconds;
            let measured = on_its_core(&plan, || measure_idle(&choice, &plan, CONNECTIONS))?;
            let found = of(&measured);
            self.idle.borrow_mut().insert(key, measured);
            anyhow::Ok(found)
        };
        let (ours, baseline) = (measure(&target.ours)?, measure(&target.baseline)?);
        target.figures(&[ours], &[baseline])
    }

    fn plan(&self, work: &Work, flavor: Flavor) -> Result<(Choice, Plan)> {
        let choice = Choice::parse(work.system)?;
        let roams = self.asked.roam && flavor == Flavor::Multi;
        let mut plan = choice.plan(&Plan {
            case: work.case,
            bytes: work.bytes.min(self.largest),
            cores: self.cores.filter(|_| !roams),
            ..Plan::new(flavor, self.asked.seconds)
        })?;
        if plan.is_leased() {
            plan.begin = Begin::Awake;
        }
        Ok((choice, plan))
    }

    fn head(&self) -> String {
        let pinned = match self.cores {
            Some((client, server)) if self.asked.roam => {
                format!(
                    "current_thread pinned to cores {client} and {server}, multi_thread to none"
                )
            }
            Some((client, server)) => format!("pinned to cores {client} and {server}"),
            None => "not pinned, for want of two cores".to_owned(),
        };
        let cut = match self.asked.quick {
            true => "; small tensors, the figures mean nothing",
            false => "",
        };
        let Targets { runs, seconds, .. } = self.asked;
        format!(
            "targets: two processes, {pinned}, medians of {runs} alternating runs of {seconds} s{cut}"
        )
    }
}

fn p50(choice: &Choice, plan: &Plan) -> Result<f64> {
    Ok(on_its_core(plan, || once(choice.system, plan))?.p50_us)
}

/// Runs `work` on a thread that is pinned to the plan's client core; threads that it starts inherit the pinning. The
/// calling thread stays unpinned, for plans without a core.
fn on_its_core<T: Send>(plan: &Plan, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let working = scope.spawn(|| {
            if let Some((core, _)) = plan.cores {
                host::pin(core)?;
            }
            work()
        });
        let done = working.join();
        done.unwrap_or_else(|_| bail!("a measuring thread panicked"))
    })
}

fn amount(unit: &str, number: f64) -> String {
    match unit {
        "us" => report::time(number),
        "percent" => format!("{number:.2} %"),
        unit => format!("{number:.0} {unit}"),
    }
}

/// Lines for people.
fn table(lines: &[Line]) -> String {
    let lines: Vec<_> = lines.iter().map(words).collect();
    report::table(FIELDS, &lines)
}

fn words(line: &Line) -> serde_json::Value {
    let (current, multi) = (&line.current, &line.multi);
    let both = |of: &dyn Fn(&Figures) -> Option<String>| match (of(current), of(multi)) {
        (Some(current), Some(multi)) => format!("{current} / {multi}"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => "–".to_owned(),
    };
    let amount = |number: f64| amount(&line.unit, number);
    let of = |all: f64, part: f64| (part > 0.0).then(|| format!("{:.2}", all / part));
    let baseline = both(&|it| Some(amount(it.baseline)));
    serde_json::json!({
        "work": line.work,
        "current_thread": amount(current.ours),
        "multi_thread": amount(multi.ours),
        "baseline": format!("{}: {baseline}", line.baseline),
        "of_baseline": both(&|it| of(it.ours, it.baseline)),
        "limit": both(&|it| it.limit.map(amount)),
        "of_limit": both(&|it| of(it.ours, it.limit?)),
        "every_byte_read": both(&|it| it.sum.map(amount)),
        "caches_warm": both(&|it| it.hot.map(amount)),
        "after_a_pause": both(&|it| it.after_pause.map(amount)),
        "aimed_at": line.aimed_at,
        "met": match (current.met, multi.met) {
            (true, true) => "met",
            (true, false) => "met on current_thread",
            (false, true) => "met on multi_thread",
            (false, false) => "missed",
        },
    })
}

const FIELDS: &str = "work current_thread multi_thread baseline of_baseline limit of_limit every_byte_read caches_warm \
    after_a_pause aimed_at met";

const NOTES: &str = "\
p50 of both runtimes, `current_thread / multi_thread` where one column has both; every round has a tensor written anew, outside the
timed part. baseline: measured in turns. limit: a bare round of the same bytes over the same medium, both ends spinning (1 ms apart:
asleep); leased bytes count as none. every_byte_read: whoever receives a tensor sums it. Rounds of leased tensors begin with both ends
awake: once the tensor is written, calls without one go there and back, untimed. caches_warm: those calls carry a leased tensor of
64 KiB, so that the way of a lease is in the caches again, which writing a large tensor has emptied. after_a_pause: without such
calls, and after 1 ms of rest.";

/// Open connections of an idle server.
const CONNECTIONS: u32 = 10;
/// From this many bytes a run takes seconds, however short a run was asked for.
const HUGE: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_met_by_its_median() -> Result<()> {
        let selected = select(&["pipe-0".to_owned(), "paced".to_owned()])?;
        let [pipe, paced] = &selected[..] else {
            bail!("two lines");
        };
        let figures = pipe.figures(&[0.9, 0.7, 0.6], &[9.0, 11.0])?;
        assert_eq!((figures.ours, figures.aim, figures.met), (0.7, 0.8, true));
        let figures = paced.figures(&[10.5], &[9.0, 11.0])?;
        assert_eq!((figures.aim, figures.met), (10.0, false));
        assert_eq!(paced.aimed_at(), "≤ tarpc, unix");
        let selected = select(&["upload-tls".to_owned()])?;
        let [tls] = &selected[..] else {
            bail!("one line");
        };
        let figures = tls.figures(&[24.0, 26.0, 20.0], &[10.0])?;
        assert_eq!((figures.aim, figures.met), (25.0, true));
        assert_eq!(tls.aimed_at(), "≤ 2.5 × rpc, tcp");
        Ok(())
    }
}
