//! Making a call: what is sent of it, and when that leaves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorpipe::{Error, Outbound, ResetCode};

use super::calls::Outcome;
use super::slot::CallSlot;
use super::streams::CallStreams;
use super::{Engine, outbound};
use crate::codec::Encoded;
use crate::error::CallError;
use crate::header::{PLACES, WAITS};
use crate::observe::Noted;
use crate::placement::{CallPlacement, naming};
use crate::remote::Handle;
use crate::schema::Method;

/// Calls under way from which on further ones leave together, at the price of a turn of the pipe's own task; below, each
/// leaves at once, on its caller's.
const TOGETHER_FROM: usize = 8;

/// A call to be made.
pub(crate) struct Outgoing {
    pub(crate) id: u64,
    /// As errors call it.
    pub(crate) method: &'static Method,
    pub(crate) encoded: Encoded,
    pub(crate) header_len: usize,
    pub(crate) deadline: Option<(Instant, Duration)>,
    pub(crate) streams: Option<Arc<CallStreams>>,
    pub(crate) pins: Vec<Arc<Handle>>,
    pub(crate) noted: Option<Arc<Noted>>,
    /// Where its tensors are to land, if its caller said so.
    pub(crate) places: Option<Arc<CallPlacement>>,
}

impl Engine {
    /// Sends a call. Its slot gets the outcome.
    pub(crate) fn call(&self, outgoing: Outgoing) -> Arc<CallSlot> {
        let Outgoing {
            id,
            method,
            mut encoded,
            mut header_len,
            deadline,
            streams,
            pins,
            noted,
            places,
        } = outgoing;
        let receive_placement = places.as_ref().and_then(|places| places.results.clone());
        if self.calls.is_draining() {
            let slot = CallSlot::new(id, deadline, false, streams, pins, noted, None);
            slot.fail(CallError::ShuttingDown);
            return Arc::new(slot);
        }
        if let Some(places) = &places {
            if let Err(misuse) = places.check(self.pipe.route()) {
                let slot = CallSlot::new(id, deadline, false, streams, pins, noted, None);
                slot.fail(CallError::of_pipe(misuse.into(), true, false));
                return Arc::new(slot);
            }
            header_len = name_places(places, &mut encoded, header_len);
        }
        let (placed, tensors) = (!encoded.targets.is_empty(), encoded.tensors.len());
        let waits = encoded.metadata[2] & WAITS != 0;
        let peer = self.pipe.peer_limits();
        outbound(encoded, header_len, &peer, |outbound| {
            if let Some(noted) = &noted {
                noted.becomes(outbound.byte_len());
            }
            let has_parts = outbound.has_parts();
            let slot = Arc::new(CallSlot::new(
                id,
                deadline,
                has_parts,
                streams,
                pins,
                noted,
                receive_placement,
            ));
            if let Err(error) = self.send_call(&slot, outbound, waits) {
                let error = naming(error, |tensor| method.name_tensor(tensor, tensors));
                let failed = match error {
                    Error::GoingAway { .. } => CallError::ShuttingDown,
                    error => CallError::of_pipe(error, placed, false),
                };
                self.calls.complete(&slot, Outcome::Failed(failed));
            }
            slot
        })
    }

    /// `waits`: for the result of another one.
    fn send_call(
        &self,
        slot: &Arc<CallSlot>,
        outbound: &mut Outbound<'_>,
        waits: bool,
    ) -> Result<(), Error> {
        let answers = self.pipe.came_together();
        let (earlier, many) = {
            let mut table = self.calls.table();
            let many = table.follows(answers) || table.slots.len() >= TOGETHER_FROM;
            table.slots.insert(slot.id, slot.clone());
            let earlier = slot.deadline.is_some_and(|(at, _)| table.look_by(at));
            (earlier, many)
        };
        // A call that was given the result of another one is seldom the last of its chain.
        let soon = many || waits;
        if earlier {
            self.calls.earlier.notify_one();
        }
        // The number is known before anybody can answer, refuse or cut off the message.
        let mut late = false;
        let note = |message| late = !slot.sent_as(message);
        // Where many calls are under way, others are likely to be made at once: they leave together.
        slot.set_leaves_soon(many);
        let message = self.pipe.submit(outbound, soon, note)?;
        if late {
            self.pipe
                .reset(message, ResetCode::Deadline, "its deadline passed");
        } else if let Some(noted) = &slot.noted {
            noted.queued(message, &self.pipe);
        }
        Ok(())
    }
}

/// Names the targets of its arguments, and says behind its header where its results are to land. Returns how long that is then.
/// Apart: a call of which nobody says so should not pay for it.
#[inline(never)]
fn name_places(places: &CallPlacement, encoded: &mut Encoded, header_len: usize) -> usize {
    if let Some(arguments) = &places.arguments {
        arguments.name_targets(encoded);
    }
    let Some(results) = places.encode_results() else {
        return header_len;
    };
    encoded.metadata[2] |= PLACES;
    let len = header_len + results.len();
    encoded.metadata.splice(header_len..header_len, results);
    len
}
