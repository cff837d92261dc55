//! What the included sources know of the system: memory that two processes of a model share.
//!
//! `ledger::loans` is that of `tensorpipe/src/sys/`.

pub(crate) mod block;
pub(crate) mod fork;
pub(crate) mod ledger;
pub(crate) mod segment;
