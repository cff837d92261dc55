//! What is aimed at: one line of the table each.

use anyhow::{Result, bail};

use crate::plan::Case;
use crate::size::Size;

/// A line of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    /// To select it by.
    pub(super) name: &'static str,
    /// In words.
    pub(super) work: &'static str,
    pub(super) figure: Figure,
    pub(super) ours: Work,
    /// What is measured in turns with it.
    pub(super) baseline: Work,
    /// The baseline in words.
    pub(super) against: &'static str,
    pub(super) aim: Aim,
}

/// What a line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    /// Microseconds of a call.
    Time,
    /// Percent of a core that an idle server uses.
    Cpu,
    /// KiB of an idle server for each connection.
    Memory,
}

/// What a system does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// As [`Choice`](crate::system::Choice) reads it.
    pub(super) system: &'static str,
    pub(super) case: Case,
    pub(super) bytes: u64,
}

/// How much it may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Aim {
    AtMost(f64),
    /// So much more than the baseline.
    Above(f64),
    Below(f64),
}

impl Aim {
    /// The number, where the baseline took `baseline`.
    pub(super) fn number(self, baseline: f64) -> f64 {
        match self {
            Self::AtMost(number) | Self::Below(number) => number,
            Self::Above(more) => baseline + more,
        }
    }

    /// Whether `figure` is good enough.
    pub(super) fn is_met(self, figure: f64, baseline: f64) -> bool {
        match self {
            Self::Below(number) => figure < number,
            Self::AtMost(_) | Self::Above(_) => figure <= self.number(baseline),
        }
    }
}

/// The lines called `names`, in the order of the table: by the whole name, else all that begin so.
///
/// # Errors
/// When there is none of a name.
pub(super) fn select(names: &[String]) -> Result<Vec<&'static Target>> {
    if names.is_empty() {
        return Ok(ALL.iter().collect());
    }
    for name in names {
        if !ALL.iter().any(|target| target.name.starts_with(name)) {
            let known: Vec<_> = ALL.iter().map(|target| target.name).collect();
            bail!("there is no row `{name}`, choose of: {}", known.join(", "));
        }
    }
    let wanted = |target: &&Target| {
        names.iter().any(|name| {
            let exact = ALL.iter().any(|target| target.name == name);
            target.name == name || !exact && target.name.starts_with(name)
        })
    };
    Ok(ALL.iter().filter(wanted).collect())
}

/// A message there and back, its tensor in ordinary memory.
const fn heap(name: &'static str, work: &'static str, bytes: u64, micros: f64) -> Target {
    Target {
        name,
        work,
        figure: Figure::Time,
        ours: echo("pipe@shm", bytes),
        baseline: echo("tokio@unix", bytes),
        against: "tokio, unix",
        aim: Aim::AtMost(micros),
    }
}

/// The same with a leased tensor, beside the message without one.
const fn leased(name: &'static str, work: &'static str, bytes: u64) -> Target {
    Target {
        name,
        work,
        figure: Figure::Time,
        ours: echo("pipe@shm+lease:pool", bytes),
        baseline: echo("pipe@shm", 0),
        against: "metadata only",
        aim: Aim::Above(0.5),
    }
}

/// A call that carries a leased tensor, beside one that carries nothing.
const fn lent(name: &'static str, work: &'static str, case: Case) -> Target {
    Target {
        name,
        work,
        figure: Figure::Time,
        ours: Work {
            system: "rpc@shm+lease:pool",
            case,
            bytes: LARGE,
        },
        baseline: echo("rpc@shm", 0),
        against: "rpc echo",
        aim: Aim::Above(0.7),
    }
}

