//! The connection for which a value is encoded or decoded. References need it, and serde does not pass it on.
//!
//! It is a thread-local slot, set for exactly one synchronous encoding or decoding. A guard restores it; it is never held across an
//! await.

use std::cell::RefCell;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::Id;
use super::handle::Handle;
use super::owned::{Exports, Owned, Referent, TOO_MANY};
use crate::engine::Engine;

thread_local! {
    static SCOPE: RefCell<Scope> = const { RefCell::new(Scope::None) };
}

enum Scope {
    None,
    Encoding(Encoding),
    Decoding(Decoding),
    Copying(Copied),
}

/// The connection is that of the first reference in the value.
pub(crate) const ANY: usize = 0;

/// An encoding for one connection.
struct Encoding {
    /// The address of the connection's engine, used only to compare. [`ANY`] until a reference determines it.
    engine: usize,
    /// The name of the first reference that the value gives away. `None` for arguments, which give none away.
    first: Option<Id>,
    /// Boxed, because most values hold no references.
    references: Option<Box<EncodedReferences>>,
}

impl Encoding {
    fn references(&mut self) -> &mut EncodedReferences {
        self.references.get_or_insert_default()
    }
}

/// The references in an encoded value, at least one.
#[derive(Clone, Debug, Default)]
pub(crate) struct EncodedReferences {
    /// Values of this end that the peer now refers to, each at its index.
    pub(crate) exports: Exports,
    /// References that go back to their owner. They are kept until the owner has answered, so that it does not release them before.
    pub(crate) pins: SmallVec<[Arc<Handle>; 1]>,
    /// Those of the pins that are results of calls which may be under way.
    pub(crate) waits: SmallVec<[u64; 1]>,
}

/// A decoding of a value from one connection.
pub(crate) struct Decoding {
    engine: Arc<Engine>,
    /// The reference that the reply brings, if later calls were given it already.
    promised: Option<Arc<Handle>>,
    /// A reference had no value.
    missed: bool,
    /// How many references were decoded.
    decoded: usize,
}

/// The references in a value that is copied within this process, each at its index.
#[derive(Debug, Default)]
pub(crate) struct Copied(Vec<Found>);

impl Copied {
    fn add(&mut self, found: Found) -> Result<Id, &'static str> {
        let index = u32::try_from(self.0.len()).map_err(|_| TOO_MANY)?;
        self.0.push(found);
        Ok(Id { call: 0, index })
    }

    fn find(&self, id: Id) -> Result<Found, &'static str> {
        let found = self.0.get(id.index as usize);
        found.cloned().ok_or(UNRESOLVED)
    }
}

/// A decoded reference.
#[derive(Clone, Debug)]
pub(super) enum Found {
    Here(Referent),
    There(Arc<Handle>),
    Nothing,
}

/// Restores the previous scope.
struct Restore(Option<Scope>);

impl Drop for Restore {
    fn drop(&mut self) {
        if let Some(scope) = self.0.take() {
            drop(swap(scope));
        }
    }
}

fn swap(scope: Scope) -> Scope {
    SCOPE.with(|slot| std::mem::replace(&mut *slot.borrow_mut(), scope))
}

/// Runs `work` in a scope, and returns that. Whoever drops it does so after the slot is restored: the drop may close a connection.
fn within<R>(scope: Scope, work: impl FnOnce() -> R) -> (R, Scope) {
    let mut restore = Restore(Some(swap(scope)));
    let done = work();
    let before = restore.0.take().unwrap_or(Scope::None);
    (done, swap(before))
}

impl EncodedReferences {
    /// One reference that goes back to its owner.
    pub(crate) fn pinning(handle: Arc<Handle>) -> Box<Self> {
        Box::new(Self {
            pins: smallvec![handle],
            ..Self::default()
        })
    }
}

/// Runs `encode` for the peer of the engine at this address. It encodes arguments, or a reply whose first reference gets the name
/// `first`.
pub(crate) fn encoding<R>(
    engine: usize,
    first: Option<Id>,
    encode: impl FnOnce() -> R,
) -> (R, Option<Box<EncodedReferences>>) {
    let scope = Scope::Encoding(Encoding {
        engine,
        first,
        references: None,
    });
    match within(scope, encode) {
        (encoded, Scope::Encoding(encoding)) => (encoded, encoding.references),
        (encoded, _) => (encoded, None),
    }
}

/// Runs `decode` on bytes from the peer of `engine`. Also returns whether it met a reference without a value.
pub(crate) fn decoding<R>(
    engine: Arc<Engine>,
    promised: Option<Arc<Handle>>,
    decode: impl FnOnce() -> R,
) -> (R, bool) {
    let scope = Scope::Decoding(Decoding {
        engine,
        promised,
        missed: false,
        decoded: 0,
    });
    let (decoded, scope) = within(scope, decode);
    let missed = matches!(scope, Scope::Decoding(Decoding { missed: true, .. }));
    (decoded, missed)
}

