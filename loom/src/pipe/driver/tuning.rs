//! Stand-in for `tensorpipe/src/pipe/driver/tuning.rs`.

pub(super) const ROUNDS: usize = 16;

/// One poll that finds nothing suffices: messages may arrive before or after it.
pub(super) const POLLS_PER_WAKE: u32 = 1;

pub(super) const LEFT_ALONE: u32 = 1;
pub(super) const COSTLY_POLL_MESSAGES: u32 = 4;
pub(super) const SOCKET_ALONE: u32 = 1;
pub(super) const SOLE_POLLER_WAITERS: usize = 2;
pub(super) const RECEIVE_BATCH_WAITERS: usize = 16;
