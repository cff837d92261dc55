//! System calls and raw memory: what needs `unsafe` and knows nothing of pipes.

pub(crate) mod block;
pub(crate) mod copy;
pub(crate) mod drop_thread;
pub(crate) mod fork;
mod huge_pages;
pub(crate) mod ledger;
pub(crate) mod machine;
pub(crate) mod memfd;
pub(crate) mod memory;
pub(crate) mod pacing;
pub(crate) mod peer;
mod probe;
pub(crate) mod process_memory;
pub(crate) mod processors;
pub(crate) mod readable;
pub(crate) mod registrations;
pub(crate) mod segment;
pub(crate) mod unix_fds;
pub(crate) mod waiting;
pub(crate) mod workers;

/// Whether a file may be readable at another time: there was no descriptor for it, or no memory.
fn is_short(error: &std::io::Error) -> bool {
    let short = [libc::EMFILE, libc::ENFILE, libc::ENOMEM];
    error
        .raw_os_error()
        .is_some_and(|errno| short.contains(&errno))
}
