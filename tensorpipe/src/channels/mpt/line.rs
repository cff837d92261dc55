//! State that the two directions of one further connection share: chunks that the peer has not confirmed, and how many of the peer's chunks
//! are to be confirmed.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::ChannelFault;
use super::sending::ChunkId;
use crate::sync::{AtomicU32, Mutex, Ordering, lock};

/// The peer confirms the next chunk within this time: a connection that is slower is of no use even if it is alive. The pipe's keep-alive
/// watches the peer; this watches a connection on which nothing arrives any more.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(60);

/// The least time after which a chunk is late: the peer's task may have waited for a processor.
const LATE_AFTER_LEAST: Duration = Duration::from_millis(20);

/// When a chunk is late while none was confirmed on this pipe (RFC 6298, section 2.1).
const LATE_AFTER_FIRST: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Line {
    sent: Mutex<Sent>,
    to_confirm: AtomicU32,
    /// Wakes the writing direction: chunks are to be confirmed, or nothing is late any more.
    news: Notify,
    /// The peer has something to confirm.
    begun: Notify,
}

#[derive(Debug)]
struct Sent {
    /// In order.
    unconfirmed: VecDeque<Unconfirmed>,
    /// When the peer confirmed the last chunk, or the first of these was begun.
    since: Instant,
    rtt: Option<RttEstimate>,
}

#[derive(Debug)]
struct Unconfirmed {
    id: ChunkId,
    begun: Instant,
    /// Another connection sends it as well.
    is_late: bool,
}

/// How long chunks have taken from their first byte to the peer's confirmation.
#[derive(Clone, Copy, Debug)]
pub(super) struct RttEstimate {
    smoothed: Duration,
    variation: Duration,
}

impl RttEstimate {
    /// The estimator of RFC 6298, section 2.
    fn update(before: Option<Self>, took: Duration) -> Self {
        let Some(Self {
            smoothed,
            variation,
        }) = before
        else {
            return Self {
                smoothed: took,
                variation: took / 2,
            };
        };
        Self {
            smoothed: smoothed * 7 / 8 + took / 8,
            variation: variation * 3 / 4 + smoothed.abs_diff(took) / 4,
        }
    }
}

impl Line {
    pub(super) fn new() -> Self {
        Self {
            sent: Mutex::new(Sent {
                unconfirmed: VecDeque::new(),
                since: Instant::now(),
                rtt: None,
            }),
            to_confirm: AtomicU32::new(0),
            news: Notify::new(),
            begun: Notify::new(),
        }
    }

    /// A chunk is about to be written.
    pub(super) fn sends(&self, id: ChunkId) {
        let now = Instant::now();
        let mut sent = lock(&self.sent);
        if sent.unconfirmed.is_empty() {
            sent.since = now;
            self.begun.notify_one();
        }
        sent.unconfirmed.push_back(Unconfirmed {
            id,
            begun: now,
            is_late: false,
        });
    }

    /// The peer has taken so many chunks: it has read them, or discarded those that came on another connection as well.
    pub(super) fn confirmed(&self, chunks: u32) -> Result<(), ChannelFault> {
        let now = Instant::now();
        let mut sent = lock(&self.sent);
        let chunks = chunks as usize;
        if chunks > sent.unconfirmed.len() {
            let found = sent.unconfirmed.len();
            return Err(ChannelFault(format!(
                "{chunks} chunks confirmed, of {found} sent"
            )));
        }
        let mut were_late = false;
        let Sent {
            unconfirmed, rtt, ..
        } = &mut *sent;
        for chunk in unconfirmed.drain(..chunks) {
            *rtt = Some(RttEstimate::update(*rtt, now - chunk.begun));
            were_late |= chunk.is_late;
        }
        sent.since = now;
        if were_late {
            self.news.notify_one();
        }
        Ok(())
    }

    /// A chunk of the peer's is read.
    pub(super) fn add_to_confirm(&self) {
        self.to_confirm.fetch_add(1, Ordering::SeqCst);
        self.news.notify_one();
    }

    /// Takes the number of chunks that are still to be confirmed.
    pub(super) fn take_to_confirm(&self) -> u32 {
        self.to_confirm.swap(0, Ordering::SeqCst)
    }

    pub(super) async fn wait_for_news(&self) {
        self.news.notified().await;
    }

    /// Ready while the peer has something to confirm.
    pub(super) async fn wait_for_unconfirmed(&self) {
        while lock(&self.sent).unconfirmed.is_empty() {
            self.begun.notified().await;
        }
    }

