//! How a codec takes tensors out of a value, and puts them back.
//!
//! The codec sees a newtype struct named [`Lifted::NAME`], and makes exactly that nested call inside [`offer`] or [`supply`]. Those arm a
//! thread-local slot. The first value that looks at the slot uses it up; a guard restores it, even after a panic. The slot is re-entrant,
//! and since serde is synchronous, it never outlives a call or an await. Code that does not arm it (`serde_json` inside a user's
//! `Serialize`) gets the plain form.

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

use crate::message::Payload;
use crate::tensor::Tensor;

/// A value that a codec may carry beside its bytes.
pub trait Lifted: Clone + Sized {
    /// The name of its newtype struct for serde.
    const NAME: &'static str;
    /// Its form for a serializer that does not lift.
    fn serialize_plain<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error>;
    /// The inverse.
    fn deserialize_plain<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error>;
    /// Wraps itself as a part.
    fn into_part(self) -> Part;
    /// The inverse; `Err` for another kind of part.
    fn from_part(part: Part) -> Result<Self, Part>;
}

/// Any value that can be lifted.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "named for what they hold")]
pub enum Part {
    Tensor(Tensor),
    Payload(Payload),
}

/// Runs `serialize`. The first `T` that is serialized in it is returned, and writes `index` instead of itself. `None`: there was none, so
/// `serialize` wrote only other values.
pub fn offer<T: Lifted, R>(index: u32, serialize: impl FnOnce() -> R) -> (R, Option<T>) {
    let armed = Armed::with(Slot::Wanted {
        index,
        name: T::NAME,
    });
    let result = serialize();
    let caught = match armed.disarm() {
        Slot::Caught(part) => T::from_part(part).ok(),
        _ => None,
    };
    (result, caught)
}

/// Runs `deserialize`. The first `T` that is deserialized in it is `value`, and reads nothing. `value` is returned beside the result if
/// nobody took it: then `deserialize` read something else.
pub fn supply<T: Lifted, R>(value: T, deserialize: impl FnOnce() -> R) -> (R, Option<T>) {
    let armed = Armed::with(Slot::Given(value.into_part()));
    let result = deserialize();
    let unused = match armed.disarm() {
        Slot::Given(part) => T::from_part(part).ok(),
        _ => None,
    };
    (result, unused)
}

pub(crate) fn serialize<T: Lifted, S: Serializer>(
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_newtype_struct(T::NAME, &Inner(value))
}

pub(crate) fn deserialize<'de, T: Lifted, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    deserializer.deserialize_newtype_struct(T::NAME, InnerVisitor(PhantomData))
}

/// The inside of the newtype struct, where the slot is checked.
struct Inner<'a, T>(&'a T);

impl<T: Lifted> Serialize for Inner<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match catch(self.0) {
            Some(index) => serializer.serialize_u32(index),
            None => self.0.serialize_plain(serializer),
        }
    }
}

struct InnerVisitor<T>(PhantomData<T>);

impl<'de, T: Lifted> Visitor<'de> for InnerVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::NAME)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        match given() {
            Some(value) => Ok(value),
            None => T::deserialize_plain(deserializer),
        }
    }
}

/// Hands `value` to the caller that armed the slot for its kind. Returns the index to write instead.
fn catch<T: Lifted>(value: &T) -> Option<u32> {
    SLOT.with_borrow_mut(|slot| match *slot {
        Slot::Wanted { index, name } if name == T::NAME => {
            *slot = Slot::Caught(value.clone().into_part());
            Some(index)
        }
        _ => None,
    })
}

fn given<T: Lifted>() -> Option<T> {
    SLOT.with_borrow_mut(|slot| match std::mem::take(slot) {
        Slot::Given(part) => match T::from_part(part) {
            Ok(value) => Some(value),
            Err(part) => {
                *slot = Slot::Given(part);
                None
            }
        },
        other => {
            *slot = other;
            None
        }
    })
}

thread_local! {
    static SLOT: RefCell<Slot> = const { RefCell::new(Slot::Idle) };
}

#[derive(Default)]
enum Slot {
    #[default]
    Idle,
    Wanted {
        index: u32,
        name: &'static str,
    },
    Caught(Part),
    Given(Part),
}

/// Keeps the slot armed while it lives; then restores the slot's earlier content.
struct Armed {
    before: Slot,
}

impl Armed {
    fn with(slot: Slot) -> Self {
        Self {
            before: SLOT.replace(slot),
        }
    }

    /// Disarms the slot and returns its content.
    fn disarm(self) -> Slot {
        SLOT.take()
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        // Dropping the content may run foreign code: not while the slot is borrowed.
        drop(SLOT.replace(std::mem::take(&mut self.before)));
    }
}
