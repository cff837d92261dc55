//! How much a rendezvous may hold, and how much it holds now.

/// How many values a rendezvous remembers as received: a second send or receive of one of these is an error, not a wait.
pub(super) const REMEMBERED: usize = 16384;

/// How many values may be lent at once without a confirmation from their consumers. A consumer that never confirms is lent no more.
pub(super) const LENT: usize = 16384;

/// Bounds what a process has sent and nobody has received. A value that a receiver waits for is accepted even beyond them, so
/// bounds never block progress. Whoever waits in another process may not confirm what it gets. So beyond the bounds, only as many
/// bytes again are accepted for other processes, and then one value for each consumer that has no other to confirm.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of tensors. Default 1 GiB.
    pub bytes: u64,
    /// Number of values, dead and empty ones included. Default 65536.
    pub values: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 1 << 30,
            values: 65536,
        }
    }
}

/// What a rendezvous holds at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Bytes of values that were sent here and not received, including those on their way.
    pub bytes: u64,
    /// The number of these values.
    pub values: usize,
    /// Sends that wait for room.
    pub blocked: usize,
    /// Receives that wait for a value: this process's, and other processes' for its values.
    pub waiting: usize,
    /// How many invalid messages came from other processes: receipts for values that they were not lent, and aborts in another
    /// consumer's name.
    pub refused: u64,
}
