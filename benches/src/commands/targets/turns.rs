//! One line on one runtime: the system and its baseline in turns, A B A B …, each run with fresh processes, and beside them
//! the machine's limit.

use std::cell::RefCell;
use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Serialize;

use super::list::{Figure, Target, Work};
use crate::commands::{idle, once};
use crate::cores;
use crate::limits::{self as machine, Cores};
use crate::measure::median;
use crate::plan::{Alloc, Begin, Flavor, Plan, Transport};
use crate::report::IdleRow;
use crate::system::Choice;

/// How lines are measured.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    pub(super) runs: u32,
    pub(super) seconds: f64,
    pub(super) idle_seconds: f64,
    /// Larger tensors are cut down to so many bytes.
    pub(super) largest: u64,
    /// The two cores, where there are two.
    pub(super) cores: Option<Cores>,
    /// Whether the threads of the multi_thread runtime stay where the system puts them.
    pub(super) roam: bool,
    /// Idle servers have two lines and are measured once: by their system and runtime.
    pub(super) idle: RefCell<BTreeMap<(&'static str, &'static str), IdleRow>>,
}

/// What came of it: medians over the runs, in microseconds, percent or KiB.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Figures {
    pub(super) ours: f64,
    pub(super) best: f64,
    pub(super) worst: f64,
    pub(super) baseline: f64,
    /// A bare round of the same bytes over the same medium.
    pub(super) limit: Option<f64>,
    /// When whoever receives a tensor reads every byte of it.
    pub(super) sum: Option<f64>,
    /// When the trips that woke both ends carried a small leased tensor; for lines whose rounds begin with both awake.
    pub(super) hot: Option<f64>,
    /// When both ends were asleep before the call; for the same lines.
    pub(super) after_pause: Option<f64>,
    pub(super) aim: f64,
    pub(super) met: bool,
    /// The spinning round trip between the cores just before, in microseconds.
    pub(super) cores_us: Option<f64>,
}

impl Turns {
    /// Measures `target` on both sides' runtime of kind `flavor`.
    ///
    /// # Errors
    /// When a system or a limit cannot be measured.
    pub(super) fn measure(&self, target: &Target, flavor: Flavor) -> Result<Figures> {
        match target.figure {
            Figure::Time => self.time(target, flavor),
            Figure::Cpu => self.idle(target, flavor, |row| row.cpu_percent),
            Figure::Memory => self.idle(target, flavor, |row| row.anon_kib + row.shmem_kib),
        }
    }

    fn time(&self, target: &Target, flavor: Flavor) -> Result<Figures> {
        let (choice, plan) = self.plan(target.ours, flavor)?;
        let (peer, peer_plan) = self.plan(target.baseline, flavor)?;
        let cores_us = self.cores.and_then(cores::spinning_round_trip);
        let (mut ours, mut baseline, mut limits) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.runs_of(&plan) {
            ours.push(self.once(&choice, &plan)?);
            baseline.push(self.once(&peer, &peer_plan)?);
            if let Some(cores) = self.cores {
                let limit = machine::floor(&plan, plan.is_leased(), cores);
                limits.extend(limit.context("the machine's limit")?);
            }
        }
        let but = |change: fn(&mut Plan)| -> Result<f64> {
            let mut plan = plan.clone();
            change(&mut plan);
            self.once(&choice, &plan)
        };
        let sum = (plan.bytes > 0).then(|| but(|plan| plan.sum = true));
        let is_warm = plan.begin() == Begin::Awake;
        let after_pause = is_warm.then(|| but(|plan| plan.begin = Begin::Asleep));
        let hot = is_warm.then(|| but(|plan| plan.begin = Begin::Hot));
        let mut figures = Figures::of(target, &ours, &baseline)?;
        figures.limit = median(&limits);
        figures.sum = sum.transpose()?;
        figures.hot = hot.transpose()?;
        figures.after_pause = after_pause.transpose()?;
        figures.cores_us = cores_us;
        Ok(figures)
    }

    fn idle(
        &self,
        target: &Target,
        flavor: Flavor,
        figure: fn(&IdleRow) -> f64,
    ) -> Result<Figures> {
        let measure = |work: Work| {
            let key = (work.system, flavor.name());
            if let Some(measured) = self.idle.borrow().get(&key) {
                return Ok(figure(measured));
            }
            let (choice, mut plan) = self.plan(work, flavor)?;
            plan.seconds = self.idle_seconds;
            let measured = on_its_core(&plan, || idle::measure(&choice, &plan, CONNECTIONS))?;
            let found = figure(&measured);
            self.idle.borrow_mut().insert(key, measured);
            anyhow::Ok(found)
        };
        let (ours, baseline) = (measure(target.ours)?, measure(target.baseline)?);
        Figures::of(target, &[ours], &[baseline])
    }

    fn once(&self, choice: &Choice, plan: &Plan) -> Result<f64> {
        let row = on_its_core(plan, || once(choice.system, plan))?;
        Ok(row.p50_us)
    }

    /// Where a run takes seconds, two of them say enough.
    fn runs_of(&self, plan: &Plan) -> u32 {
        if plan.bytes < HUGE {
            self.runs
        } else {
            self.runs.min(2)
        }
    }

