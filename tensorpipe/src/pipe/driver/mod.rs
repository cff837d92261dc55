//! Who drives a pipe, who looks at its connection, and who sleeps.

pub(super) mod busy_poll;
pub(super) mod delivery_lock;
pub(super) mod drive;
pub(super) mod poll_time;
pub(super) mod runtime;
pub(super) mod waiter;
pub(super) mod wakers;

use self::{poll_time as spin, wakers as poller};
use super::{core, io, shared};
