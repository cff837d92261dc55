//! Limits, bounds on waiting, and how a connector waits for its listener.

use std::time::Duration;

use crate::error::Misuse;
use crate::proto::wire::hello::WireLimits;
use crate::sys;

/// What this side is prepared to receive, and how much it holds at once. Memory grows with bytes that have come in, never with what a
/// peer announces. By default it may grow to half of the machine's: see [`Limits::receive_budget`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// All metadata of one message, in bytes. Default 1 MiB.
    pub metadata: u32,
    /// One payload, in bytes. Default 8 GiB.
    pub payload: u64,
    /// One tensor, in bytes. Default 64 GiB.
    pub tensor: u64,
    /// All payloads and tensors of one message, in bytes. Default 128 GiB.
    pub message: u64,
    /// Payloads plus tensors of one message. Default 4096.
    pub parts: u16,
    /// Payloads and tensors up to this size travel in the message's own frame, in bytes. Default 64 KiB.
    pub eager_part: u32,
    /// All of them in one message. Default 256 KiB.
    pub eager_message: u32,
    /// The longest piece of bulk data between which other frames pass, in bytes. Default 256 KiB.
    pub chunk: u32,
    /// Messages that may be under way to this side and not yet read. Default 1024.
    pub window_messages: u32,
    /// Bytes of them, without bulk parts. Default 4 MiB.
    pub window_bytes: u64,
    /// The most that the peer of one pipe may send before this side's go-ahead, in bytes of parts that are not in the message's frame. It
    /// saves a round trip, and costs a copy if such a part is then read into [`Place::Into`](crate::Place::Into). A pipe begins with 256
    /// KiB of it, gets more when its messages had to wait, and falls back to 256 KiB when nothing came ahead for 10 s. All pipes together
    /// have a quarter of `receive_budget` at most, beside that budget; those of one host or user have a quarter of that. A context with
    /// channels or memory for devices grants none: where a tensor goes is decided before it comes. Default 4 MiB.
    pub window_ahead: u64,
    /// Bytes of pooled memory that incomplete messages make resident, over all pipes of the context. Default: half of the
    /// machine's memory, or of what the control group allows where that is less; 1 GiB where neither is known. It is measured once in a process.
    ///
    /// - Pages count as their first bytes come, pages of 2 MiB in tensors from that size on. Shorter memory counts whole.
    /// - Calls that are complete, and wait for a batch, a reference or their handler, go on counting. So does what their arguments take in
    ///   memory beyond 64 KiB and their encoded bytes, while they run. Those that wait for others may take half of the budget, arguments too.
    /// - Not counted: what is read into memory of the caller's, and what a program keeps of messages that it has read. What comes
    ///   ahead ([`Limits::window_ahead`]) has a share of its own.
    /// - The messages that one pipe is reading may announce no more than this.
    /// - Beyond it, the message that wants more is given up. Its read fails with [`Error::OutOfMemory`](crate::Error::OutOfMemory), and its
    ///   writer is told; a call is refused as overloaded.
    ///
    /// Lower it where untrusted peers may connect. [`Context::receive_budget`](crate::Context::receive_budget) says what is taken.
    pub receive_budget: u64,
    /// Messages that may be queued here and not yet handed over. One more is [`Misuse::TooManyWrites`]. Default 65536.
    pub queued_writes: usize,
    /// Handshakes under way at once at each address of a listener, and at each to which its pipes are upgraded. Default 256.
    pub handshakes: usize,
    /// Pipes of one listener that are open, or wait to be accepted with messages to read. Default 4096.
    pub pipes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            metadata: 1 << 20,
            payload: 8 << 30,
            tensor: 64 << 30,
            message: 128 << 30,
            parts: 4096,
            eager_part: 64 << 10,
            eager_message: 256 << 10,
            chunk: 256 << 10,
            window_messages: 1024,
            window_bytes: 4 << 20,
            window_ahead: 4 << 20,
            receive_budget: half_of(sys::memory::available()),
            queued_writes: 1 << 16,
            handshakes: 256,
            pipes: 4096,
        }
    }
}

/// The default budget for so much memory, in bytes.
fn half_of(memory: Option<u64>) -> u64 {
    memory.map_or(1 << 30, |memory| memory / 2)
}

