//! A channel whose lanes behave like those of an honest one, or send something else.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tensorpipe::channels::{Channel, ChannelFault, Lane, LaneIo, OpId, PieceEvent, Want};
use tensorpipe::transports::Connection;
use tensorpipe::{Buffer, BufferMut, Misuse};
use tensorpipe_tests::Double;
use tokio::io::AsyncWriteExt;

use super::input::Input;

/// A message: the number of its pipe, whether the hostile end writes it, and its number among those.
pub(super) type Name = (usize, bool, u64);

/// Messages about which a hostile lane has not been honest.
#[derive(Clone, Debug, Default)]
pub(super) struct Lies(Arc<Mutex<HashSet<Name>>>);

impl Lies {
    pub(super) fn are_about(&self, name: Name) -> bool {
        self.0.lock().unwrap().contains(&name)
    }
}

/// In the place of a channel. Its pipes are numbered in the order in which they are opened.
pub(super) fn in_place_of(honest: Arc<dyn Channel>, input: Input, lies: Lies) -> Arc<dyn Channel> {
    let opened = AtomicUsize::new(0);
    let channel = Double::of(honest.clone()).opening(move |mut link| {
        // Without its connections the honest lane is of no use.
        let is_alone = !link.connections.is_empty() && input.below(2) == 1;
        let connections = match is_alone {
            true => std::mem::take(&mut link.connections),
            false => Vec::new(),
        };
        let honest = match is_alone {
            true => None,
            false => Some(honest.open(link)?),
        };
        Ok(Box::new(HostileLane {
            honest,
            connections,
            ops: HashSet::new(),
            input: input.clone(),
            pipe: opened.fetch_add(1, Ordering::Relaxed),
            lies: lies.clone(),
        }))
    });
    channel.channel()
}

struct HostileLane {
    honest: Option<Box<dyn Lane>>,
    /// Of the channel's own, where there is no honest lane.
    connections: Vec<Box<dyn Connection>>,
    /// What the honest lane does.
    ops: HashSet<OpId>,
    input: Input,
    pipe: usize,
    lies: Lies,
}

impl HostileLane {
    /// Whether the honest lane does this, and nothing else is said.
    fn means_well(&self, does: bool, op: OpId) {
        if !does || self.honest.is_none() {
            let number = op.key()[..8].try_into().map(u64::from_le_bytes);
            let name = (self.pipe, op.outgoing, number.unwrap());
            self.lies.0.lock().unwrap().insert(name);
        }
    }

    fn say(&self, op: OpId, io: &mut LaneIo<'_>) {
        if !self.input.has_ended() {
            io.control(op, self.input.words());
        }
    }

    /// The honest lane, if it does this.
    fn of(&mut self, op: OpId) -> Option<&mut Box<dyn Lane>> {
        let does = self.ops.contains(&op.whole());
        self.honest.as_mut().filter(|_| does)
    }
}

impl Lane for HostileLane {
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        if let Some(mut connection) = self.connections.pop() {
            let bytes = self.input.bytes(200);
            io.spawn(async move {
                let _ = connection.write_all(&bytes).await;
                let _ = connection.flush().await;
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            });
        }
        let choice = self.input.below(5);
        self.means_well(choice < 2, op);
        if choice < 3
            && let Some(honest) = &mut self.honest
        {
            self.ops.insert(op);
            honest.send(op, source, io);
            if choice == 2 {
                self.say(op, io);
            }
            return;
        }
        self.say(op, io);
        match choice {
            3 if source.device().is_cpu() => io.stream(op, source),
            _ => io.sent(op),
        }
    }

    fn recv(&mut self, op: OpId, want: Want, io: &mut LaneIo<'_>) {
        let choice = self.input.below(5);
        self.means_well(choice < 2, op);
        if choice < 3
            && let Some(honest) = &mut self.honest
        {
            self.ops.insert(op);
            honest.recv(op, want, io);
            if choice == 2 {
                self.say(op, io);
            }
            return;
        }
        self.say(op, io);
        match choice {
            3 if is_main(&want) => _ = io.receive(op, want),
            _ => io.failed(op, Misuse::Other("not that".to_owned()).into()),
        }
    }

    fn control(&mut self, op: OpId, body: &[u8], io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        self.input.heard(body);
        if let Some(honest) = self.of(op) {
            return honest.control(op, body, io);
        }
        if self.input.below(2) == 0 {
            self.say(op, io);
        }
        Ok(())
    }

    fn streamed(&mut self, op: OpId, dest: Option<BufferMut>, io: &mut LaneIo<'_>) {
        if let Some(honest) = self.of(op) {
            return honest.streamed(op, dest, io);
        }
        match dest {
            Some(dest) => io.received(op, dest.freeze()),
            None => io.sent(op),
        }
    }

    fn resume(&mut self, op: OpId, io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        self.of(op).map_or(Ok(()), |honest| honest.resume(op, io))
    }

    fn inner(
        &mut self,
        op: OpId,
        event: PieceEvent<'_>,
        io: &mut LaneIo<'_>,
    ) -> Result<(), ChannelFault> {
        self.of(op)
            .map_or(Ok(()), |honest| honest.inner(op, event, io))
    }

    fn cancel(&mut self, op: OpId, io: &mut LaneIo<'_>) {
        if let Some(honest) = self.of(op) {
            honest.cancel(op, io);
        }
        self.ops.remove(&op);
    }
}

fn is_main(want: &Want) -> bool {
    let device = match want {
        Want::Into(dest) => dest.device(),
        Want::Adopt { device, .. } => *device,
    };
    device.is_cpu()
}
