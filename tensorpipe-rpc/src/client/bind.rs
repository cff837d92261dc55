//! Asking a server for a service: the two definitions are compared, and the service gets its number.

use std::sync::Arc;
use std::time::Duration;

use crate::call::CancelOnDrop;
use crate::codec::decode_reply;
use crate::engine::{Engine, Outcome, Request, bind_request};
use crate::error::{CallError, ConnectError};
use crate::header::FailureCode;
use crate::remote::FETCH;
use crate::schema::Schema;
use tensorpipe::ambient;

/// How long a server has to say whether it has a service.
pub(super) const BIND_DEADLINE: Duration = Duration::from_secs(10);

/// The server's number for a service.
///
/// # Errors
/// [`ConnectError::NoService`], [`ConnectError::Mismatch`], or why there was no answer.
pub(super) async fn bind(
    engine: &Arc<Engine>,
    schema: &'static Schema,
) -> Result<u32, ConnectError> {
    if let Some(service) = engine.bound(schema) {
        return Ok(service);
    }
    let id = engine.calls.next_id();
    let request = bind_request(id, &schema.describe());
    let (encoded, header_len) =
        request.map_err(|error| ConnectError::Call(CallError::Encode(error)))?;
    let deadline = Some((ambient::now() + BIND_DEADLINE, BIND_DEADLINE));
    let slot = engine.call(Request {
        id,
        method: &FETCH,
        encoded,
        header_len,
        deadline,
        references: None,
        trace: None,
        places: None,
        required: None,
    });
    let pipe = engine.pipe.name().into();
    let mut asked = CancelOnDrop::new((engine.clone(), slot));
    let (outcome, _) = asked.outcome().await;
    let body = match outcome {
        Outcome::Value(body) => body,
        Outcome::NotBound(FailureCode::NoService, reason) => {
            return Err(ConnectError::NoService { pipe, reason });
        }
        Outcome::NotBound(_, reason) => return Err(ConnectError::Mismatch(reason)),
        Outcome::Failed(CallError::Connection { error, .. }) => return Err(error.into()),
        Outcome::Failed(error) => return Err(ConnectError::Call(error)),
        Outcome::ServiceError(_) => {
            let reason = "the server answered with an error that means nothing here".into();
            return Err(ConnectError::Call(CallError::Other(reason)));
        }
    };
    let service = decode_reply(body.metadata, body.payloads, body.tensors);
    let service = service.map_err(|error| ConnectError::Call(CallError::Decode(error)))?;
    engine.set_bound(schema, service);
    Ok(service)
}