/// A call of ordinary memory, or none.
const fn call(
    name: &'static str,
    work: &'static str,
    (system, case, bytes): (&'static str, Case, u64),
    (peer, against): (&'static str, &'static str),
    aim: Aim,
) -> Target {
    Target {
        name,
        work,
        figure: Figure::Time,
        ours: Work {
            system,
            case,
            bytes,
        },
        baseline: Work {
            system: peer,
            case,
            bytes,
        },
        against,
        aim,
    }
}

/// A call with ordinary memory, beside the same by hand.
const fn by_hand(name: &'static str, work: &'static str, case: Case, bytes: u64) -> Target {
    let aim = Aim::Above(0.0);
    call(name, work, ("rpc@shm", case, bytes), TOKIO, aim)
}

const fn idle(name: &'static str, work: &'static str, figure: Figure, aim: Aim) -> Target {
    Target {
        name,
        work,
        figure,
        ours: echo("pipe@shm", IDLE),
        baseline: echo("tokio@unix", IDLE),
        against: "tokio, unix",
        aim,
    }
}

const fn echo(system: &'static str, bytes: u64) -> Work {
    Work {
        system,
        case: Case::Echo,
        bytes,
    }
}

const KIB: u64 = Size::KIB;
const MIB: u64 = Size::MIB;
/// Of uploads and downloads.
const LARGE: u64 = 256 * MIB;
/// Of the calls before a server is left alone.
const IDLE: u64 = super::idle::USUAL_SIZE.0;
const TOKIO: (&str, &str) = ("tokio@unix", "tokio, unix");
const TARPC: (&str, &str) = ("tarpc@unix", "tarpc, unix");

/// Every line, in order.
pub(super) static ALL: &[Target] = &[
    heap("pipe-0", "pipe there and back, metadata only, shm", 0, 0.8),
    heap("pipe-4KiB", "… 4 KiB both ways", 4 * KIB, 1.5),
    heap("pipe-1MiB", "… 1 MiB, ordinary memory", MIB, 45.0),
    heap("pipe-16MiB", "… 16 MiB", 16 * MIB, 800.0),
    heap("pipe-128MiB", "… 128 MiB", 128 * MIB, 14_500.0),
    leased("lease-4KiB", "… 4 KiB, leased", 4 * KIB),
    leased("lease-64KiB", "… 64 KiB, leased", 64 * KIB),
    leased("lease-1MiB", "… 1 MiB, leased", MIB),
    leased("lease-16MiB", "… 16 MiB, leased", 16 * MIB),
    leased("lease-128MiB", "… 128 MiB, leased", 128 * MIB),
    leased("lease-1GiB", "… 1 GiB, leased", 1024 * MIB),
    call(
        "echo",
        "rpc echo, shm",
        ("rpc@shm", Case::Echo, 0),
        TARPC,
        Aim::AtMost(1.9),
    ),
    call(
        "in-flight",
        "rpc, 64 in flight, each",
        ("rpc@shm", Case::Pipeline, 0),
        TOKIO,
        Aim::AtMost(0.6),
    ),
    by_hand(
        "upload-64KiB",
        "rpc upload, 64 KiB, ordinary memory",
        Case::Upload,
        64 * KIB,
    ),
    by_hand("upload-1MiB", "… 1 MiB", Case::Upload, MIB),
    by_hand("upload-16MiB", "… 16 MiB", Case::Upload, 16 * MIB),
    call(
        "upload",
        "rpc upload, 256 MiB, ordinary memory",
        ("rpc@shm", Case::Upload, LARGE),
        TOKIO,
        Aim::AtMost(14_000.0),
    ),
    call(
        "download",
        "rpc download, 256 MiB, ordinary memory",
        ("rpc@shm", Case::Download, LARGE),
        TOKIO,
        Aim::AtMost(14_000.0),
    ),
    lent("upload-pool", "rpc upload, 256 MiB, pool", Case::Upload),
    lent(
        "download-pool",
        "rpc download, 256 MiB, pool",
        Case::Download,
    ),
    call(
        "echo-tcp",
        "rpc echo, tcp, hot",
        ("rpc@tcp", Case::Echo, 0),
        ("tokio@tcp", "tokio, tcp"),
        Aim::AtMost(15.0),
    ),
    call(
        "paced",
        "rpc echo, shm, calls 1 ms apart",
        ("rpc@shm", Case::Paced, 0),
        TARPC,
        Aim::Above(0.0),
    ),
    by_hand(
        "paced-64KiB",
        "… with 64 KiB, ordinary memory",
        Case::Paced,
        64 * KIB,
    ),
    by_hand("paced-256KiB", "… 256 KiB", Case::Paced, 256 * KIB),
    by_hand("paced-1MiB", "… 1 MiB", Case::Paced, MIB),
    by_hand("paced-4MiB", "… 4 MiB", Case::Paced, 4 * MIB),
    by_hand("paced-16MiB", "… 16 MiB", Case::Paced, 16 * MIB),
    idle(
        "idle-cpu",
        "idle server, 10 pipes over shm, of a core",
        Figure::Cpu,
        Aim::Below(0.5),
    ),
    idle(
        "idle-memory",
        "resident memory of it for each idle pipe",
        Figure::Memory,
        Aim::AtMost(256.0),
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::plan::Transport;
    use crate::system::Choice;

    fn names(wanted: &[&str]) -> Result<Vec<&'static str>> {
        let wanted: Vec<_> = wanted.iter().map(|name| (*name).to_owned()).collect();
        let selected = select(&wanted)?;
        Ok(selected.into_iter().map(|target| target.name).collect())
    }

    #[test]
    fn every_line_can_be_measured_and_has_a_name_of_its_own() -> Result<()> {
        for target in ALL {
            for work in [target.ours, target.baseline] {
                Choice::parse(work.system)?.check(work.case, Transport::Tcp)?;
            }
        }
        let unique: BTreeSet<_> = ALL.iter().map(|target| target.name).collect();
        assert_eq!(unique.len(), ALL.len());
        Ok(())
    }

    #[test]
    fn lines_are_selected_by_their_name_or_by_how_it_begins() -> Result<()> {
        assert_eq!(names(&[])?.len(), ALL.len());
        assert_eq!(names(&["echo"])?, ["echo"]);
        assert_eq!(names(&["download-"])?, ["download-pool"]);
        assert_eq!(
            names(&["idle", "pipe-4"])?,
            ["pipe-4KiB", "idle-cpu", "idle-memory"]
        );
        let error = names(&["gpu"]).expect_err("there is none").to_string();
        assert!(
            error.contains("there is no row `gpu`, choose of: pipe-0"),
            "{error}"
        );
        Ok(())
    }

    #[test]
    fn an_aim_is_a_number_or_one_above_the_baseline() {
        assert!(Aim::AtMost(2.0).is_met(2.0, 9.0) && !Aim::AtMost(2.0).is_met(2.1, 9.0));
        assert!(Aim::Above(0.5).is_met(1.5, 1.0) && !Aim::Above(0.5).is_met(1.6, 1.0));
        assert!(Aim::Below(0.5).is_met(0.49, 0.0) && !Aim::Below(0.5).is_met(0.5, 0.0));
        assert_eq!(Aim::Above(0.5).number(1.0), 1.5);
    }
}
