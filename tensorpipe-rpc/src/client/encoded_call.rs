//! A call that is encoded before it is known which server it goes to.

use std::sync::Arc;
use std::time::Duration;

use crate::call::Sent;
use crate::codec::{EncodeError, Encoder};
use crate::engine::{Engine, Kept, Request, Terms};
use crate::error::CallError;
use crate::placement::CallPlacement;
use crate::remote::{ANY, Encoding, encoding, put_references};

/// Encoded arguments, to be sent as often as need be.
pub(super) struct EncodedCall {
    pub(super) terms: Terms,
    kept: Kept,
    met: Encoding,
}

impl EncodedCall {
    pub(super) fn new(
        terms: Terms,
        encode: impl FnOnce(&mut Encoder) -> Result<(), EncodeError>,
    ) -> Result<Self, CallError> {
        let mut encoder = Encoder::new();
        let (encoded, met) = encoding(ANY, None, || encode(&mut encoder));
        encoded.map_err(|error| CallError::Encode(error.in_method(terms.method.name)))?;
        let kept = Kept::new(encoder.finish(), !met.waits.is_empty());
        Ok(Self { terms, kept, met })
    }

    /// Whether they refer to values that a server owns.
    pub(super) fn refers(&self) -> bool {
        !self.met.pins.is_empty()
    }

    /// The connection to that server.
    pub(super) fn owner(&self) -> Option<Arc<Engine>> {
        self.met.pins.first().map(|pin| pin.engine().clone())
    }

    /// Sends them once, so much before the call's deadline.
    pub(super) fn send(
        &self,
        engine: &Arc<Engine>,
        service: u32,
        left: Option<Duration>,
    ) -> Result<Sent, CallError> {
        let terms = Terms {
            // Each attempt reads other messages.
            places: self.terms.places.as_deref().map(CallPlacement::of_attempt),
            ..self.terms.clone()
        };
        let begun = engine.begin_call(service, &terms, left);
        let header_len = begun.header.len();
        let mut encoded = self.kept.behind(begun.header, &engine.pipe.peer_limits());
        if self.refers() {
            put_references(&mut encoded.metadata, &self.met.waits)?;
        }
        let slot = engine.call(Request {
            id: begun.id,
            method: terms.method,
            encoded,
            header_len,
            deadline: terms.deadline,
            pins: self.met.pins.clone(),
            trace: begun.trace,
            places: terms.places,
            required: terms.required,
        });
        Ok((engine.clone(), slot))
    }
}
