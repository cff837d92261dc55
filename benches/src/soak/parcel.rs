//! Messages whose content can be checked by whoever reads them, made of memory that is counted.
//!
//! The metadata is a list of words: the message's number, then the length of each part. Part `i` holds the pattern of its
//! number plus `i`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tensorpipe::{Buffer, BufferMut, Context, DType, Error, Message, Misuse, Payload, Tensor};

use super::dice::Dice;
use crate::pattern;

/// Bytes of senders' memory that somebody still holds.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger(Arc<AtomicU64>);

impl Ledger {
    pub(super) fn held(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn lend(&self, bytes: Buffer) -> Lent {
        self.0.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        Lent {
            bytes,
            ledger: self.clone(),
        }
    }
}

/// Memory that tells the ledger when the last handle on it is gone.
struct Lent {
    bytes: Buffer,
    ledger: Ledger,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_bytes().unwrap_or_default()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let len = self.bytes.len() as u64;
        self.ledger.0.fetch_sub(len, Ordering::SeqCst);
    }
}

/// A message of up to three payloads and tensors, of ordinary memory or of the context's pool.
pub(super) fn make(
    dice: &mut Dice,
    context: &Context,
    ledger: &Ledger,
    largest: u64,
) -> Result<Message, Misuse> {
    let number = dice.next();
    let count = dice.below(4);
    let (mut payloads, mut tensors) = (Vec::new(), Vec::new());
    let mut lengths = Vec::new();
    for index in 0..count {
        let len = dice.length(largest);
        if dice.one_in(4) {
            payloads.push((number.wrapping_add(index), len));
        } else {
            tensors.push((number.wrapping_add(index), len));
        }
    }
    let mut message = Message::new(Vec::new());
    for (number, len) in payloads {
        lengths.push((number, len));
        let lent = ledger.lend(filled(BufferMut::zeroed(len), number));
        message = message.payload(Payload::new(lent));
    }
    for (number, len) in tensors {
        lengths.push((number, len));
        let tensor = if dice.one_in(2) {
            let mut tensor = context.pool().tensor(DType::U8, [len as u64])?;
            pattern::fill(tensor.make_mut::<u8>()?, number);
            tensor
        } else {
            let lent = ledger.lend(filled(BufferMut::zeroed(len), number));
            Tensor::from_bytes(Buffer::from_owner(lent))
        };
        message = message.tensor(tensor);
    }
    let words = lengths
        .iter()
        .flat_map(|(number, len)| [*number, *len as u64]);
    message.metadata = words.flat_map(u64::to_le_bytes).collect::<Vec<_>>().into();
    Ok(message)
}

fn filled(mut memory: BufferMut, number: u64) -> Buffer {
    if let Some(bytes) = memory.as_bytes_mut() {
        pattern::fill(bytes, number);
    }
    memory.freeze()
}

/// Checks every byte; returns how many there are.
///
/// # Errors
/// In words, what is wrong.
pub(super) fn check(message: &Message) -> Result<u64, String> {
    let words: Vec<u64> = message
        .metadata
        .chunks(8)
        .map(|word| <[u8; 8]>::try_from(word).map(u64::from_le_bytes))
        .collect::<Result<_, _>>()
        .map_err(|_| format!("metadata of {} bytes", message.metadata.len()))?;
    let mut parts = Vec::new();
    for payload in &message.payloads {
        parts.push(payload.as_bytes());
    }
    for tensor in &message.tensors {
        let bytes = tensor.tensor.as_bytes();
        parts.push(bytes.map_err(|error| error.to_string())?);
    }
    if words.len() != 2 * parts.len() {
        return Err(format!(
            "{} parts came with {} words",
            parts.len(),
            words.len()
        ));
    }
    for (index, (part, announced)) in parts.iter().zip(words.chunks_exact(2)).enumerate() {
        let (number, len) = (announced[0], announced[1]);
        if part.len() as u64 != len {
            return Err(format!("part {index} has {} bytes of {len}", part.len()));
        }
        if let Some(at) = pattern::mismatch(part, number) {
            return Err(format!("byte {at} of part {index} ({len} bytes) is wrong"));
        }
    }
    Ok(parts.iter().map(|part| part.len() as u64).sum())
}

/// What an error is, in a word, and whether it is one that a killed peer explains.
pub(super) fn judge(error: &Error) -> (&'static str, bool) {
    match error {
        Error::Lost { .. } => ("lost", true),
        Error::Closed { .. } => ("closed", true),
        Error::Reset { .. } => ("reset", true),
        Error::Refused { .. } => ("refused", true),
        Error::GoingAway { .. } => ("going away", true),
        // A channel may see the end of the peer's process before the connection does.
        Error::Channel { .. } => ("channel", true),
        Error::Connect { source, .. } => match **source {
            Error::Lost { .. } => ("connect: lost", true),
            Error::Closed { .. } => ("connect: closed", true),
            Error::System(_) => ("connect: system", true),
            Error::Rejected { .. } => ("connect: rejected", true),
            _ => ("connect", false),
        },
        Error::Misuse(_) => ("misuse", false),
        Error::Peer { .. } => ("protocol", false),
        Error::System(_) => ("system", false),
        Error::Rejected { .. } => ("rejected", false),
        Error::Silent { .. } => ("silent", false),
        Error::Timeout { .. } => ("timeout", false),
        Error::OutOfMemory { .. } => ("out of memory", false),
        _ => ("unknown", false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_made_checks_and_is_counted_until_it_is_dropped() -> Result<(), Misuse> {
        let (context, ledger) = (Context::new(), Ledger::default());
        let mut dice = Dice::new(3);
        let mut messages = Vec::new();
        for _ in 0..50 {
            messages.push(make(&mut dice, &context, &ledger, 100_000)?);
        }
        for message in &messages {
            assert_eq!(
                check(message),
                Ok(message.byte_len() - message.metadata.len() as u64)
            );
        }
        assert!(ledger.held() > 0);
        drop(messages);
        assert_eq!(ledger.held(), 0);
        Ok(())
    }

    #[tokio::test]
    async fn a_wrong_byte_a_short_part_and_a_missing_one_are_seen() -> Result<(), Misuse> {
        let (context, ledger) = (Context::new(), Ledger::default());
        let mut dice = Dice::new(3);
        let good = std::iter::repeat_with(|| make(&mut dice, &context, &ledger, 1000))
            .find(|message| {
                let message = message.as_ref();
                message.is_ok_and(|message| {
                    message
                        .tensors
                        .first()
                        .is_some_and(|tensor| tensor.tensor.byte_len() > 9)
                })
            })
            .expect("one of them has a tensor")?;
        let bytes = good.tensors[0].tensor.as_bytes()?.to_vec();
        let with = |bytes: Vec<u8>| {
            let mut message = good.clone();
            message.tensors[0] = Tensor::from(bytes).into();
            check(&message)
        };
        assert!(with(bytes.clone()).is_ok());
        let mut wrong = bytes.clone();
        wrong[7] ^= 1;
        assert!(with(wrong).is_err_and(|error| error.starts_with("byte 7")));
        assert!(with(bytes[1..].to_vec()).is_err_and(|error| error.contains("bytes of")));
        let mut less = good.clone();
        less.tensors.pop();
        assert!(check(&less).is_err());
        Ok(())
    }
}
