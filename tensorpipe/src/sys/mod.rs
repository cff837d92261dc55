//! System calls and raw memory: what needs `unsafe` and knows nothing of pipes.

pub(crate) mod block;
mod huge_pages;
pub(crate) mod machine;
pub(crate) mod memory;
pub(crate) mod pacing;
pub(crate) mod passing;
pub(crate) mod shared_memory;
