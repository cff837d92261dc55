//! The helpers that `tarpc_stub!` needs for a client.

/// Items that generated code names. They are private.
#[doc(hidden)]
pub mod private {
    use std::convert::Infallible;
    use std::io::ErrorKind;
    use std::time::Instant;

    use tarpc::ServerError;

    pub use tarpc::RequestName;
    pub use tarpc::client::RpcError;
    pub use tarpc::client::stub::Stub;
    pub use tarpc::context::Context;

    use crate::client::ClientHandle;
    use crate::context::TraceContext;
    use crate::error::{CallError, PlaceError};

    /// A client whose calls have the deadline and trace of tarpc's context.
    pub fn under(handle: &ClientHandle, context: &Context) -> ClientHandle {
        let trace = TraceContext {
            trace_id: context.trace_context.trace_id.into(),
            span_id: context.trace_context.span_id.into(),
        };
        handle
            .with_deadline(context.deadline.saturating_duration_since(Instant::now()))
            .with_trace(trace)
    }

    /// The answer of a method that has no error of its own.
    pub fn value<T>(answer: Result<T, CallError>) -> Result<T, RpcError> {
        result(answer).map(|Ok::<T, Infallible>(value)| value)
    }

    /// The answer of a method that has an error of its own: such an error is an answer, too.
    pub fn result<T, E>(answer: Result<T, CallError<E>>) -> Result<Result<T, E>, RpcError> {
        let error = match answer {
            Ok(value) => return Ok(Ok(value)),
            Err(error) => error,
        };
        let server = |kind, text: String| Err(RpcError::Server(ServerError::new(kind, text)));
        match error {
            CallError::Service(error) => Ok(Err(error)),
            CallError::Deadline { .. } => Err(RpcError::DeadlineExceeded),
            CallError::Connection {
                error,
                may_have_run: false,
            } => Err(RpcError::Send(error.to_string().into())),
            error @ CallError::Unavailable {
                may_have_run: false,
                ..
            } => Err(RpcError::Send(error.map_service(|_| "").to_string().into())),
            CallError::NoPlace {
                error: error @ PlaceError::Here(_),
                may_have_run: false,
            } => Err(RpcError::Send(error.to_string().into())),
            CallError::Connection { .. } | CallError::Unavailable { .. } => Err(RpcError::Shutdown),
            CallError::Overloaded(text) => server(ErrorKind::WouldBlock, text.to_string()),
            CallError::Denied(text) => server(ErrorKind::PermissionDenied, text.to_string()),
            CallError::ShuttingDown => server(
                ErrorKind::ConnectionRefused,
                "the server is shutting down".to_owned(),
            ),
            other => server(ErrorKind::Other, other.map_service(|_| "").to_string()),
        }
    }
}
