//! What went wrong in a method, in words.

use std::error::Error;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::printable;

/// How many bytes of it are shown. The text is the peer's.
const SHOWN: usize = 16 << 10;

/// An error for methods that need no error type of their own. `?` makes one of every [`Error`](std::error::Error), with its causes;
/// the caller gets it in [`CallError::Service`](crate::CallError::Service).
///
/// ```
/// use tensorpipe::Tensor;
/// use tensorpipe_rpc::{ServiceError, tensor_service};
///
/// #[tensor_service]
/// trait Mean {
///     async fn mean(&self, x: Tensor) -> Result<f32, ServiceError>;
/// }
///
/// struct Cpu;
///
/// impl Mean for Cpu {
///     async fn mean(&self, x: Tensor) -> Result<f32, ServiceError> {
///         let x = x.as_slice::<f32>()?;
///         if x.is_empty() {
///             return Err(ServiceError::new("a mean of nothing"));
///         }
///         Ok(x.iter().sum::<f32>() / x.len() as f32)
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceError {
    words: String,
}

impl ServiceError {
    /// With this text.
    pub fn new(words: impl fmt::Display) -> Self {
        let words = words.to_string();
        Self { words }
    }
}

impl<E: Error> From<E> for ServiceError {
    fn from(error: E) -> Self {
        let mut words = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let text = error.to_string();
            // Many errors show their cause themselves.
            if !words.contains(&text) {
                words.push_str(": ");
                words.push_str(&text);
            }
            cause = error.source();
        }
        Self { words }
    }
}

impl fmt::Display for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(self.words.as_bytes(), SHOWN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the model is not there")]
    struct Outer(#[source] Middle);

    #[derive(Debug, thiserror::Error)]
    #[error("no file: {0}")]
    struct Middle(#[source] std::num::ParseIntError);

    #[test]
    fn an_error_comes_with_its_causes_each_once() {
        let cause = "x".parse::<u8>().unwrap_err();
        let error = ServiceError::from(Outer(Middle(cause)));
        assert_eq!(
            error.to_string(),
            "the model is not there: no file: invalid digit found in string"
        );
        assert_eq!(ServiceError::new("a\u{7}").to_string(), "a\\u{7}");
    }
}
