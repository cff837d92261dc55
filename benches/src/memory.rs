//! Memory of a process that is really there, as the kernel counts it.

use anyhow::{Context, Result};
use serde::Serialize;

/// What is resident, in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Resident {
    /// Private memory: heap, stacks, pools.
    pub(crate) anon: u64,
    /// Shared memory that has been touched, which other processes may have mapped, too.
    pub(crate) shmem: u64,
}

impl Resident {
    /// Of each the less.
    pub(crate) fn min(self, other: Self) -> Self {
        Self {
            anon: self.anon.min(other.anon),
            shmem: self.shmem.min(other.shmem),
        }
    }
}

/// Bytes of this process's heap that are in use, if they are counted (feature `heap`).
pub(crate) fn in_use() -> Option<u64> {
    #[cfg(feature = "heap")]
    return {
        let stats = ALLOCATOR.stats();
        // What grows or shrinks in place counts as allocated or freed already.
        Some(
            stats
                .bytes_allocated
                .saturating_sub(stats.bytes_deallocated) as u64,
        )
    };
    #[cfg(not(feature = "heap"))]
    None
}

#[cfg(feature = "heap")]
#[global_allocator]
static ALLOCATOR: &stats_alloc::StatsAlloc<std::alloc::System> = &stats_alloc::INSTRUMENTED_SYSTEM;

/// That of `process`.
///
/// # Errors
/// When it has ended.
pub(crate) fn resident(process: u32) -> Result<Resident> {
    let path = format!("/proc/{process}/status");
    let status = std::fs::read_to_string(&path).with_context(|| format!("{path}, has it ended"))?;
    parse(&status).with_context(|| format!("{path} is not as expected: {status}"))
}

fn parse(status: &str) -> Option<Resident> {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    Some(Resident {
        anon: field("RssAnon:")?,
        shmem: field("RssShmem:")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_lines_are_found() {
        let status = "Name:\tx\nVmRSS:\t  900 kB\nRssAnon:\t     420 kB\nRssFile:\t 5 kB\nRssShmem:\t 17 kB\n";
        let expected = Resident {
            anon: 420,
            shmem: 17,
        };
        assert_eq!(parse(status), Some(expected));
        assert_eq!(parse("Name:\tkthread\n"), None);
    }

    #[test]
    fn touched_memory_shows() -> Result<()> {
        let before = resident(std::process::id())?;
        let touched = vec![1u8; 32 << 20];
        let after = resident(std::process::id())?;
        std::hint::black_box(&touched);
        assert!(after.anon > before.anon, "{before:?} {after:?}");
        Ok(())
    }
}
