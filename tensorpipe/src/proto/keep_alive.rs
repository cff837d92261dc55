//! Finding out that the peer is silent: it is asked after half the bound, and given up after the other half.
//!
//! A peer that sends bulk over a slow link cannot ask in time: its question waits behind what it has sent. So an end that hears something
//! sends a PONG now and then, unasked.

use std::time::{Duration, Instant};

use super::pipe::PipeState;
use super::wire::frame::Control;

/// When a silent peer is asked, and when it is given up.
#[derive(Debug)]
pub(crate) struct KeepAlive {
    silence: Option<Duration>,
    last_heard: Instant,
    ping_sent_at: Option<Instant>,
    /// When the peer was last told, unasked, that it is heard.
    keep_alive_sent_at: Instant,
    nonce: u64,
    /// The peer's newest question.
    pub(super) pinged: u64,
}

impl KeepAlive {
    pub(crate) fn new(silence: Option<Duration>, now: Instant) -> Self {
        Self {
            silence,
            last_heard: now,
            ping_sent_at: None,
            keep_alive_sent_at: now,
            nonce: 0,
            pinged: 0,
        }
    }
}

impl<S: Clone, D> PipeState<S, D> {
    /// When `handle_timeout` wants to be called.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let half = self.keep_alive.silence? / 2;
        let since = self
            .keep_alive
            .ping_sent_at
            .unwrap_or(self.keep_alive.last_heard);
        since.checked_add(half)
    }

    /// Something came from the peer.
    pub(crate) fn heard(&mut self, now: Instant) {
        let state = &mut self.keep_alive;
        if state.last_heard == now && state.ping_sent_at.is_none() {
            return;
        }
        state.last_heard = now;
        state.ping_sent_at = None;
        let told = now.saturating_duration_since(state.keep_alive_sent_at);
        if state.silence.is_some_and(|silence| told >= silence / 4) {
            state.keep_alive_sent_at = now;
            self.send_keep_alive();
        }
    }

    /// Says something, unasked, so that the peer hears that this side lives.
    pub(crate) fn send_keep_alive(&mut self) {
        let nonce = self.keep_alive.pinged;
        self.outbox.control(Control::Pong(nonce));
    }

    /// Asks a silent peer for a sign of life. Fails with how long it has been silent once it had time to answer.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> Result<(), Duration> {
        let Some(silence) = self.keep_alive.silence else {
            return Ok(());
        };
        let quiet = now.saturating_duration_since(self.keep_alive.last_heard);
        match self.keep_alive.ping_sent_at {
            // A process that was itself suspended asks first, and gives the peer half the bound to answer.
            None if quiet >= silence / 2 => {
                self.keep_alive.ping_sent_at = Some(now);
                self.keep_alive.nonce += 1;
                self.outbox.control(Control::Ping(self.keep_alive.nonce));
                Ok(())
            }
            Some(asked) if now.saturating_duration_since(asked) >= silence / 2 => Err(quiet),
            _ => Ok(()),
        }
    }
}
