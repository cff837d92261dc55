//! What the two directions of one further connection know of each other: which chunks the peer has not confirmed, and how
//! many of its are to be confirmed.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::{ChannelFault, OpId};
use crate::sync::{AtomicU32, Mutex, Ordering, lock};

/// Within this time the peer confirms the next chunk: a connection that is alive and slower is of no use. The pipe's
/// keep-alive watches over the peer, this over a connection of which nothing arrives any more.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Line {
    sent: Mutex<Sent>,
    to_confirm: AtomicU32,
    confirm: Notify,
    /// The tensor of which a chunk is half read.
    reading: Mutex<Option<OpId>>,
}

#[derive(Debug)]
struct Sent {
    unconfirmed: VecDeque<OpId>,
    /// When the peer confirmed the last one, or the first of these was begun.
    since: Instant,
}

impl Line {
    pub(super) fn new() -> Self {
        Self {
            sent: Mutex::new(Sent {
                unconfirmed: VecDeque::new(),
                since: Instant::now(),
            }),
            to_confirm: AtomicU32::new(0),
            confirm: Notify::new(),
            reading: Mutex::new(None),
        }
    }

    /// A chunk is about to be written.
    pub(super) fn sends(&self, op: OpId) {
        let mut sent = lock(&self.sent);
        if sent.unconfirmed.is_empty() {
            sent.since = Instant::now();
        }
        sent.unconfirmed.push_back(op);
    }

    /// The peer has taken that many.
    pub(super) fn confirmed(&self, chunks: u32) -> Result<(), ChannelFault> {
        let mut sent = lock(&self.sent);
        let chunks = chunks as usize;
        if chunks > sent.unconfirmed.len() {
            let found = sent.unconfirmed.len();
            return Err(ChannelFault(format!(
                "{chunks} chunks confirmed, of {found} sent"
            )));
        }
        sent.unconfirmed.drain(..chunks);
        sent.since = Instant::now();
        Ok(())
    }

    /// A chunk of `op` begins to be read.
    pub(super) fn reads(&self, op: OpId) {
        *lock(&self.reading) = Some(op);
    }

    /// It is read.
    pub(super) fn has_read(&self) {
        *lock(&self.reading) = None;
        self.to_confirm.fetch_add(1, Ordering::SeqCst);
        self.confirm.notify_one();
    }

    /// How many chunks the peer is to hear of.
    pub(super) fn take_to_confirm(&self) -> u32 {
        self.to_confirm.swap(0, Ordering::SeqCst)
    }

    pub(super) async fn wait_to_confirm(&self) {
        self.confirm.notified().await;
    }

    /// Ready when the peer has confirmed nothing for too long.
    pub(super) async fn silence(&self) -> Duration {
        loop {
            let until = {
                let sent = lock(&self.sent);
                (!sent.unconfirmed.is_empty()).then_some(sent.since + CONFIRMED_WITHIN)
            };
            match until {
                Some(until) if until <= Instant::now() => return CONFIRMED_WITHIN,
                Some(until) => tokio::time::sleep_until(until).await,
                None => tokio::time::sleep(CONFIRMED_WITHIN).await,
            }
        }
    }

    /// What may be lost with the connection.
    pub(super) fn at_stake(&self) -> (Vec<OpId>, Option<OpId>) {
        let unconfirmed = lock(&self.sent).unconfirmed.iter().copied().collect();
        (unconfirmed, *lock(&self.reading))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OP: OpId = OpId::outgoing(1, 0);

    #[tokio::test(start_paused = true)]
    async fn silence_is_measured_from_the_last_word_and_only_while_something_is_missing() {
        let line = Line::new();
        let quiet = tokio::time::timeout(10 * CONFIRMED_WITHIN, line.silence());
        assert!(quiet.await.is_err());
        line.sends(OP);
        line.sends(OP);
        let begun = Instant::now();
        let slow = async {
            tokio::time::sleep(CONFIRMED_WITHIN / 2).await;
            line.confirmed(1).unwrap();
        };
        let (_, ()) = tokio::join!(line.silence(), slow);
        assert_eq!(begun.elapsed(), CONFIRMED_WITHIN * 3 / 2);
        assert_eq!(line.at_stake(), (vec![OP], None));
        assert!(line.confirmed(2).is_err());
    }
}
