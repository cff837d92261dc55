//! How much a rendezvous holds, and what it holds now.

/// How many values a rendezvous remembers as received: a second send or receive of one of these is an error, not a wait.
pub(super) const REMEMBERED: usize = 16384;

/// How many values may be lent at once whose consumers have not said that they have them. They may be beyond the bounds, since
/// somebody has asked for each: a consumer that never says so is lent no more.
pub(super) const LENT: usize = 16384;

/// How much a rendezvous holds of what its process has sent and nobody has received. A value that somebody waits for is
/// taken all the same: so bounds never stop what would go on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of tensors. Default 1 GiB.
    pub bytes: u64,
    /// Values, dead and empty ones too. Default 65536.
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
    /// Bytes of values that were sent here and have not been received, those on their way included.
    pub bytes: u64,
    /// How many these are.
    pub values: usize,
    /// Sends that wait for room.
    pub blocked: usize,
    /// Receives that wait for a value: of this process, and of others for values of this one.
    pub waiting: usize,
    /// What other processes had no right to say, so far: receipts for values that they were not lent, aborts in the name of
    /// another consumer.
    pub refused: u64,
}
