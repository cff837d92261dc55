//! Resources that a process holds, as the kernel counts them.

#![allow(unsafe_code, reason = "pages are made resident by a system call")]

use std::fs;

use nix::libc;

/// File descriptors that this process has open.
///
/// # Panics
/// Without `/proc`.
pub fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("/proc").count()
}

/// Resident memory of a process, in bytes.
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

/// The most that was resident since [`forget_peak`], in bytes.
///
/// # Panics
/// As [`resident`].
pub fn peak_resident(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("a running process");
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|peak| peak.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    peak.expect("a peak") << 10
}

/// Resets the peak to the memory that is resident now.
///
/// # Panics
/// As [`resident`].
pub fn forget_peak(process: u32) {
    fs::write(format!("/proc/{process}/clear_refs"), "5").expect("a running process");
}

/// Makes all code of this program and its libraries resident, so that later growth is data.
///
/// # Panics
/// As [`descriptors`].
pub fn make_code_resident() {
    let maps = fs::read_to_string("/proc/self/maps").expect("/proc");
    for line in maps.lines().filter(|line| line.contains(" /")) {
        let range = line.split(' ').next().and_then(|range| {
            let (start, end) = range.split_once('-')?;
            let number = |digits| usize::from_str_radix(digits, 16).ok();
            Some(number(start)?..number(end)?)
        });
        let range = range.expect("a range of addresses");
        let start = std::ptr::without_provenance_mut(range.start);
        // SAFETY: the call fails for pages that are not readable or are gone by now; other pages keep their content.
        let _ = unsafe { libc::madvise(start, range.len(), libc::MADV_POPULATE_READ) };
    }
}

/// Whether this runs under a sanitizer (`.ci/sanitize`), where freed memory stays resident and everything is slow.
pub fn is_sanitized() -> bool {
    std::env::var_os("TENSORPIPE_TEST_SANITIZED").is_some()
}
