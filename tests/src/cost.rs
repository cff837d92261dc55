//! What a process holds, as the system counts it.

use std::fs;

/// File descriptors that this process has open.
///
/// # Panics
/// Without `/proc`.
pub fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("/proc").count()
}

/// Memory of a process that is really there, in bytes.
///
/// # Panics
/// Without `/proc`, or when the process is gone.
pub fn resident(process: u32) -> u64 {
    let statm = fs::read_to_string(format!("/proc/{process}/statm")).expect("a running process");
    let pages: u64 = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .expect("a number of pages");
    pages * 4096
}
