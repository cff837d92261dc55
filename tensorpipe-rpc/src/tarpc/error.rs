//! The errors of a transport.

use std::io::{self, ErrorKind};

use tensorpipe::Error;

use crate::codec::{DecodeError, EncodeError};

/// Why a transport has ended, or did not take a message.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The pipe has ended, or does not take this message.
    #[error(transparent)]
    Pipe(#[from] Error),
    /// This message cannot be sent, so nothing was sent.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The peer sent bytes that are not a message of this service.
    #[error("pipe {pipe}: {error}")]
    Decode {
        /// The pipe's name.
        pipe: String,
        /// The decoding error.
        error: DecodeError,
    },
    /// The peer does not speak tarpc's protocol, or both ends are clients or both servers.
    #[error(
        "pipe {pipe}: the peer sent {what}; connect clients and servers of tarpc with each other"
    )]
    Foreign {
        /// The pipe's name.
        pipe: String,
        /// The peer's message.
        what: &'static str,
    },
}

/// For code that was written for tarpc's own transports, which fail with [`io::Error`].
impl From<TransportError> for io::Error {
    fn from(error: TransportError) -> Self {
        let kind = match &error {
            TransportError::Pipe(error) if error.ends_pipe() => ErrorKind::BrokenPipe,
            TransportError::Pipe(_) => ErrorKind::Other,
            TransportError::Encode(_) => ErrorKind::InvalidInput,
            TransportError::Decode { .. } | TransportError::Foreign { .. } => {
                ErrorKind::InvalidData
            }
        };
        Self::new(kind, error)
    }
}