    /// For how long the peer has confirmed nothing, if that is too long.
    pub(super) fn silence(&self) -> Option<Duration> {
        let sent = lock(&self.sent);
        let is_silent = !sent.unconfirmed.is_empty() && sent.since.elapsed() >= CONFIRMED_WITHIN;
        is_silent.then_some(CONFIRMED_WITHIN)
    }

    /// Whether a chunk is late, so that the others should carry the next.
    pub(super) fn is_late(&self) -> bool {
        let sent = lock(&self.sent);
        sent.unconfirmed.front().is_some_and(|chunk| chunk.is_late)
    }

    /// How long its chunks have taken, once one was confirmed.
    pub(super) fn rtt(&self) -> Option<RttEstimate> {
        lock(&self.sent).rtt
    }

    /// If the oldest chunk should have been confirmed by now: that one and those behind it. Each chunk is returned once. A connection
    /// without a confirmed chunk is measured by the times of `others`.
    pub(super) fn take_late(&self, others: Option<RttEstimate>) -> Vec<ChunkId> {
        let mut sent = lock(&self.sent);
        let late_after = sent.rtt.or(others).map_or(LATE_AFTER_FIRST, |took| {
            (took.smoothed + 4 * took.variation).max(LATE_AFTER_LEAST)
        });
        let oldest = sent.unconfirmed.front();
        if oldest.is_none_or(|oldest| oldest.begun.elapsed() < late_after) {
            return Vec::new();
        }
        let late = sent.unconfirmed.iter_mut().filter_map(|chunk| {
            let was_late = std::mem::replace(&mut chunk.is_late, true);
            (!was_late).then_some(chunk.id)
        });
        late.collect()
    }

    /// Chunks that may be lost with the connection. Late ones are included: the reader may have discarded the other connection's
    /// copy.
    pub(super) fn unconfirmed(&self) -> Vec<ChunkId> {
        let sent = lock(&self.sent);
        sent.unconfirmed.iter().map(|chunk| chunk.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::OpId;
    use super::*;

    fn chunk(offset: u64) -> ChunkId {
        let op = OpId::outgoing(1, 0);
        ChunkId { op, offset }
    }

    async fn pass(time: Duration) {
        tokio::time::sleep(time).await;
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_measured_from_the_last_word_and_only_while_something_is_missing() {
        let line = Line::new();
        pass(2 * CONFIRMED_WITHIN).await;
        assert_eq!(line.silence(), None);
        line.sends(chunk(0));
        line.sends(chunk(1));
        line.wait_for_unconfirmed().await;
        pass(CONFIRMED_WITHIN / 2).await;
        line.confirmed(1).unwrap();
        pass(CONFIRMED_WITHIN * 3 / 4).await;
        assert_eq!(line.silence(), None);
        pass(CONFIRMED_WITHIN / 4).await;
        assert_eq!(line.silence(), Some(CONFIRMED_WITHIN));
        assert!(line.confirmed(2).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_chunk_is_late_by_what_others_have_taken_and_is_taken_once() {
        const MS: Duration = Duration::from_millis(1);
        let line = Line::new();
        line.sends(chunk(0));
        pass(LATE_AFTER_FIRST - MS).await;
        assert!(line.take_late(None).is_empty() && !line.is_late());
        pass(MS).await;
        assert_eq!(line.take_late(None), [chunk(0)]);
        assert!(line.is_late());
        line.sends(chunk(1));
        assert_eq!(
            line.take_late(None),
            [chunk(1)],
            "it stands behind a late one"
        );
        assert!(line.take_late(None).is_empty());
        assert_eq!(line.unconfirmed(), [chunk(0), chunk(1)]);
        assert_eq!(line.confirmed(1), Ok(()));
        assert!(line.is_late());
        assert_eq!(line.confirmed(1), Ok(()));
        assert!(!line.is_late());

        let fresh = Line::new();
        fresh.sends(chunk(0));
        pass(20 * MS).await;
        assert!(fresh.take_late(line.rtt()).is_empty(), "they took 1 s");
        let quick = RttEstimate::update(None, 4 * MS);
        assert_eq!(fresh.take_late(Some(quick)), [chunk(0)]);

        for (each, late_after) in [(100, 100), (1, 20)] {
            for _ in 0..100 {
                line.sends(chunk(2));
                pass(each * MS).await;
                assert_eq!(line.confirmed(1), Ok(()));
            }
            line.sends(chunk(3));
            pass((late_after - 1) * MS).await;
            assert!(line.take_late(None).is_empty());
            pass(5 * MS).await;
            assert_eq!(line.take_late(None), [chunk(3)]);
            line.confirmed(1).unwrap();
        }
    }
}
