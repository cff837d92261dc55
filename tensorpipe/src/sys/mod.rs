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
