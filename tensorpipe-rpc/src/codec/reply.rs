//! What a handler returned, encoded on the spot: its value need not be `Send` or live any longer.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::encoder::{Encoded, Encoder};
use super::error::{EncodeError, Subject};

/// What a method returned: a value or an error of its own.
#[derive(Debug)]
pub struct Reply {
    is_error: bool,
    encoded: Result<Encoded, EncodeError>,
}

impl Reply {
    /// The reply of a method that returns a `T`.
    pub fn value<T: Serialize + DeserializeOwned>(value: T) -> Self {
        Self::encode(Subject::Reply, &value)
    }

    /// The reply of a method that returns a `Result`.
    pub fn result<T, E>(result: Result<T, E>) -> Self
    where
        T: Serialize + DeserializeOwned,
        E: Serialize + DeserializeOwned,
    {
        match result {
            Ok(value) => Self::encode(Subject::Reply, &value),
            Err(error) => Self::encode(Subject::Error, &error),
        }
    }

    /// Whether the method returned its error.
    pub fn is_error(&self) -> bool {
        self.is_error
    }

    /// What to send.
    ///
    /// # Errors
    /// [`EncodeError`] when the value does not suit calls.
    pub fn into_encoded(self) -> Result<Encoded, EncodeError> {
        self.encoded
    }

    fn encode<T: Serialize + DeserializeOwned>(subject: Subject, value: &T) -> Self {
        let mut encoder = Encoder::new().about(subject);
        let written = encoder.write::<T, T>(value);
        Self {
            is_error: subject == Subject::Error,
            encoded: written.map(|()| encoder.finish()),
        }
    }
}