impl Limits {
    /// For a pipe whose peer may send so many bytes ahead.
    pub(crate) fn wire(&self, window_ahead: u64) -> WireLimits {
        WireLimits {
            chunk: self.chunk,
            eager_part: self.eager_part,
            eager_message: self.eager_message,
            metadata: self.metadata,
            parts: self.parts,
            payload: self.payload,
            tensor: self.tensor,
            message: self.message,
            window_messages: u64::from(self.window_messages),
            window_bytes: self.window_bytes,
            window_ahead,
        }
    }

    pub(crate) fn check(&self) -> Result<(), Misuse> {
        let range = |what, found: u64, low: u64, high: u64| {
            if (low..=high).contains(&found) {
                return Ok(());
            }
            Err(Misuse::Config {
                what,
                wanted: format!("from {low} to {high}"),
                found: found.to_string(),
            })
        };
        range("Limits::chunk", u64::from(self.chunk), 1024, 64 << 20)?;
        range("Limits::metadata", u64::from(self.metadata), 0, 256 << 20)?;
        range(
            "Limits::eager_part",
            u64::from(self.eager_part),
            0,
            16 << 20,
        )?;
        range(
            "Limits::eager_message",
            u64::from(self.eager_message),
            0,
            64 << 20,
        )?;
        range(
            "Limits::window_messages",
            u64::from(self.window_messages),
            1,
            1 << 30,
        )?;
        range("Limits::handshakes", self.handshakes as u64, 1, 1 << 20)?;
        range("Limits::pipes", self.pipes as u64, 1, 1 << 20)?;
        range(
            "Limits::queued_writes",
            self.queued_writes as u64,
            1,
            1 << 30,
        )?;
        let frame = u64::from(self.wire(0).frame_max());
        range(
            "Limits::window_bytes (at least one message's frame)",
            self.window_bytes,
            frame,
            1 << 40,
        )
    }
}

/// Bounds on waiting for a peer's machinery. Waiting for an application (`accept`, `read_descriptor`) has none.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timeouts {
    /// A whole handshake. A connector waits for three quarters of it, or of the default, to be let in at a better transport. Then it stays on
    /// the first one.
    /// Default 10 s.
    pub handshake: Duration,
    /// How long a connection that a listener has accepted may say nothing at all, within `handshake`. Default 3 s.
    pub greeting: Duration,
    /// A peer that says nothing for so long, although it was asked, is given up. Default 10 s; `None` waits for ever. Both ends should have
    /// the same value: from its own a process derives how often it speaks for a blocked runtime.
    pub silence: Option<Duration>,
    /// How long a thread of this process tells the peer that the process lives, while the pipe's runtime is blocked (a long
    /// computation in a handler). Then the peer hears nothing more, and gives this end up. Default 60 s; zero tells it
    /// nothing.
    pub blocked: Duration,
    /// How long closing, or a dropped pipe in the background, waits until the peer has everything. Default 10 s.
    pub linger: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            greeting: Duration::from_secs(3),
            silence: Some(Duration::from_secs(10)),
            blocked: Duration::from_secs(60),
            linger: Duration::from_secs(10),
        }
    }
}

/// How `connect` waits for a listener that is not there yet. It tries refused and unreachable addresses, unknown host names and
/// full listeners again, with growing pauses, until the bound.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectPolicy {
    /// How long to begin attempts. Default 30 s. Zero tries once. The last one may take [`Timeouts::handshake`] more.
    pub retry_for: Duration,
    /// The first pause; each one after is twice as long, and shortened by up to half at random. Default 20 ms.
    pub first_pause: Duration,
    /// The longest pause. Default 1 s.
    pub longest_pause: Duration,
}

impl Default for ConnectPolicy {
    fn default() -> Self {
        Self {
            retry_for: Duration::from_secs(30),
            first_pause: Duration::from_millis(20),
            longest_pause: Duration::from_secs(1),
        }
    }
}

impl ConnectPolicy {
    /// Tries once.
    pub fn once() -> Self {
        Self {
            retry_for: Duration::ZERO,
            ..Self::default()
        }
    }

    /// Tries for so long.
    pub fn retrying_for(retry_for: Duration) -> Self {
        Self {
            retry_for,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_half_of_what_there_is() {
        assert_eq!(half_of(Some(64 << 30)), 32 << 30);
        assert_eq!(half_of(Some(100 << 20)), 50 << 20, "a small group");
        assert_eq!(half_of(None), 1 << 30, "an unknown one");
        let budget = Limits::default().receive_budget;
        assert_eq!(budget, half_of(sys::memory::available()));
    }
}