/// Runs one half of a copy within this process: encodes a value, or decodes what was encoded with the references that were `copied`
/// then.
pub(crate) fn copying<R>(copied: Copied, half: impl FnOnce() -> R) -> (R, Copied) {
    match within(Scope::Copying(copied), half) {
        (done, Scope::Copying(copied)) => (done, copied),
        (done, _) => (done, Copied::default()),
    }
}

/// Gives a value of this end to the peer. Returns the name that it will have there.
pub(super) fn export(referent: Referent) -> Result<Id, &'static str> {
    SCOPE.with(|slot| match &mut *slot.borrow_mut() {
        Scope::Encoding(encoding) if let Some(first) = encoding.first => {
            let exports = &mut encoding.references().exports;
            let (call, index) = (first.call, exports.push(first.index, referent)?);
            Ok(Id { call, index })
        }
        Scope::Encoding(_) => Err(
            "a reference to a value of this process can be what a method returns, neither an argument nor an item of a stream; \
             send the value itself, or a `Shared` that `Remote::share` makes",
        ),
        Scope::Copying(copied) => copied.add(Found::Here(referent)),
        Scope::None | Scope::Decoding(_) => Err("a reference travels in calls alone"),
    })
}

/// Sends a reference back to its owner.
pub(super) fn send_back(handle: &Arc<Handle>) -> Result<Id, &'static str> {
    SCOPE.with(|slot| match &mut *slot.borrow_mut() {
        Scope::Encoding(encoding) if encoding.first.is_some() => {
            Err(match handle.is_of(encoding.engine) {
                true => {
                    "a reference of the caller's own can be an argument, not what a method returns to it"
                }
                false => {
                    "the reference is to a value of a third process: return it as a `Shared`, which `Remote::share` makes"
                }
            })
        }
        Scope::Encoding(encoding) if encoding.engine == ANY || handle.is_of(encoding.engine) => {
            encoding.engine = handle.address();
            encoding.references().pins.push(handle.clone());
            Ok(handle.id)
        }
        Scope::Copying(copied) => copied.add(Found::There(handle.clone())),
        Scope::Encoding(_) => Err(
            "the reference came over another connection, whose other end owns the value; send a `Shared` that `Remote::share` makes, or fetch the value",
        ),
        Scope::None | Scope::Decoding(_) => Err("a reference travels in calls alone"),
    })
}

/// Notes that the encoded value refers to the future result of this call.
pub(super) fn wait_for(call: u64) {
    SCOPE.with(|slot| {
        if let Scope::Encoding(encoding) = &mut *slot.borrow_mut() {
            let waits = &mut encoding.references().waits;
            if !waits.contains(&call) {
                waits.push(call);
            }
        }
    });
}

/// How many references have been decoded so far.
pub(crate) fn decoded_references() -> usize {
    SCOPE.with(|slot| match &mut *slot.borrow_mut() {
        Scope::Decoding(decoding) => decoding.decoded,
        Scope::None | Scope::Encoding(_) | Scope::Copying(_) => 0,
    })
}

/// Decodes a reference to a value that the peer owns.
pub(super) fn import(id: Id) -> Result<Found, &'static str> {
    SCOPE.with(|slot| match &mut *slot.borrow_mut() {
        Scope::Decoding(decoding) => {
            decoding.decoded += 1;
            Ok(Found::There(match decoding.promised.take() {
                Some(promised) if promised.id == id => promised,
                other => {
                    decoding.promised = other;
                    Arc::new(Handle::new(decoding.engine.clone(), id))
                }
            }))
        }
        Scope::Copying(copied) => copied.find(id),
        // Debug builds read back what they encoded, and tracers decode without a connection.
        Scope::None | Scope::Encoding(_) => Ok(Found::Nothing),
    })
}

/// Decodes a reference to a value that this end owns.
pub(super) fn own(id: Id) -> Result<Found, &'static str> {
    SCOPE.with(|slot| match &mut *slot.borrow_mut() {
        Scope::Decoding(decoding) => {
            decoding.decoded += 1;
            let owned: &Owned = &decoding.engine.owned;
            match owned.find(id) {
                Some(referent) => Ok(Found::Here(referent)),
                None => {
                    decoding.missed = true;
                    Err(UNRESOLVED)
                }
            }
        }
        Scope::Copying(copied) => copied.find(id),
        Scope::None | Scope::Encoding(_) => Ok(Found::Nothing),
    })
}

/// The error about a reference without a value.
pub(crate) const UNRESOLVED: &str = "the value that it refers to is not there: either the call that was to make it failed, and its own \
    error says why, or its holder has released it";
