//! What is left of a peer that is gone: there must be nothing.
//!
//! - file descriptors: what they lead to, and how many of each;
//! - mappings of shared memory, by name;
//! - memory of senders ([`Ledger`]) and of pools that somebody holds;
//! - names in `/dev/shm`.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fs;
#[cfg(test)]
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use tensorpipe::Context;

use super::parcel::Ledger;

/// What this process holds, in words and numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Holdings(BTreeMap<String, u64>);

impl Holdings {
    /// What it holds now: descriptors and mappings.
    ///
    /// # Errors
    /// Without `/proc`.
    pub(super) fn now() -> Result<Self> {
        let mut held = BTreeMap::new();
        for entry in fs::read_dir("/proc/self/fd").context("/proc/self/fd")? {
            // The one that reads this directory is gone by now.
            let Ok(target) = fs::read_link(entry?.path()) else {
                continue;
            };
            let target = target.to_string_lossy();
            // `socket:[4711]`: the number is new each time; `anon_inode:[pidfd]` is a kind.
            let kind = target.trim_end_matches(|c: char| c.is_ascii_digit() || "[]".contains(c));
            if !target.starts_with("/proc/") {
                *held.entry(format!("fd {kind}")).or_default() += 1;
            }
        }
        let maps = fs::read_to_string("/proc/self/maps").context("/proc/self/maps")?;
        for name in maps.lines().filter_map(shared_mapping) {
            *held.entry(format!("mapping {name}")).or_default() += 1;
        }
        Ok(Self(held))
    }

    /// The same, and the memory that is in somebody's hands. Pools give back what they kept warm.
    ///
    /// # Errors
    /// Without `/proc`.
    pub(super) fn with_memory<'a>(
        contexts: impl Iterator<Item = &'a Context>,
        ledger: &Ledger,
    ) -> Result<Self> {
        let mut pooled = 0;
        for context in contexts {
            context.pool().trim(0);
            pooled += context.pool().stats().outstanding_bytes;
        }
        let mut held = Self::now()?;
        held.0.insert("bytes of pools".to_owned(), pooled);
        held.0.insert("bytes of senders".to_owned(), ledger.held());
        Ok(held)
    }

    /// How many descriptors there are.
    pub(super) fn descriptors(&self) -> u64 {
        let kinds = self.0.iter().filter(|(name, _)| name.starts_with("fd "));
        kinds.map(|(_, count)| count).sum()
    }

    /// What there is here and not in `before`, or less of it; nothing when they are the same. Of what a pair of processes keeps warm
    /// for some seconds (copies that one lends to the other) there may be less.
    pub(super) fn differences(&self, before: &Self) -> Vec<String> {
        let names: BTreeSet<_> = self.0.keys().chain(before.0.keys()).collect();
        let count = |held: &Self, name: &String| held.0.get(name).copied().unwrap_or_default();
        names
            .into_iter()
            .map(|name| (name, count(before, name), count(self, name)))
            .filter(
                |(name, before, now)| match name.contains("memfd:tensorpipe") {
                    true => now > before,
                    false => before != now,
                },
            )
            .map(|(name, before, now)| format!("{name}: {before} before, {now} now"))
            .collect()
    }
}

/// The name of a mapping that other processes may share.
fn shared_mapping(line: &str) -> Option<String> {
    let mut fields = line.split_ascii_whitespace();
    let access = fields.nth(1)?;
    let name: Vec<_> = fields.skip(3).collect();
    let name = name.join(" ");
    let shared = access.ends_with('s') || name.contains("memfd:") || name.contains("/dev/shm/");
    shared.then_some(name)
}

/// The names in `/dev/shm`.
pub(super) fn names() -> BTreeSet<String> {
    // Where there is no such directory nothing can be left in it.
    let entries = fs::read_dir(SHM).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// The names that were not there before and that no running process uses: another program's are its own affair.
pub(super) fn abandoned(before: &BTreeSet<String>) -> Vec<String> {
    let new: Vec<_> = names().difference(before).cloned().collect();
    if new.is_empty() {
        return new;
    }
    let used: BTreeSet<_> = open_files().collect();
    new.into_iter()
        .filter(|name| !used.contains(&format!("{SHM}/{name}")))
        .collect()
}

/// What the processes that we may look at have open or mapped.
fn open_files() -> impl Iterator<Item = String> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.flat_map(|process| {
        let open = fs::read_dir(process.path().join("fd"))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| fs::read_link(entry.path()).ok())
            .map(|target| target.to_string_lossy().into_owned());
        let maps = fs::read_to_string(process.path().join("maps")).unwrap_or_default();
        let mapped: Vec<_> = maps
            .lines()
            .filter_map(|line| Some(line.get(line.find(SHM)?..)?.to_owned()))
            .collect();
        open.chain(mapped).collect::<Vec<_>>()
    })
}

const SHM: &str = "/dev/shm";

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_descriptor_more_is_seen_and_its_number_does_not_count() -> Result<()> {
        // Other tests open files meanwhile, but nobody has this one.
        let path = std::env::temp_dir().join(format!("tp-bench-residue-{}", std::process::id()));
        let file = fs::File::create(&path)?;
        fs::remove_file(&path)?;
        let with = Holdings::now()?;
        drop(file);
        let without = Holdings::now()?;
        let ours = |held: &Holdings| {
            let name = path.to_string_lossy().into_owned();
            held.0.keys().any(|held| held.contains(&name))
        };
        assert!(ours(&with) && !ours(&without));
        let seen = with.differences(&without);
        assert!(
            seen.iter().any(|line| line.contains("0 before, 1 now")),
            "{seen:?}"
        );
        let _sockets = UnixStream::pair()?;
        assert!(Holdings::now()?.0.contains_key("fd socket:"));
        Ok(())
    }

    #[test]
    fn shared_mappings_are_told_from_private_ones() {
        let cases = [
            (
                "7f00-7f01 rw-s 00000000 00:01 2049 /memfd:tensorpipe pipe (deleted)",
                Some("/memfd:tensorpipe pipe (deleted)"),
            ),
            (
                "7f00-7f01 r--p 00000000 00:01 2049 /memfd:x (deleted)",
                Some("/memfd:x (deleted)"),
            ),
            ("7f00-7f01 rw-p 00000000 00:00 0 [heap]", None),
            ("7f00-7f01 rw-p 00000000 00:00 0", None),
        ];
        for (line, expected) in cases {
            assert_eq!(shared_mapping(line).as_deref(), expected, "{line}");
        }
    }

    #[test]
    fn a_name_that_nobody_uses_is_abandoned() -> Result<()> {
        if !Path::new(SHM).is_dir() {
            return Ok(());
        }
        let before = names();
        let name = format!("tp-bench-test-{}", std::process::id());
        let path = Path::new(SHM).join(&name);
        let file = fs::File::create(&path)?;
        assert!(!abandoned(&before).contains(&name), "it is in use");
        drop(file);
        assert!(abandoned(&before).contains(&name));
        fs::remove_file(path)?;
        assert!(!abandoned(&before).contains(&name));
        Ok(())
    }

    #[tokio::test]
    async fn memory_in_use_is_seen() -> Result<()> {
        let context = Context::new();
        let ledger = Ledger::default();
        let holdings = || Holdings::with_memory([&context].into_iter(), &ledger);
        let taken = context.pool().take(1 << 20);
        assert!(holdings()?.0["bytes of pools"] >= 1 << 20);
        drop(taken);
        assert_eq!(holdings()?.0["bytes of pools"], 0);
        Ok(())
    }
}
