//! Messages of metadata alone: their bytes go straight among those to be sent.
//!
//! They leave at once, with the next turn of whoever drives, or, where the handler writes and more calls of it follow,
//! together with what it writes then. Invariant: whoever leaves bytes behind has somebody come for them: the background task,
//! or whoever calls the handler.

use super::core::Core;
use super::io::Io;
use super::leaving::{Queued, When, left_in_part};
use super::shared::Shared;
use crate::sync::{Arc, MutexGuard};

/// A message that was put among the bytes to be sent.
pub(super) struct Appended<'a> {
    pub(super) id: u64,
    pub(super) io: MutexGuard<'a, Io>,
    /// Nothing was there before it.
    alone: bool,
    /// It is over when its channels say so.
    pub(super) lent: bool,
}

/// Puts a message among the bytes to be sent, if nothing is to be sent before it but these.
pub(super) fn append<'a>(
    core: &'a Core,
    shared: &mut Shared,
    metadata: &[u8],
    when: When,
) -> Option<Appended<'a>> {
    if !shared.state.is_next() {
        return None;
    }
    let mut appended = Appended::begin(core, when)?;
    appended.put(|frames| shared.state.write_bare(metadata, frames))?;
    if !shared.leaving.is_empty() {
        shared.note_left();
    }
    Some(appended)
}

impl<'a> Appended<'a> {
    /// For a message that is put there next. `None` where it has to take the long way.
    pub(super) fn begin(core: &'a Core, when: When) -> Option<Self> {
        let mut io = core.driver.hold()?;
        let alone = io.frames_if_clear().is_some();
        match when {
            // When it is over is known of one that is alone.
            When::Now { watched: true } if !alone => return None,
            _ => io.frames_with_room()?,
        };
        Some(Self {
            id: 0,
            io,
            alone,
            lent: false,
        })
    }

    /// Puts its frame there, which `write` appends, and returns its number.
    pub(super) fn put(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Option<u64>) -> Option<u64> {
        let frames = self.io.frames();
        let before = frames.len();
        self.id = write(frames)?;
        let len = frames.len() - before;
        self.io.push_frames(len);
        Some(self.id)
    }
}

/// Sees to it that it leaves.
pub(super) fn leave(
    core: &Arc<Core>,
    mut shared: MutexGuard<'_, Shared>,
    appended: Appended<'_>,
    when: When,
) -> Queued {
    let Appended {
        id,
        mut io,
        alone,
        lent,
    } = appended;
    let left = |over, drive| Queued { id, over, drive };
    let watched = matches!(when, When::Now { watched: true });
    if lent {
        core.has_unwritten();
        if watched {
            shared.writes.insert(id, None);
        }
    }
    if core.answers_more() && !watched {
        // Whoever calls the handler has a round after this.
        core.driver.kick_holding(&io);
        return left(false, false);
    }
    // Channels may have said more than there was room for.
    let idle = shared.is_idle() && shared.state.is_next();
    drop(shared);
    if let When::Soon = when
        && !io.is_due(core.driver.is_costly())
    {
        // As long as it is owed, nobody has sent since somebody was told.
        let tell = io.owe_send();
        drop(io);
        if tell {
            core.driver.wakers.wake_background();
        }
        return left(false, !idle);
    }
    // One that is behind others and that nobody keeps counts as written.
    if !alone && !lent {
        let sent = io.send_gathered(core);
        return left(false, !sent || !idle);
    }
    let sent = io.send_through(core, id);
    if !sent {
        left_in_part(core, &io, id, watched && !lent);
    }
    left(sent && !lent, !sent || !idle)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::transports::ShmTransport;
    use crate::{Context, Pipe};

    /// Over a transport of which a write is no system call.
    async fn pair(name: &str) -> (Pipe, Pipe) {
        let context = Context::builder()
            .transports([std::sync::Arc::new(ShmTransport::new()) as _])
            .build()
            .unwrap();
        let url = format!("shm://{name}-{}", std::process::id());
        let listener = context.listen([url]).await.unwrap();
        let (client, server) = tokio::join!(context.connect(listener.url()), listener.accept());
        (client.unwrap(), server.unwrap())
    }

    /// Writes messages that are to leave soon, with no await in between. Returns how many have left after each.
    fn burst(client: &Pipe, messages: u64) -> Vec<u64> {
        const MESSAGE: &[u8] = b"call";
        let frame = MESSAGE.len() as u64 + 8 + 12;
        let before = client.stats().bytes_out;
        let left = || (client.stats().bytes_out - before) / frame;
        let send = |_| {
            client.send_metadata(MESSAGE, true, |_| ()).unwrap();
            left()
        };
        (0..messages).map(send).collect()
    }

    /// All of them come, and whoever is to come for those that are held back has been there.
    async fn read(server: &Pipe, messages: u64) {
        for _ in 0..messages {
            let read = tokio::time::timeout(Duration::from_secs(20), server.read());
            read.await.expect("one is held back for ever").unwrap();
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    #[tokio::test]
    async fn fewer_are_held_back_than_have_left_and_of_a_lone_one_nothing() {
        let (client, server) = pair("held-back").await;
        for messages in [3, 24, 30, 1] {
            let left = burst(&client, messages);
            assert_eq!(left[0], 1, "one that comes alone after a burst");
            for (left, written) in left.into_iter().zip(1..) {
                let held = written - left;
                assert!(held < left && held < 8, "{held} of {written}");
            }
            read(&server, messages).await;
        }
    }
}
