//! The name of a value: its producer, its consumer, the tensor and the step.
//!
//! A key is its text, as in TensorFlow, plus the positions of its parts: `producer;incarnation;consumer;tensor;step`, with the
//! incarnation as 16 hexadecimal digits, and the step as a decimal number. Invariant: each key has only one spelling, so keys are
//! equal when their texts are. No part is empty, contains a `;`, or is longer than [`MAX_NAME`].

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

/// The longest name of a process or tensor in a key, in bytes.
pub const MAX_NAME: usize = 512;

/// Digits of an incarnation.
const HEX: usize = 16;

/// Names one value. Its producer sends it once, and its consumer receives it once. Cheap to clone.
///
/// ```
/// use tensorpipe_rpc::rendezvous::Key;
///
/// # fn main() -> Result<(), tensorpipe_rpc::rendezvous::KeyError> {
/// let key = Key::new("front", 0xab, "back", "activations/3", 7)?;
/// assert_eq!(key.to_string(), "front;00000000000000ab;back;activations/3;7");
/// assert_eq!("front;00000000000000ab;back;activations/3;7".parse(), Ok(key));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Key {
    text: Arc<str>,
    incarnation: u64,
    step: u64,
    /// The positions where the producer, the consumer and the tensor end.
    ends: [u16; 3],
}

impl Key {
    /// The key of `tensor` in `step`, sent by this incarnation of `producer` to `consumer`.
    ///
    /// # Errors
    /// If a name is empty, too long, or has a `;` or a control character.
    pub fn new(
        producer: &str,
        incarnation: u64,
        consumer: &str,
        tensor: &str,
        step: u64,
    ) -> Result<Self, KeyError> {
        check(Part::Producer, producer)?;
        check(Part::Consumer, consumer)?;
        check(Part::Tensor, tensor)?;
        let text = format!("{producer};{incarnation:016x};{consumer};{tensor};{step}");
        let producer = producer.len();
        let consumer = producer + HEX + 2 + consumer.len();
        let tensor = consumer + 1 + tensor.len();
        Ok(Self {
            text: text.into(),
            incarnation,
            step,
            // At most three names and the separators: far below 64 KiB.
            ends: [producer as u16, consumer as u16, tensor as u16],
        })
    }

    /// The process that sends the value.
    pub fn producer(&self) -> &str {
        &self.text[..usize::from(self.ends[0])]
    }

    /// Which run of the producer sends it: a process that was started again is another incarnation.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The process that receives the value.
    pub fn consumer(&self) -> &str {
        &self.text[usize::from(self.ends[0]) + HEX + 2..usize::from(self.ends[1])]
    }

    /// The tensor's name.
    pub fn tensor(&self) -> &str {
        &self.text[usize::from(self.ends[1]) + 1..usize::from(self.ends[2])]
    }

    /// The step.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The whole key.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let mut parts = text.split(';');
        let mut next = || parts.next().ok_or(KeyError::Parts);
        let (producer, incarnation) = (next()?, next()?);
        let (consumer, tensor, step) = (next()?, next()?, next()?);
        if parts.next().is_some() {
            return Err(KeyError::Parts);
        }
        // Only one spelling is accepted: no sign and no capitals, which `from_str_radix` would take.
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if incarnation.len() != HEX || !incarnation.bytes().all(hex) {
            return Err(KeyError::Incarnation);
        }
        let incarnation =
            u64::from_str_radix(incarnation, 16).map_err(|_| KeyError::Incarnation)?;
        let digits = step.bytes().all(|b| b.is_ascii_digit());
        if !digits || (step.len() > 1 && step.starts_with('0')) {
            return Err(KeyError::Step);
        }
        let step = step.parse().map_err(|_| KeyError::Step)?;
        Self::new(producer, incarnation, consumer, tensor, step)
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.text)
    }
}

/// A named part of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// The process that sends the value.
    Producer,
    /// The process that receives it.
    Consumer,
    /// The tensor.
    Tensor,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Producer => "producer",
            Self::Consumer => "consumer",
            Self::Tensor => "tensor",
        })
    }
}

