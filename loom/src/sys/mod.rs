//! Stand-ins for the system modules of the included sources: memory that two processes of a model share.
//!
//! `ledger::loans` is that of `tensorpipe/src/sys/`.

pub(crate) mod block;
pub(crate) mod drop_thread;
pub(crate) mod fork;
pub(crate) mod ledger;
#[expect(dead_code, unreachable_pub, reason = "nothing is registered here")]
#[path = "../../../tensorpipe/src/sys/registrations.rs"]
pub(crate) mod registrations;
pub(crate) mod segment;
