//! The future result of a call as an argument of another call.
//!
//! A call with such arguments lists the calls that it waits for: behind its body stand their numbers, eight bytes each, and then
//! one byte that counts them.

use bytes::Bytes;
use serde::{Serialize, Serializer, ser};
use smallvec::SmallVec;

use super::scope::{send_back, wait_for};
use super::{Remote, Wire, YOURS};
use crate::call::Call;
use crate::codec::{Argument, EncodeError, Encoder};
use crate::error::CallError;
use crate::header::{REFERENCES, WAITS};

impl<T: Send + Sync + 'static, E> Argument<Remote<T>> for &Call<Remote<T>, E> {
    fn encode(&self, encoder: &mut Encoder) -> Result<(), EncodeError> {
        encoder.write::<Remote<T>, Promise<'_, Remote<T>, E>>(&Promise(self))
    }
}

/// A call in place of its future result.
struct Promise<'a, T, E>(&'a Call<T, E>);

impl<T, E> Serialize for Promise<'_, T, E> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let handle = self.0.promise().map_err(ser::Error::custom)?;
        let id = send_back(&handle).map_err(ser::Error::custom)?;
        wait_for(id.call);
        let wire: Wire = (YOURS, id.call, id.index);
        wire.serialize(serializer)
    }
}

/// How many calls one call may wait for.
const MOST: usize = u8::MAX as usize;

/// Marks in a call that its arguments hold references, and lists the calls that it waits for.
pub(crate) fn put_references(metadata: &mut Vec<u8>, waits: &[u64]) -> Result<(), CallError> {
    metadata[2] |= REFERENCES;
    if waits.is_empty() {
        return Ok(());
    }
    metadata[2] |= WAITS;
    match add_waits(metadata, waits) {
        true => Ok(()),
        false => Err(CallError::Other(
            format!("a call waits for {MOST} others at most: await some of them first").into(),
        )),
    }
}

/// Appends the numbers of these calls to a body. Returns `false` if there are too many.
fn add_waits(metadata: &mut Vec<u8>, calls: &[u64]) -> bool {
    if calls.len() > MOST {
        return false;
    }
    for call in calls {
        metadata.extend_from_slice(&call.to_le_bytes());
    }
    metadata.push(calls.len() as u8);
    true
}

/// Takes the numbers off the body again. `None` if they are cut short.
pub(crate) fn split_waits(body: &mut Bytes) -> Option<SmallVec<[u64; 1]>> {
    let count = usize::from(*body.last()?);
    let at = body.len().checked_sub(1 + 8 * count)?;
    let tail = body.split_off(at);
    let calls = tail.chunks_exact(8).take(count);
    calls
        .map(|call| Some(u64::from_le_bytes(call.try_into().ok()?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_behind_a_body_comes_off_again() {
        for calls in [&[][..], &[7], &[u64::MAX, 0, 3]] {
            let mut metadata = b"body".to_vec();
            assert!(add_waits(&mut metadata, calls));
            for cut in 0..metadata.len() {
                // It must not panic, however much is missing.
                let _ = split_waits(&mut Bytes::copy_from_slice(&metadata[..cut]));
            }
            let mut body = Bytes::from(metadata);
            assert_eq!(&split_waits(&mut body).unwrap()[..], calls);
            assert_eq!(&body[..], b"body");
        }
        assert!(!add_waits(&mut Vec::new(), &[0; 256]));
        assert!(split_waits(&mut Bytes::from_static(&[0, 0, 2])).is_none());
        assert!(split_waits(&mut Bytes::new()).is_none());
    }
}
