//! The allocator's tuning, for both processes.
//!
//! By default glibc has arenas for each thread, and takes long blocks from them once one was freed: with blocks of chance, freed on
//! other threads than they were made on, holes grow by tens of MiB a minute for minutes, in use or not. With one arena, and long
//! blocks mapped one by one, resident memory is what is in use, and some hundred KiB.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// What is set, unless the user has set any of it.
const TUNING: [(&str, &str); 3] = [
    ("MALLOC_ARENA_MAX", "1"),
    ("MALLOC_MMAP_THRESHOLD_", "65536"),
    ("MALLOC_TRIM_THRESHOLD_", "65536"),
];

/// Begins this process anew with the tuning, if it has none: the allocator looks at its environment once.
///
/// # Errors
/// When it cannot be started again.
pub(crate) fn tune() -> Result<()> {
    if TUNING
        .iter()
        .any(|(name, _)| std::env::var_os(name).is_some())
    {
        return Ok(());
    }
    let binary = std::env::current_exe().context("this binary's path is not known")?;
    let error = Command::new(binary)
        .args(std::env::args_os().skip(1))
        .envs(TUNING)
        .exec();
    bail!("this program cannot be started again: {error}")
}
