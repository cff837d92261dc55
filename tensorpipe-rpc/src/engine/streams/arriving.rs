//! What the peer says about streams.

use std::sync::Arc;

use tensorpipe::{Error, Message, ResetCode};

use super::{CallStreams, Tally};
use crate::codec::Arguments;
use crate::engine::arrived::Arrived;
use crate::engine::calls::Outcome;
use crate::engine::{Engine, to_body};
use crate::error::CallError;
use crate::header::{FailureCode, Header, Kind, Way};
use crate::observe::metrics;

impl Engine {
    /// The streams of a call that was made here (`Way::Reply`) or there.
    fn streams_of(&self, call: u64, made_here: bool) -> Option<Arc<CallStreams>> {
        if made_here {
            return self.calls.find(call)?.streams.clone();
        }
        self.serving.as_ref()?.streams.find(call)
    }

    pub(crate) fn items_arrive(&self, header: Header, way: Way, count: u8, incoming: Arrived<'_>) {
        // Of a call that has ended: dropping the message says that it is not wanted.
        let Some(streams) = self.streams_of(header.call, way == Way::Reply) else {
            return;
        };
        let Some(inbox) = &streams.inbox else { return };
        let id = incoming.id();
        let size = Tally {
            items: count.into(),
            bytes: incoming.metadata().len() as u64 + incoming.parts_len(),
        };
        match inbox.announced(id, size) {
            Ok(true) => metrics::items_received(count.into()),
            Ok(false) => return,
            Err(_) => {
                drop(incoming);
                let text = "it sent more items of a stream than it may";
                return self.break_streams(&streams, FailureCode::BadArguments, text.to_owned());
            }
        }
        if incoming.is_whole() {
            if let Some(message) = incoming.accept() {
                self.items_complete(&streams, id, header, message);
            }
            return;
        }
        self.reading.begin(id, header, &streams);
        match incoming.accept() {
            Some(message) if self.reading.take(id).is_some() => {
                self.items_complete(&streams, id, header, message);
            }
            // The stream was dropped between its announcement and the read.
            None if !self.reading.has(id) => {
                let code = ResetCode::Cancelled;
                self.pipe.stop(id, code, "the stream was dropped");
            }
            _ => {}
        }
    }

    /// All of a message of items is here, or never will be.
    pub(crate) fn items_complete(
        &self,
        streams: &Arc<CallStreams>,
        id: u64,
        header: Header,
        message: Result<Message, Error>,
    ) {
        let Some(inbox) = &streams.inbox else { return };
        let body = match message.map(|message| to_body(message, &header)) {
            Ok(Some(body)) => body,
            Ok(None) => {
                let text = "the body of an item is missing".to_owned();
                return self.break_streams(streams, FailureCode::BadArguments, text);
            }
            Err(error) => {
                let code = match error {
                    Error::OutOfMemory { .. } => FailureCode::Overloaded,
                    _ => FailureCode::BadArguments,
                };
                if streams.made_here {
                    let failed = CallError::Connection {
                        error,
                        may_have_run: true,
                    };
                    return self.fail_streaming(streams.call, failed);
                }
                return self.break_streams(streams, code, error.to_string());
            }
        };
        let items = Arguments::new(body.metadata, body.payloads, body.tensors);
        inbox.complete(id, items);
        if streams.made_here
            && !inbox.is_incomplete()
            && let Some(outcome) = streams.release()
            && let Some(slot) = self.calls.find(streams.call)
        {
            self.let_go(&slot, self.calls.complete(&slot, outcome));
        }
    }

    /// The peer did what no peer does, or an item makes no sense: the call ends.
    pub(crate) fn break_streams(&self, streams: &CallStreams, code: FailureCode, text: String) {
        if streams.made_here {
            self.fail_streaming(streams.call, CallError::Other(text.into()));
            return;
        }
        self.reply_failure(streams.call, code, text);
        self.close_streams(streams);
        if let Some(serving) = &self.serving {
            serving.streams.cancel(streams.call);
        }
    }

    /// Ends a call that was made here. Whoever waits for it is told.
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

    pub(crate) fn credit_arrives(&self, header: Header, way: Way, incoming: Arrived<'_>) {
        let metadata = incoming.metadata();
        let body = metadata.get(header.len..header.len + 16);
        let number = |at| {
            let bytes = body?.get(at..)?.first_chunk()?;
            Some(u64::from_le_bytes(*bytes))
        };
        let (Some(items), Some(bytes)) = (number(0), number(8)) else {
            return incoming.refuse("a credit is cut short");
        };
        let streams = self.streams_of(header.call, way == Way::Argument);
        let _ = incoming.accept();
        if let Some(credits) = streams
            .as_ref()
            .and_then(|streams| streams.credits.as_ref())
        {
            credits.allow(Tally { items, bytes });
        }
    }

    /// The stream that is an argument has ended, or is not read any more.
    pub(crate) fn end_arrives(&self, header: Header, kind: Kind, incoming: Arrived<'_>) {
        let _ = incoming.accept();
        let streams = self.streams_of(header.call, kind == Kind::Stop);
        let Some(streams) = streams else { return };
        match (kind, &streams.inbox, &streams.credits) {
            (Kind::End, Some(inbox), _) => inbox.finish(),
            (Kind::Stop, _, Some(credits)) => credits.close(),
            _ => {}
        }
    }

    /// Tells the peer how much it may send of a call's stream.
    pub(crate) fn send_credit(&self, streams: &CallStreams, allowed: Tally) {
        let way = if streams.made_here {
            Way::Reply
        } else {
            Way::Argument
        };
        let mut body = [0; 16];
        body[..8].copy_from_slice(&allowed.items.to_le_bytes());
        body[8..].copy_from_slice(&allowed.bytes.to_le_bytes());
        self.send_note(Kind::Credit(way), streams.call, &body);
    }

    /// Says something about a call that has no body.
    pub(crate) fn send_plain(&self, kind: Kind, call: u64) {
        self.send_note(kind, call, &[]);
    }
}
