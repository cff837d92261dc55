//! Limits on the work that a server does for its callers.

use std::time::Duration;

/// How much a server does at once, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerLimits {
    /// Calls under way at once, of all connections. Further calls are refused as
    /// [`CallError::Overloaded`](crate::CallError::Overloaded), before tensors that need a go-ahead move. Half of these places are
    /// reserved: each peer ([`PeerAddr::party`](tensorpipe::PeerAddr::party)) has an equal share, divided among its connections.
    /// Nobody else gets the unused part of a share. Default 16384.
    pub calls: usize,
    /// Calls under way at once of one connection, and, with 64 more, results that its caller does not take. They stay in memory: lower it
    /// where results are large and callers are not trusted. Default 4096.
    pub calls_per_connection: usize,
    /// The longest that a call may take, even if its caller allows more. A caller that sends its tensors slowly, or never, holds
    /// its place for this long: lower it where untrusted peers may connect. Default one hour.
    pub longest_call: Duration,
    /// Values that the other end of one connection refers to ([`Remote`](crate::Remote)). A reply that would exceed it fails with
    /// [`CallError::BadReply`](crate::CallError::BadReply), although the method has run. So many may also be
    /// [shared](crate::Remote::share) and unclaimed, over one connection a quarter of them, or 16384 if that is more. Default 2^20.
    pub references: usize,
    /// Bytes of unread items that all streams of one connection share. Each stream has 256 KiB beside that. Default 256 MiB.
    ///
    /// When they are used up, nothing fails: streams go on in smaller steps. A larger item waits at its sender until there is room,
    /// or its reader waits for it.
    ///
    /// This limit, divided by 256 KiB, also bounds how many streams a peer may have open: 1024 by default, at least 64. A call with
    /// one stream too many is refused as overloaded. Clients have the same bounds, with the default.
    pub unread_items: u64,
    /// How long a shutdown waits for calls under way, and for their replies to get across. Default 30 s. The pipes' goodbyes may take
    /// [`Timeouts::linger`](tensorpipe::Timeouts::linger) more: take less than both where the process is killed after some time, as after
    /// 30 s by Kubernetes.
    pub drain: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            calls: 16384,
            calls_per_connection: 4096,
            longest_call: Duration::from_secs(3600),
            references: 1 << 20,
            unread_items: 256 << 20,
            drain: Duration::from_secs(30),
        }
    }
}
