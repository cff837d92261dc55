//! What goes back to a caller: results, reasons why there is none, and whether a service is here.

use std::time::Duration;

use tensorpipe::ambient;
use tensorpipe::engine::EnginePipe;
use tensorpipe::{Error, Misuse};

use super::admission::Admitted;
use super::{Body, Engine};
use crate::caught::ignore_panic;
use crate::codec::{Arguments, Encoded, Encoder, REPLY_HEADER, Reply, Returned};
use crate::error::no_place;
use crate::header::{FailureCode, Header, Kind, REFERENCES};
use crate::observe::{ServerStats, failed_without_span, of_failure};
use crate::placement::{naming, tensor_of};
use crate::remote::Release;
use crate::schema::{self, Description, Method};

/// How a call ended whose time was up.
const LATE: &str = "its deadline passed";

/// The longest text that goes back as the reason of a failure, in bytes.
const REASON_MAX: usize = 8 << 10;

impl Engine {
    /// Tells a client whether its service is served here, and under which number.
    pub(super) fn bind(&self, admitted: &Admitted, body: Body) {
        let Some(serving) = &self.serving else { return };
        let mut arguments = Arguments::new(body.metadata, body.payloads, body.tensors).counting();
        // What it takes in memory counts while it is compared.
        let described = (admitted.context.clone()).within(|| arguments.take("service"));
        let description: Description = match described {
            Ok(description) => description,
            Err(error) => return self.reply(admitted, Reply::bad_arguments(error)),
        };
        let services = &serving.server.services;
        let names = services
            .iter()
            .map(|served| served.service.schema().service);
        let Some(index) = (names.clone()).position(|name| name == description.service) else {
            let names: Vec<_> = names.map(|name| format!("`{name}`")).collect();
            let asked: String = description.service.chars().take(64).collect();
            let there = match names.is_empty() {
                true => "none at all".to_owned(),
                false => format!("only {}", names.join(", ")),
            };
            let text = format!("has no service `{}`, {there}", asked.escape_debug());
            let said = format!("this server {text}");
            serving.server.not_bound(serving.caller.peer(), &said);
            return self.fail_admitted(admitted, FailureCode::NoService, text);
        };
        match schema::compare(&description, &services[index].service.schema().describe()) {
            Ok(()) => self.reply(admitted, Reply::value(index as u32)),
            Err(mismatch) => {
                let text = mismatch.to_string();
                serving.server.not_bound(serving.caller.peer(), &text);
                self.fail_admitted(admitted, FailureCode::Mismatch, text);
            }
        }
    }

    /// Answers a call with the outcome of its handler.
    pub(super) fn reply(&self, admitted: &Admitted, mut reply: Reply) {
        if !admitted.begin_answer() {
            return admitted.nobody_waits();
        }
        let call = admitted.call;
        let server_stats = reply.take_server_stats();
        let fail = |code, text: String| {
            self.tell_failed(admitted, code, &text);
            self.fail(call, server_stats.as_deref(), code, text);
        };
        let method = || Some(self.method(admitted)?.name);
        let (kind, mut encoded) = match reply.into_outcome() {
            Returned::Value(encoded) => (Kind::Value, encoded),
            Returned::Error(encoded) => (Kind::ServiceError, encoded),
            Returned::Unsendable(error) => {
                let error = match method() {
                    Some(method) => error.in_method(method),
                    None => error,
                };
                return fail(FailureCode::BadReply, error.to_string());
            }
            Returned::BadArguments(error) => {
                let error = match method() {
                    Some(method) => error.in_method(method),
                    None => error,
                };
                return fail(FailureCode::BadArguments, error.to_string());
            }
            Returned::Failed(why, text) => return fail(why, text),
        };
        if let Some(placement) = &admitted.placement {
            placement.name_targets(&mut encoded);
        }
        Header::put_reply(&mut encoded.metadata, kind, call);
        let header_len = self.put_server_stats(server_stats.as_deref(), &mut encoded.metadata);
        let (references, count) = (encoded.references.take(), encoded.tensors.len());
        let gives = references.is_some();
        if let Some(references) = references {
            encoded.metadata[2] |= REFERENCES;
            let limit = self.serving.as_ref();
            let limit = limit.map_or(0, |serving| serving.server.limits.references);
            if !self.owned.give(call, references.exports, limit) {
                let text = format!("{limit} references of this connection's are held, the limit");
                // Not an overload, which invites a retry: the method has run.
                return fail(FailureCode::BadReply, text);
            }
        }
        let sent = self.send_reply(encoded, header_len);
        self.meter.read(&self.pipe);
        if gives && sent.is_err() {
            self.owned.release([Release { call, index: None }]);
        }
        let Err(error) = sent else {
            if let Some(trace) = &admitted.context.inner.handler_trace {
                trace.answered(kind);
            }
            return;
        };
        match naming(error, |tensor| Some(tensor_of("the result", tensor, count))) {
            // The caller asked for that place.
            error if admitted.placement.is_some() && no_place(&error).is_some() => {
                fail(FailureCode::NoPlaceForResult, error.to_string());
            }
            // Too large for the caller's limits, or on a device that no channel serves.
            Error::Misuse(misuse) => fail(FailureCode::BadReply, misuse.to_string()),
            error => {
                admitted.nobody_waits();
                self.nobody_waits(&error);
            }
        }
    }

