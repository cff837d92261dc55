//! A call that is encoded before its server is chosen.

use std::sync::Arc;
use std::time::Duration;

use crate::call::Sent;
use crate::codec::{EncodeError, Encoder};
use crate::engine::{CallOptions, Engine, Request, ResendableCall};
use crate::error::CallError;
use crate::observe::tell_failed;
use crate::placement::CallPlacement;
use crate::remote::{ANY, EncodedReferences, encoding, put_references};

/// Encoded arguments, to be sent as often as need be.
pub(super) struct EncodedCall {
    pub(super) options: CallOptions,
    kept: ResendableCall,
    references: Option<Box<EncodedReferences>>,
}

impl EncodedCall {
    pub(super) fn new(
        options: CallOptions,
        encode: impl FnOnce(&mut Encoder) -> Result<(), EncodeError>,
    ) -> Result<Self, CallError> {
        let mut encoder = Encoder::new();
        let (encoded, references) = encoding(ANY, None, || encode(&mut encoder));
        let encoded = encoded.map_err(|error| error.in_method(options.method.name));
        // No server was chosen yet.
        let tell = |error: &CallError| tell_failed(None, options.method, "", error);
        encoded.map_err(CallError::Encode).inspect_err(tell)?;
        let waits = references
            .as_ref()
            .is_some_and(|references| !references.waits.is_empty());
        let kept = ResendableCall::new(encoder.finish(), waits);
        Ok(Self {
            options,
            kept,
            references,
        })
    }

    /// Whether the arguments refer to values that a server owns.
    pub(super) fn refers(&self) -> bool {
        self.references.is_some()
    }

    /// The connection to the server that owns those values.
    pub(super) fn owner(&self) -> Option<Arc<Engine>> {
        let pin = self.references.as_ref()?.pins.first()?;
        Some(pin.engine().clone())
    }

    /// Sends the call once, with `left` until its deadline. If `is_attempt`, the caller reports its failure, unless it sends it again.
    pub(super) fn send(
        &self,
        engine: &Arc<Engine>,
        service: u32,
        left: Option<Duration>,
        is_attempt: bool,
    ) -> Result<Sent, CallError> {
        let options = CallOptions {
            // Each attempt has messages of its own, whose tensors are placed anew.
            places: self
                .options
                .places
                .as_deref()
                .map(CallPlacement::of_attempt),
            ..self.options.clone()
        };
        let begun = engine.begin_call(service, &options, left);
        if let Some(trace) = begun.trace.as_ref().filter(|_| is_attempt) {
            trace.set_attempt();
        }
        let header_len = begun.header.len();
        let mut encoded = self.kept.behind(begun.header, &engine.pipe.peer_limits());
        if let Some(references) = &self.references {
            put_references(&mut encoded.metadata, &references.waits).inspect_err(|error| {
                let peer = engine.pipe.peer_name();
                tell_failed(begun.trace.as_ref(), options.method, peer, error);
            })?;
        }
        let slot = engine.call(Request {
            id: begun.id,
            method: options.method,
            encoded,
            header_len,
            deadline: options.deadline,
            references: self.references.clone(),
            trace: begun.trace,
            places: options.places,
            required: options.required,
        });
        Ok((engine.clone(), slot))
    }
}
