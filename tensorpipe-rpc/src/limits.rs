//! How much is done for others.

use std::time::Duration;

/// How much a server does at once.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerLimits {
    /// Calls under way at once, of all connections. Beyond, a call is refused as
    /// [`CallError::Overloaded`](crate::CallError::Overloaded) before those of its tensors move that wait for a go-ahead. Of these
    /// places half are divided among the peers that there are ([`PeerAddr::party`](tensorpipe::PeerAddr::party)), and a peer's
    /// among its connections. What one has not taken of its share is kept for it, whatever the others ask for. Default 16384.
    pub calls: usize,
    /// Calls under way at once of one connection. Default 4096.
    pub calls_per_connection: usize,
    /// The longest that a call may take, whatever its caller says. A caller that sends its tensors slowly, or never, holds
    /// its place for so long: lower it where untrusted peers may connect. Default one hour.
    pub longest_call: Duration,
    /// Values that the other end of one connection refers to ([`Remote`](crate::Remote)). A reply that would give away more
    /// is [`CallError::BadReply`](crate::CallError::BadReply): the method has run. Default 2^20.
    pub references: usize,
    /// Bytes of unread items that all streams of one connection share. Each stream has 256 KiB beside that. Default 256 MiB.
    ///
    /// When they are used up nothing fails: streams go on in smaller steps. A larger item waits at its sender until there is room or
    /// its reader waits for it.
    ///
    /// It also bounds the streams that a peer may have open: this number divided by 256 KiB (1024 by default), at least 64. One more
    /// call with a stream is refused as overloaded. Clients have the same bounds, with the default.
    pub unread_items: u64,
    /// How long a shutdown waits for calls under way, and for their replies to get across. Default 30 s.
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