    /// A reply cannot be sent, because the connection has ended.
    fn nobody_waits(&self, error: &Error) {
        ignore_panic(|| {
            tracing::debug!(pipe = self.pipe.name(), %error, "nobody is left to answer");
        });
    }

    /// Time was up before there was a reply.
    pub(super) fn reply_deadline_exceeded(&self, admitted: &Admitted) {
        self.fail_admitted(admitted, FailureCode::Deadline, LATE);
    }

    pub(super) fn reply_panic(&self, admitted: &Admitted, panic: String) {
        self.fail_admitted(admitted, FailureCode::Panicked, panic);
    }

    /// Answers an admitted call with a failure.
    pub(super) fn fail_admitted(
        &self,
        admitted: &Admitted,
        code: FailureCode,
        text: impl Into<String>,
    ) {
        let text = text.into();
        // Also if the call has an answer already, because its stream broke.
        self.tell_failed(admitted, code, &text);
        if !admitted.begin_answer() {
            return;
        }
        let server_stats = admitted.context.server_stats();
        self.fail(admitted.call, server_stats.as_ref(), code, text);
    }

    /// Logs how a call failed: in its span, if it has one.
    #[cold]
    fn tell_failed(&self, admitted: &Admitted, code: FailureCode, text: &str) {
        let (Some(serving), Some(target)) = (&self.serving, admitted.target) else {
            return;
        };
        let (trace, verdict) = (&admitted.context.inner.handler_trace, of_failure(code));
        if let Some(trace) = trace {
            trace.failed(verdict, &text);
        }
        if !trace.as_ref().is_some_and(|trace| trace.has_span()) {
            let (service, Method { name, .. }) = serving.called(target);
            let peer = &serving.caller.peer().name;
            failed_without_span("rpc.handle", service, name, peer, verdict, &text);
        }
    }

    /// Nobody waits for the call's answer any more. If it was late, that is logged.
    pub(super) fn given_up(&self, admitted: &Admitted) {
        if admitted.context.time_left() == Some(Duration::ZERO) {
            self.tell_failed(admitted, FailureCode::Deadline, LATE);
        }
        admitted.nobody_waits();
    }

    /// Answers any call with a failure, without figures.
    pub(super) fn reply_failure(&self, call: u64, code: FailureCode, text: impl Into<String>) {
        self.fail(call, None, code, text);
    }

    pub(super) fn fail(
        &self,
        call: u64,
        server_stats: Option<&ServerStats>,
        code: FailureCode,
        text: impl Into<String>,
    ) {
        let mut text = text.into();
        text.truncate(text.floor_char_boundary(REASON_MAX));
        let mut sent = self.send_failure(call, server_stats, code, &text);
        if let Err(Error::Misuse(_)) = sent {
            // The caller takes hardly any metadata: send what fits rather than no answer.
            let room = self.pipe.peer_limits().metadata as usize;
            let room = room.saturating_sub(REPLY_HEADER);
            sent = self.send_failure(call, None, code, &text[..text.floor_char_boundary(room)]);
        }
        match sent {
            Ok(_) => {}
            // The caller would wait in vain. This much finds room later.
            Err(Error::Misuse(Misuse::TooManyWrites(_))) => {
                self.send_control(Kind::Failure(code), call, b"queue was full");
            }
            Err(error) => self.nobody_waits(&error),
        }
    }

    fn send_failure(
        &self,
        call: u64,
        server_stats: Option<&ServerStats>,
        code: FailureCode,
        text: &str,
    ) -> Result<u64, Error> {
        let mut metadata = Header::plain(Kind::Failure(code), call).to_vec();
        let header_len = self.put_server_stats(server_stats, &mut metadata);
        metadata.extend_from_slice(text.as_bytes());
        let encoded = Encoded {
            metadata,
            ..Encoded::default()
        };
        self.send_reply(encoded, header_len)
    }

    /// Sends a reply. If it has figures, the pipe stamps into it how long it waited to be written.
    fn send_reply(&self, encoded: Encoded, header_len: usize) -> Result<u64, Error> {
        let told = ServerStats::leaving_at(header_len).map(|at| (at, ambient::now()));
        let sent = self
            .send(encoded, header_len, |_| (), |_, _| ())
            .map(|(message, _)| message);
        if let (Some((at, since)), Ok(message)) = (told, &sent) {
            self.pipe.stamp_when_sending(*message, at, since);
        }
        sent
    }

    /// Puts figures behind the header of a reply, and returns the header's new length. They are left out when the caller's metadata
    /// has no room for them.
    fn put_server_stats(
        &self,
        server_stats: Option<&ServerStats>,
        metadata: &mut Vec<u8>,
    ) -> usize {
        let room = self.pipe.peer_limits().metadata as usize;
        let Some(server_stats) =
            server_stats.filter(|server_stats| server_stats.header_len() <= room)
        else {
            return REPLY_HEADER;
        };
        server_stats.put(metadata);
        server_stats.header_len()
    }
}

/// A client's first message about a service: its description.
pub(crate) fn bind_request(
    call: u64,
    description: &Description,
) -> Result<(Encoded, usize), crate::codec::EncodeError> {
    let header = Header::plain(Kind::Bind, call).to_vec();
    let header_len = header.len();
    let mut encoder = Encoder::after(header);
    encoder.push::<Description>("service", &description)?;
    Ok((encoder.finish(), header_len))
}
