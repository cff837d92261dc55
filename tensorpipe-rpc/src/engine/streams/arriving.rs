//! Items, credit and ends of streams that arrive from the peer.

use std::sync::Arc;

use tensorpipe::engine::EnginePipe;
use tensorpipe::{Error, Incoming, Message, MessageStats, ResetCode};

use super::inbox::{Announced, ItemsMessage};
use super::{CallStreams, ITEMS, Tally, size_of};
use crate::codec::Arguments;
use crate::context::CallContext;
use crate::engine::Outcome;
use crate::engine::table::Reading;
use crate::engine::{Engine, to_body};
use crate::error::{CallError, no_place};
use crate::header::{FailureCode, Header, Kind, StreamDirection};
use crate::lock::Ordering;
use crate::observe::{metrics, of_failure};
use crate::placement::ReceivePlacement;

impl Engine {
    /// The streams of a call, made here (`StreamDirection::Reply`) or by the peer.
    fn streams_of(&self, call: u64, is_caller: bool) -> Option<Arc<CallStreams>> {
        if is_caller {
            return self.calls.find(call)?.streams.clone();
        }
        let context = self.serving.as_ref()?.streams.context(call)?;
        context.inner.streams.clone()
    }

    pub(crate) fn items_arrive(
        &self,
        header: Header,
        direction: StreamDirection,
        count: u8,
        incoming: Incoming,
    ) {
        // The call has ended: dropping the message tells the peer that it is not wanted.
        let Some(streams) = self.streams_of(header.call, direction == StreamDirection::Reply)
        else {
            return;
        };
        let Some(inbox) = &streams.inbox else { return };
        let id = incoming.id();
        // A lent tensor stays in its sender's memory. It may be of any size, and it can wait there.
        let is_here = incoming.is_whole() && incoming.stats().channels == 0;
        let size = Tally {
            items: count.into(),
            bytes: incoming.metadata_len() as u64 + incoming.byte_len(),
        };
        let message = ItemsMessage { header, incoming };
        match inbox.announced(id, size, is_here) {
            Some(Announced::Unwanted) => {}
            Some(Announced::Wanted) => {
                metrics::items_received(count.into());
                self.read_items(&streams, message);
            }
            Some(Announced::NoRoom) => {
                metrics::items_received(count.into());
                self.hold_items(&streams, message);
            }
            None => {
                drop(message);
                let text = "it sent more items of a stream than it may";
                self.break_streams(&streams, text);
            }
        }
    }

    /// Keeps a message with its sender until there is room for it.
    fn hold_items(&self, streams: &Arc<CallStreams>, message: ItemsMessage) {
        let Some(inbox) = &streams.inbox else { return };
        if !self.unread.hold() {
            // Each held message takes one of the pipe's message slots, which other calls need, too.
            drop(message);
            let text = "too many streams of this connection have items that their readers let lie";
            return self.break_streams(streams, text);
        }
        if inbox.hold(message) {
            self.unread.wait(streams);
            // Room may have been given back meanwhile.
            self.read_held();
        } else {
            self.unread.release_held();
        }
    }

    /// Reads a message of items, which may have waited at its sender.
    pub(super) fn read_items(&self, streams: &Arc<CallStreams>, message: ItemsMessage) {
        let ItemsMessage { header, incoming } = message;
        let (id, whole) = (incoming.id(), incoming.is_whole());
        let transfer = match &streams.traffic {
            Some(_) => incoming.stats(),
            None => MessageStats::default(),
        };
        if whole && streams.receive_placement.is_none() {
            if let Some(message) = incoming.accept() {
                self.items_complete(streams, id, header, message, transfer);
            }
            return;
        }
        let reading = (header, Reading::Items(streams.clone()));
        self.calls.table().reading.insert(id, reading);
        match ReceivePlacement::accept(streams.receive_placement.as_deref(), incoming) {
            Some(message) if self.calls.take_reading(id).is_some() => {
                self.items_complete(streams, id, header, message, transfer);
            }
            // The stream was dropped between its announcement and the read.
            None if !self.calls.is_reading(id) => {
                let code = ResetCode::Cancelled;
                self.pipe.stop(id, code, "the stream was dropped");
            }
            _ => {}
        }
    }

    /// A message of items is complete, or has failed.
    pub(crate) fn items_complete(
        &self,
        streams: &Arc<CallStreams>,
        id: u64,
        header: Header,
        mut message: Result<Message, Error>,
        transfer: MessageStats,
    ) {
        let Some(inbox) = &streams.inbox else { return };
        self.calls.has_served.store(true, Ordering::Relaxed);
        if let Some(receive_placement) = &streams.receive_placement {
            message = receive_placement.check(id, message, ITEMS);
        }
        if let (Some(traffic), Kind::Items(_, items), Ok(message)) =
            (&streams.traffic, header.kind, &message)
        {
            traffic.received(items, size_of(message), transfer);
        }
        let body = match message.map(|message| to_body(message, &header)) {
            Ok(Some(body)) => body,
            Ok(None) => {
                return self.break_streams(streams, "the body of an item is missing");
            }
            Err(error) => {
                if streams.is_caller {
                    let failed =
                        CallError::of_pipe(error, streams.receive_placement.is_some(), true);
                    return self.fail_streaming(streams.call, failed);
                }
                let code = match no_place(&error) {
                    Some(_) => FailureCode::NoPlaceForResult,
                    None => FailureCode::BadItem,
                };
                return self.break_streams_with(streams, code, &error.to_string());
            }
        };
        let items = Arguments::new(body.metadata, body.payloads, body.tensors);
        inbox.complete(id, items);
        if streams.is_caller
            && let Some(outcome) = streams.held.release(inbox)
        {
            let unwanted = match self.calls.find(streams.call) {
                Some(slot) => self.calls.complete(&slot, outcome),
                None => Some(outcome),
            };
            self.discard_outcome(streams.call, unwanted);
        }
    }