/// Why a text is no key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Not five parts.
    #[error("a key is `producer;incarnation;consumer;tensor;step`, five parts between `;`")]
    Parts,
    /// A name is empty.
    #[error("the {0} of a key has no name; give it one")]
    Empty(Part),
    /// A name is too long.
    #[error("the {part} of a key has a name of {bytes} bytes; shorten it to {MAX_NAME}")]
    TooLong {
        /// The part.
        part: Part,
        /// Its length.
        bytes: usize,
    },
    /// A name has a `;` or a control character.
    #[error("the {0} of a key has a `;` or a control character in its name; leave it out")]
    Character(Part),
    /// The incarnation is not 16 hexadecimal digits.
    #[error("the incarnation of a key is 16 hexadecimal digits, small letters")]
    Incarnation,
    /// The step is no number.
    #[error("the step of a key is a decimal number below 2^64, without zeros in front")]
    Step,
}

/// Whether a name may stand in a key.
pub(super) fn check(part: Part, name: &str) -> Result<(), KeyError> {
    if name.is_empty() {
        return Err(KeyError::Empty(part));
    }
    if name.len() > MAX_NAME {
        let bytes = name.len();
        return Err(KeyError::TooLong { part, bytes });
    }
    if name.chars().any(|c| c == ';' || c.is_control()) {
        return Err(KeyError::Character(part));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_no_key_says_why() {
        let parse = |text: &str| text.parse::<Key>().unwrap_err();
        assert_eq!(parse(""), KeyError::Parts);
        assert_eq!(parse("a;00000000000000ab;b;t"), KeyError::Parts);
        assert_eq!(parse("a;00000000000000ab;b;t;1;2"), KeyError::Parts);
        for incarnation in [
            "ab",
            "00000000000000AB",
            "+0000000000000ab",
            "0000000000000000ab",
        ] {
            assert_eq!(
                parse(&format!("a;{incarnation};b;t;1")),
                KeyError::Incarnation
            );
        }
        for step in ["", "x", "+1", "-1", "01", "18446744073709551616"] {
            assert_eq!(
                parse(&format!("a;00000000000000ab;b;t;{step}")),
                KeyError::Step
            );
        }
        assert_eq!(
            parse(";00000000000000ab;b;t;1"),
            KeyError::Empty(Part::Producer)
        );
        let long = "x".repeat(MAX_NAME + 1);
        assert_eq!(
            parse(&format!("a;00000000000000ab;{long};t;1")),
            KeyError::TooLong {
                part: Part::Consumer,
                bytes: MAX_NAME + 1
            }
        );
        assert_eq!(
            Key::new("a", 1, "b", "t;2", 1).unwrap_err(),
            KeyError::Character(Part::Tensor)
        );
        assert_eq!(
            Key::new("a", 1, "b", "t\n", 1).unwrap_err(),
            KeyError::Character(Part::Tensor)
        );
    }

    proptest! {
        #[test]
        fn a_key_is_its_text(
            producer in "[^;\\p{Cc}]{1,20}", consumer in "[^;\\p{Cc}]{1,20}", tensor in "[^;\\p{Cc}]{1,20}",
            incarnation: u64, step: u64,
        ) {
            let key = Key::new(&producer, incarnation, &consumer, &tensor, step).unwrap();
            let again: Key = key.to_string().parse().unwrap();
            prop_assert_eq!(&again, &key);
            prop_assert_eq!(again.producer(), producer);
            prop_assert_eq!(again.consumer(), consumer);
            prop_assert_eq!(again.tensor(), tensor);
            prop_assert_eq!((again.incarnation(), again.step()), (incarnation, step));
        }

        #[test]
        fn any_text_is_a_key_of_that_text_or_an_error(text in ".{0,60}|[a-c;0-9]{0,40}") {
            if let Ok(key) = text.parse::<Key>() {
                prop_assert_eq!(key.as_str(), text);
            }
        }
    }
}
