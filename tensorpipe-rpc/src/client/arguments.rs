//! A call that is encoded before it is known which server it goes to.

use std::sync::Arc;

use super::handle::{Asked, Terms, micros};
use crate::call::Sent;
use crate::codec::{EncodeError, Encoded, Encoder};
use crate::engine::{CallStreams, Engine, Kept, Outgoing};
use crate::error::CallError;
use crate::header::Header;
use crate::observe::Noted;
use crate::remote::{ANY, Encoding, encoding, put_references};
use crate::schema::Method;

/// Encoded arguments behind room for a header.
pub(super) struct Arguments {
    method: &'static Method,
    terms: Terms,
    encoded: Encoded,
    header_len: usize,
    met: Encoding,
}

impl Arguments {
    pub(super) fn new(
        method: &'static Method,
        terms: Terms,
        encode: impl FnOnce(&mut Encoder) -> Result<(), EncodeError>,
    ) -> Result<Self, CallError> {
        let header = Header::call(0, 0, method.id, 0, terms.1).to_vec();
        let header_len = header.len();
        let mut encoder = Encoder::after(header);
        let (encoded, met) = encoding(ANY, None, || encode(&mut encoder));
        encoded.map_err(|error| CallError::Encode(error.in_method(method.name)))?;
        Ok(Self {
            method,
            terms,
            encoded: encoder.finish(),
            header_len,
            met,
        })
    }

    pub(super) fn method(&self) -> &'static Method {
        self.method
    }

    /// Whether they refer to values that a server owns.
    pub(super) fn refers(&self) -> bool {
        !self.met.pins.is_empty()
    }

    /// The connection to that server.
    pub(super) fn owner(&self) -> Option<Arc<Engine>> {
        self.met.pins.first().map(|pin| pin.engine().clone())
    }

    /// To be sent again and again.
    pub(super) fn keep(self) -> Kept {
        Kept::new(self.encoded, self.header_len)
    }

    /// Sends them once.
    pub(super) fn send(
        mut self,
        engine: &Arc<Engine>,
        (service, name): (u32, &'static str),
        Asked {
            stats: asked,
            places,
        }: Asked,
    ) -> Result<Sent, CallError> {
        let (deadline, trace) = self.terms;
        let id = engine.calls.next_id();
        let left = micros(deadline.map(|(_, after)| after));
        let name = (name, self.method);
        let (noted, trace) = Noted::of(asked, name, (id, engine), trace);
        let header = Header::call(id, service, self.method.id, left, trace);
        let header = header.asking(asked).to_vec();
        // A trace that begins here makes it longer.
        let header_len = header.len();
        self.encoded.metadata.splice(..self.header_len, header);
        if self.refers() {
            put_references(&mut self.encoded.metadata, &self.met.waits)?;
        }
        let streams = self.method.streams;
        let slot = engine.call(Outgoing {
            id,
            method: self.method,
            encoded: self.encoded,
            header_len,
            deadline,
            streams: streams.any().then(|| {
                CallStreams::of_caller(id, streams, asked, places.as_deref(), &engine.unread)
            }),
            pins: self.met.pins,
            noted,
            places,
        });
        Ok((engine.clone(), slot))
    }
}