    /// The peer broke the protocol, or an item cannot be decoded: the call ends.
    pub(crate) fn break_streams(&self, streams: &CallStreams, why: &str) {
        self.break_streams_with(streams, FailureCode::BadItem, why);
    }

    fn break_streams_with(&self, streams: &CallStreams, code: FailureCode, why: &str) {
        if streams.is_caller {
            self.fail_streaming(streams.call, CallError::Other(why.into()));
            return;
        }
        // Neither `BadArguments` nor `Overloaded`: after those the caller might call again.
        let text = format!("its stream broke, and the method may have run in part: {why}");
        let serving = self.serving.as_ref();
        let context = serving.and_then(|serving| serving.streams.context(streams.call));
        let server_stats = context.as_ref().and_then(CallContext::server_stats);
        let trace = context.as_ref().map(|context| &context.inner.handler_trace);
        if let Some(Some(trace)) = trace {
            trace.failed(of_failure(code), &text);
        }
        if streams.begin_answer() {
            self.fail(streams.call, server_stats.as_ref(), code, text);
        }
        // Cancel first: whoever finds the streams closed must find the call given up.
        if let Some(context) = context {
            context.inner.cancel.set();
        }
        self.close_streams(streams);
    }

    /// Ends a call that was made here, and wakes its caller.
    pub(crate) fn fail_streaming(&self, call: u64, error: CallError) {
        let Some(slot) = self.calls.find(call) else {
            return;
        };
        self.calls.complete(&slot, Outcome::Failed(error));
        self.reset_call(&slot, ResetCode::Cancelled, "its stream broke");
        if let Some(streams) = &slot.streams {
            self.close_streams(streams);
        }
    }

    pub(crate) fn credit_arrives(
        &self,
        header: Header,
        direction: StreamDirection,
        incoming: Incoming,
    ) {
        let streams = self.streams_of(header.call, direction == StreamDirection::Argument);
        let Some(streams) = streams else {
            let _ = incoming.accept();
            return;
        };
        let (id, whole) = (incoming.id(), incoming.is_whole());
        if !whole {
            // Its body is a payload, which may have to wait for the receive budget.
            let reading = (header, Reading::Credit(streams.clone()));
            self.calls.table().reading.insert(id, reading);
        }
        if let Some(message) = incoming.accept()
            && (whole || self.calls.take_reading(id).is_some())
        {
            self.credit_complete(&streams, &header, message);
        }
    }

    /// A message of credit is complete, or has failed.
    pub(crate) fn credit_complete(
        &self,
        streams: &CallStreams,
        header: &Header,
        message: Result<Message, Error>,
    ) {
        let body = match message {
            Ok(message) => to_body(message, header),
            Err(error) => return self.break_streams(streams, &error.to_string()),
        };
        let number = |at| {
            let bytes = body.as_ref()?.metadata.get(at..)?.first_chunk()?;
            Some(u64::from_le_bytes(*bytes))
        };
        let (Some(items), Some(bytes)) = (number(0), number(8)) else {
            return self.break_streams(streams, "the credit for its items is cut short");
        };
        if let Some(credits) = &streams.credits {
            credits.allow(Tally { items, bytes });
        }
    }

    /// The stream that is an argument has ended, or its reader has stopped.
    pub(crate) fn end_arrives(&self, header: Header, kind: Kind, incoming: Incoming) {
        let _ = incoming.accept();
        let streams = self.streams_of(header.call, kind == Kind::Stop);
        let Some(streams) = streams else { return };
        match (kind, &streams.inbox, &streams.credits) {
            (Kind::End, Some(inbox), _) => {
                inbox.finish();
                self.read_held();
            }
            (Kind::Stop, _, Some(credits)) => credits.close(),
            _ => {}
        }
    }

    /// Tells the peer how much it may send of a call's stream.
    pub(crate) fn send_credit(&self, streams: &CallStreams, allowed: Tally) {
        let direction = if streams.is_caller {
            StreamDirection::Reply
        } else {
            StreamDirection::Argument
        };
        let mut body = [0; 16];
        body[..8].copy_from_slice(&allowed.items.to_le_bytes());
        body[8..].copy_from_slice(&allowed.bytes.to_le_bytes());
        self.send_control(Kind::Credit(direction), streams.call, &body);
    }
}