    fn plan(&self, work: Work, flavor: Flavor) -> Result<(Choice, Plan)> {
        let choice = Choice::parse(work.system)?;
        let base = Plan {
            system: String::new(),
            case: work.case,
            transport: Transport::Tcp,
            channel: None,
            lanes: None,
            pace: None,
            alloc: Alloc::Heap,
            runtime: flavor,
            bytes: work.bytes.min(self.largest),
            seconds: self.seconds,
            busy_us: 0,
            sum: false,
            begin: Begin::AsTheyAre,
            cores: self.cores.filter(|_| !self.roams(flavor)),
        };
        let mut plan = choice.plan(&base);
        if plan.is_leased() {
            plan.begin = Begin::Awake;
        }
        Ok((choice, plan))
    }

    fn roams(&self, flavor: Flavor) -> bool {
        self.roam && flavor == Flavor::Multi
    }
}

impl Figures {
    fn of(target: &Target, ours: &[f64], baseline: &[f64]) -> Result<Self> {
        let nothing = "nothing was measured";
        let (of_ours, of_baseline) = (
            median(ours).context(nothing)?,
            median(baseline).context(nothing)?,
        );
        Ok(Self {
            ours: of_ours,
            best: ours.iter().copied().fold(f64::INFINITY, f64::min),
            worst: ours.iter().copied().fold(0.0, f64::max),
            baseline: of_baseline,
            limit: None,
            sum: None,
            hot: None,
            after_pause: None,
            aim: target.aim.number(of_baseline),
            met: target.aim.is_met(of_ours, of_baseline),
            cores_us: None,
        })
    }
}

/// Does `work` on a thread that is pinned as the plan wants its client to be, and so is what it starts. The calling thread
/// stays free, for plans that want none.
fn on_its_core<T: Send>(plan: &Plan, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let working = scope.spawn(|| {
            if let Some((core, _)) = plan.cores {
                cores::pin(core)?;
            }
            work()
        });
        let done = working.join();
        done.unwrap_or_else(|_| anyhow::bail!("a measuring thread panicked"))
    })
}

/// Open connections of an idle server.
const CONNECTIONS: u32 = 10;
/// Bytes from which a run takes seconds, however short it shall be.
const HUGE: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::targets::list::select;

    fn turns() -> Turns {
        Turns {
            runs: 3,
            seconds: 0.1,
            idle_seconds: 1.0,
            largest: u64::MAX,
            cores: Some((0, 1)),
            roam: true,
            idle: RefCell::default(),
        }
    }

    fn target(name: &str) -> Result<&'static Target> {
        let selected = select(&[name.to_owned()])?;
        selected.first().copied().context("it is there")
    }

    #[test]
    fn leased_lines_begin_awake_and_others_as_they_are() -> Result<()> {
        for (name, expected) in [
            ("lease-1MiB", Begin::Awake),
            ("upload-pool", Begin::Awake),
            ("upload", Begin::AsTheyAre),
            ("paced", Begin::Asleep),
            ("paced-1MiB", Begin::Asleep),
        ] {
            let (_, plan) = turns().plan(target(name)?.ours, Flavor::Current)?;
            assert_eq!(plan.begin(), expected, "{name}");
        }
        Ok(())
    }

    #[test]
    fn only_the_runtime_with_many_threads_roams() -> Result<()> {
        let work = target("echo")?.ours;
        let cores = |turns: Turns, flavor| anyhow::Ok(turns.plan(work, flavor)?.1.cores);
        let pinned = Turns {
            roam: false,
            ..turns()
        };
        assert_eq!(cores(turns(), Flavor::Multi)?, None);
        assert_eq!(cores(turns(), Flavor::Current)?, Some((0, 1)));
        assert_eq!(cores(pinned, Flavor::Multi)?, Some((0, 1)));
        Ok(())
    }

    #[test]
    fn what_is_huge_is_cut_down_or_measured_less_often() -> Result<()> {
        let work = target("lease-1GiB")?.ours;
        let (_, plan) = turns().plan(work, Flavor::Current)?;
        assert_eq!((plan.bytes, turns().runs_of(&plan)), (1 << 30, 2));
        let small = Turns {
            largest: 1 << 20,
            ..turns()
        };
        let (_, plan) = small.plan(work, Flavor::Current)?;
        assert_eq!((plan.bytes, small.runs_of(&plan)), (1 << 20, 3));
        Ok(())
    }

    #[test]
    fn a_line_is_met_by_its_median() -> Result<()> {
        let figures = Figures::of(target("pipe-0")?, &[0.9, 0.7, 0.6], &[9.0, 11.0])?;
        assert_eq!(
            (figures.ours, figures.baseline, figures.aim),
            (0.7, 10.0, 0.8)
        );
        assert_eq!((figures.best, figures.worst, figures.met), (0.6, 0.9, true));
        let above = Figures::of(target("echo")?, &[2.0], &[9.0])?;
        assert!(!above.met);
        assert!(Figures::of(target("echo")?, &[], &[9.0]).is_err());
        Ok(())
    }
}
