//! Messages whose content can be checked by whoever reads them, made of memory that is counted.
//!
//! The metadata is a list of words, two for each part: the number of the pattern that it holds, and its length.

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

/// A part to be made.
#[derive(Clone, Copy, Debug)]
enum Part {
    Payload(usize),
    /// A tensor of ordinary memory.
    Heap(usize),
    /// A tensor of the context's pool.
    Pooled(usize),
}

/// The message that every talk begins with: one tensor of each kind of memory, too large to ride along.
pub(super) fn first(
    dice: &mut Dice,
    context: &Context,
    ledger: &Ledger,
) -> Result<Message, Misuse> {
    compose(
        dice,
        context,
        ledger,
        &[Part::Heap(FIRST), Part::Pooled(FIRST)],
    )
}

/// A message of up to three payloads and tensors.
pub(super) fn make(
    dice: &mut Dice,
    context: &Context,
    ledger: &Ledger,
    largest: u64,
) -> Result<Message, Misuse> {
    let count = dice.below(4);
    let mut draw = |_| {
        let len = dice.length(largest);
        match dice.below(8) {
            0 | 1 => Part::Payload(len),
            2..=4 => Part::Heap(len),
            _ => Part::Pooled(len),
        }
    };
    let mut parts: Vec<_> = (0..count).map(&mut draw).collect();
    // Payloads come first in a message.
    parts.sort_by_key(|part| !matches!(part, Part::Payload(_)));
    compose(dice, context, ledger, &parts)
}

fn compose(
    dice: &mut Dice,
    context: &Context,
    ledger: &Ledger,
    parts: &[Part],
) -> Result<Message, Misuse> {
    let mut message = Message::new(Vec::new());
    let mut words = Vec::new();
    for part in parts {
        let number = dice.next();
        let lend = |len| ledger.lend(filled(BufferMut::zeroed(len), number));
        let len = match *part {
            Part::Payload(len) => {
                message = message.payload(Payload::new(lend(len)));
                len
            }
            Part::Heap(len) => {
                message = message.tensor(Tensor::from_bytes(Buffer::from_owner(lend(len))));
                len
            }
            Part::Pooled(len) => {
                let mut tensor = context.pool().tensor(DType::U8, [len as u64])?;
                pattern::fill(tensor.make_mut::<u8>()?, number);
                message = message.tensor(tensor);
                len
            }
        };
        words.extend([number, len as u64]);
    }
    let metadata: Vec<_> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    message.metadata = metadata.into();
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

/// Bytes of the first tensors: more than rides in a message's frame.
const FIRST: usize = 200 << 10;

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
            assert_eq!(check(message), Ok(message.byte_len()));
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
        let good = first(&mut dice, &context, &ledger)?;
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
