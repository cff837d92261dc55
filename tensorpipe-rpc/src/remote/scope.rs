//! Which connection a value is encoded for or decoded from: what a reference in it must know, and serde does not say.
//!
//! A slot of the thread, set for exactly one synchronous encoding or decoding, and put back by a guard; never across an await.

use std::cell::RefCell;
use std::sync::Arc;

use super::Id;
use super::handle::Handle;
use super::owned::{Owned, Referent};
use crate::engine::Engine;

thread_local! {
    static SCOPE: RefCell<Scope> = const { RefCell::new(Scope::None) };
}

enum Scope {
    None,
    Encoding(Encoding),
    Decoding(Decoding),
}

/// The connection of the first reference that is met.
pub(crate) const ANY: usize = 0;

/// For one connection.
struct Encoding {
    /// Which connection: the address of its engine, compared only. [`ANY`] until a reference says.
    engine: usize,
    /// The call whose reply it is. Arguments give nothing away.
    reply_to: Option<u64>,
    /// Boxed: most values have none.
    met: Option<Box<EncodedReferences>>,
}

impl Encoding {
    fn met(&mut self) -> &mut EncodedReferences {
        self.met.get_or_insert_default()
    }
}

/// References that an encoding has met, at least one.
#[derive(Clone, Debug, Default)]
pub(crate) struct EncodedReferences {
    /// Values of this side that the other one now refers to, in the order of their indices.
    pub(crate) exports: Vec<Arc<dyn Referent>>,
    /// References that go back to their owner: it must not let go of them before it has answered.
    pub(crate) pins: Vec<Arc<Handle>>,
    /// Of these, results of calls that may be under way.
    pub(crate) waits: Vec<u64>,
}

/// Where what is decoded comes from.
pub(crate) struct Decoding {
    engine: Arc<Engine>,
    /// The reference that the reply brings, if calls were given it already.
    promised: Option<Arc<Handle>>,
    /// A reference was to nothing.
    missed: bool,
    /// How many references there were.
    met: usize,
}

/// What a reference on the wire is here.
pub(super) enum Found {
    Here(Arc<dyn Referent>),
    There(Arc<Handle>),
    Nothing,
}

/// Puts back what was there before.
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

impl EncodedReferences {
    /// One reference, that goes back to its owner.
    pub(crate) fn pinning(handle: Arc<Handle>) -> Box<Self> {
        Box::new(Self {
            pins: vec![handle],
            ..Self::default()
        })
    }
}

/// Runs `encode`, which encodes for the peer of the engine at this address: arguments, or the reply to a call.
pub(crate) fn encoding<R>(
    engine: usize,
    reply_to: Option<u64>,
    encode: impl FnOnce() -> R,
) -> (R, Option<Box<EncodedReferences>>) {
    let mut restore = Restore(Some(swap(Scope::Encoding(Encoding {
        engine,
        reply_to,
        met: None,
    }))));
    let encoded = encode();
    let before = restore.0.take().unwrap_or(Scope::None);
    match swap(before) {
        Scope::Encoding(encoding) => (encoded, encoding.met),
        _ => (encoded, None),
    }
}

/// Runs `decode`, which decodes what came from the peer of `engine`. Also returns whether it met a reference to nothing.
pub(crate) fn decoding<R>(
    engine: Arc<Engine>,
    promised: Option<Arc<Handle>>,
    decode: impl FnOnce() -> R,
) -> (R, bool) {
    let mut restore = Restore(Some(swap(Scope::Decoding(Decoding {
        engine,
        promised,
        missed: false,
        met: 0,
    }))));
    let decoded = decode();
    let before = restore.0.take().unwrap_or(Scope::None);
    // Dropped outside of the slot: it may close a connection.
    let missed = matches!(swap(before), Scope::Decoding(Decoding { missed: true, .. }));
    (decoded, missed)
}

/// A value of this side's goes to the other one. Returns the name that it will have there.
pub(super) fn export(referent: &Arc<dyn Referent>) -> Result<(u64, u32), &'static str> {
    SCOPE.with(|slot| match &mut *slot.borrow_mut() {
        Scope::Encoding(encoding) if let Some(call) = encoding.reply_to => {
            let exports = &mut encoding.met().exports;
            let index = u32::try_from(exports.len()).map_err(|_| "too many references")?;
            exports.push(referent.clone());
            Ok((call, index))
        }
        Scope::Encoding(_) => Err(
            "a reference to a value of this process can be what a method returns, neither an argument nor an item of a stream; \
             send the value itself",
        ),
        Scope::None | Scope::Decoding(_) => Err("a reference travels in calls alone"),
    })
}

/// A reference goes back to its owner.
pub(super) fn send_back(handle: &Arc<Handle>) -> Result<Id, &'static str> {
    SCOPE.with(|slot| match &mut *slot.borrow_mut() {
        Scope::Encoding(encoding) if encoding.reply_to.is_some() => Err(
            "a reference of the caller's own can be an argument, not what a method returns to it",
        ),
        Scope::Encoding(encoding) if encoding.engine == ANY || handle.is_of(encoding.engine) => {
            encoding.engine = handle.address();
            encoding.met().pins.push(handle.clone());
            Ok(handle.id)
        }
        Scope::Encoding(_) => Err(
            "the reference came over another connection, whose other end owns the value; fetch it and send the value itself",
        ),
        Scope::None | Scope::Decoding(_) => Err("a reference travels in calls alone"),
    })
}

/// What is encoded refers to the result of this call.
pub(super) fn wait_for(call: u64) {
    SCOPE.with(|slot| {
        if let Scope::Encoding(encoding) = &mut *slot.borrow_mut() {
            let waits = &mut encoding.met().waits;
            if !waits.contains(&call) {
                waits.push(call);
            }
        }
    });
}

/// How many references the decoding has met so far.
pub(crate) fn references_met() -> usize {
    SCOPE.with(|slot| match &mut *slot.borrow_mut() {
        Scope::Decoding(decoding) => decoding.met,
        Scope::None | Scope::Encoding(_) => 0,
    })
}

/// The peer says that it owns the value.
pub(super) fn import(id: Id) -> Result<Found, &'static str> {
    SCOPE.with(|slot| match &mut *slot.borrow_mut() {
        Scope::Decoding(decoding) => {
            decoding.met += 1;
            Ok(Found::There(match decoding.promised.take() {
                Some(promised) if promised.id == id => promised,
                other => {
                    decoding.promised = other;
                    Arc::new(Handle::new(decoding.engine.clone(), id))
                }
            }))
        }
        // A debug build reads back what it has written, and a tracer looks at the type.
        Scope::None | Scope::Encoding(_) => Ok(Found::Nothing),
    })
}

/// The peer says that this side owns the value.
pub(super) fn own(id: Id) -> Result<Found, &'static str> {
    SCOPE.with(|slot| match &mut *slot.borrow_mut() {
        Scope::Decoding(decoding) => {
            decoding.met += 1;
            let owned: &Owned = &decoding.engine.owned;
            match owned.find(id) {
                Some(referent) => Ok(Found::Here(referent)),
                None => {
                    decoding.missed = true;
                    Err(UNRESOLVED)
                }
            }
        }
        Scope::None | Scope::Encoding(_) => Ok(Found::Nothing),
    })
}

/// What a reference is that refers to nothing.
pub(crate) const UNRESOLVED: &str =
    "the value that it refers to is not there: the call that was to make it failed";
