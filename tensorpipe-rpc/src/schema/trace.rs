//! Finds a type's structure: deserializes the type from nothing, again and again, until every variant was seen.
//!
//! Each walk answers the requests of the type's `Deserialize` with small values, and notes the requests. A walk can show one
//! variant of an enum, so each enum keeps a queue of unexplored variants. The type is known when a walk leaves no queue behind. A
//! type inside itself, or one that is fully known, gets the smallest value there is: nothing, an empty sequence, or the first
//! variant that was ever completed. Depth and the number of requests are bounded, so every walk ends.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::{any::TypeId, fmt};

use serde::Serialize;
use serde::de::{self, Deserialize, DeserializeOwned};

use super::probe::Probe;
use super::shape::{Body, Definition, Shape};
use crate::caught::catch_panic;
use crate::codec::{Fault, read_fault};

/// How many requests the types of one method may make; a large trait makes a few thousand.
const MAX_QUESTIONS: u32 = 200_000;
const MAX_DEPTH: usize = 128;

/// The answers to requests for numbers, strings and bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seed {
    pub(super) number: u8,
    pub(super) text: &'static str,
    pub(super) bytes: &'static [u8],
}

/// Tried in order: types that check their input (`NonZero`, `Url`, `Uuid`, times, addresses) accept one of them.
pub(super) const SEEDS: [Seed; 8] = [
    seed(1, "", &[]),
    seed(0, "", &[]),
    seed(1, "a", &[1; 16]),
    seed(1, "1", &[1; 16]),
    seed(2, "127.0.0.1:1", &[1; 32]),
    seed(1, "1970-01-01T00:00:00Z", &[]),
    seed(1, "00000000-0000-0000-0000-000000000000", &[]),
    seed(1, "http://a/", &[]),
];

const fn seed(number: u8, text: &'static str, bytes: &'static [u8]) -> Seed {
    Seed {
        number,
        text,
        bytes,
    }
}

/// Why a walk ended early.
#[derive(Clone, Debug)]
pub(super) enum Stop {
    /// A type met itself before any variant was completed. Another walk takes another variant.
    Cut,
    /// There is no variant of this index.
    NoVariant,
    /// The type's own error.
    Refused(String),
    SelfDescribing(&'static str),
    /// It cannot be read, though it was written.
    Unreadable(Fault),
    TooDeep,
    TooLarge,
    Panicked,
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut | Self::TooLarge => f.write_str("is too large to trace"),
            Self::NoVariant => f.write_str("has no variants"),
            Self::Refused(why) => write!(f, "refused every sample: {why}"),
            Self::SelfDescribing(call) => write!(
                f,
                "needs a self-describing format ({call}), as `#[serde(untagged)]`, `#[serde(tag = ..)]`, `#[serde(flatten)]` and `serde_json::Value` do, and the bytes of a call do not describe themselves; use a plain enum or struct"
            ),
            Self::Unreadable(fault) => write!(
                f,
                "cannot be read as it is written ({fault}): put variants with `#[serde(skip)]` last, and skip no fields of tuples"
            ),
            Self::TooDeep => write!(f, "nests deeper than {MAX_DEPTH} levels"),
            Self::Panicked => f.write_str("panicked in its `Deserialize`"),
        }
    }
}

impl std::error::Error for Stop {}

impl de::Error for Stop {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::Refused(message.to_string())
    }
}

/// The named types found so far.
#[derive(Debug)]
pub(super) struct Trace {
    pub(super) definitions: Vec<Named>,
    by_visitor: HashMap<(TypeId, &'static str), usize>,
    /// The types being visited, outermost first.
    path: Vec<TypeId>,
    /// How many of them get the smallest value.
    minimal: u32,
    /// Something below has unexplored variants.
    open: bool,
    questions_left: u32,
    pub(super) seed: Seed,
}

/// A struct or enum.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) name: &'static str,
    pub(super) definition: Definition,
    /// Everything below it is explored.
    closed: bool,
    /// For an enum: its unexplored variants, and the first that was completed.
    queue: VecDeque<u32>,
    complete: Option<u32>,
}

impl Named {
    /// An enum without variants has no value.
    fn is_empty(&self) -> bool {
        matches!(self.definition, Definition::Enum { names: [], .. })
    }
}

impl Default for Trace {
    fn default() -> Self {
        Self {
            definitions: Vec::new(),
            by_visitor: HashMap::new(),
            path: Vec::new(),
            minimal: 0,
            open: false,
            questions_left: MAX_QUESTIONS,
            seed: SEEDS[0],
        }
    }
}

/// What a value is checked for.
pub(super) type Check<T> = fn(&T) -> Result<(), Stop>;

/// Fails if what was written cannot be read. A type that panics is the encoder's to report.
pub(super) fn check_reading<T: Serialize + DeserializeOwned>(value: &T) -> Result<(), Stop> {
    match catch_panic(|| read_fault(value)) {
        Ok(Some(fault)) => Err(Stop::Unreadable(fault)),
        Ok(None) | Err(_) => Ok(()),
    }
}

impl Trace {
    /// Finds the shape of `T`, and has its values checked.
    pub(super) fn walk<T: Deserialize<'static>>(
        &mut self,
        seed: Seed,
        check: Check<T>,
    ) -> Result<Shape, Stop> {
        self.seed = seed;
        loop {
            let mut shape = Shape::Open;
            match self.step::<T>(&mut shape, 0) {
                Ok(value) => {
                    check(&value)?;
                    if !self.open {
                        break self.walk_smallest(check).map(|()| shape);
                    }
                }
                Err(Stop::Cut) => {}
                Err(stop) => return Err(stop),
            }
        }
    }

    /// The smallest value, in which options and sequences are empty, may be written differently.
    fn walk_smallest<T: Deserialize<'static>>(&mut self, check: Check<T>) -> Result<(), Stop> {
        match self.step::<T>(&mut Shape::Open, 1) {
            Ok(value) => check(&value),
            Err(_) => Ok(()),
        }
    }

    fn step<T: Deserialize<'static>>(
        &mut self,
        shape: &mut Shape,
        minimal: u32,
    ) -> Result<T, Stop> {
        self.path.clear();
        self.minimal = minimal;
        self.open = false;
        self.ask()?;
        T::deserialize(Probe::new(self, shape))
    }

    /// The number of definitions, for [`Trace::forget_since`].
    pub(super) fn known(&self) -> usize {
        self.definitions.len()
    }

    /// Removes what a failed walk added. Earlier definitions are complete, and refer to no later one.
    pub(super) fn forget_since(&mut self, known: usize) {
        self.definitions.truncate(known);
        self.by_visitor.retain(|_, index| *index < known);
    }

    pub(super) fn is_minimal(&self) -> bool {
        self.minimal > 0
    }

    /// Counts a request.
    pub(super) fn ask(&mut self) -> Result<(), Stop> {
        self.questions_left = self.questions_left.checked_sub(1).ok_or(Stop::TooLarge)?;
        Ok(())
    }

    /// Visits a compound value of an unnamed type. `visit` gets `true` if the type is inside itself.
    pub(super) fn within<V, T>(
        &mut self,
        visit: impl FnOnce(&mut Self, bool) -> Result<T, Stop>,
    ) -> Result<T, Stop> {
        self.inside(typeid::of::<V>(), false, visit)
    }

    /// Visits a struct, and keeps the body that it turns out to have.
    pub(super) fn within_struct<V, T>(
        &mut self,
        name: &'static str,
        visit: impl FnOnce(&mut Self) -> Result<(T, Body), Stop>,
    ) -> (usize, Result<T, Stop>) {
        let (index, id) = self.named::<V>(name);
        let closed = self.definitions[index].closed;
        let visited = self.inside(id, closed, |trace, _| {
            let before = std::mem::take(&mut trace.open);
            let (value, body) = visit(trace)?;
            if !trace.is_minimal() {
                let named = &mut trace.definitions[index];
                named.definition = Definition::Struct(body);
                named.closed = !trace.open;
            }
            trace.open |= before;
            Ok(value)
        });
        (index, visited)
    }

    /// Visits the next unexplored variant of an enum.
    pub(super) fn within_enum<V, T>(
        &mut self,
        name: &'static str,
        names: &'static [&'static str],
        visit: impl FnOnce(&mut Self, u32) -> Result<(T, Body), Stop>,
    ) -> (usize, Result<T, Stop>) {
        let (index, id) = self.named::<V>(name);
        let named = &mut self.definitions[index];
        if let Definition::Unknown = named.definition {
            named.definition = Definition::Enum {
                names,
                variants: BTreeMap::new(),
            };
            named.queue = (0..names.len() as u32).collect();
        }
        let closed = named.closed;
        let visited = self.inside(id, closed, |trace, _| trace.variant(index, visit));
        (index, visited)
    }

    fn variant<T>(
        &mut self,
        index: usize,
        visit: impl FnOnce(&mut Self, u32) -> Result<(T, Body), Stop>,
    ) -> Result<T, Stop> {
        let minimal = self.is_minimal();
        let named = &mut self.definitions[index];
        if let (true, Some(variant)) = (minimal, named.complete) {
            return visit(self, variant).map(|(value, _)| value);
        }
        // The variant leaves the queue while it is visited, so that a recursion takes another one.
        let Some(variant) = named.queue.pop_front() else {
            return Err(if named.is_empty() {
                Stop::NoVariant
            } else {
                Stop::Cut
            });
        };
        let before = std::mem::take(&mut self.open);
        let visited = visit(self, variant);
        let named = &mut self.definitions[index];
        match visited {
            Ok((value, _)) if minimal => {
                named.complete.get_or_insert(variant);
                named.queue.push_front(variant);
                self.open = before;
                Ok(value)
            }
            Ok((value, body)) => {
                if let Definition::Enum { variants, .. } = &mut named.definition {
                    variants.insert(variant, body);
                }
                named.complete.get_or_insert(variant);
                if self.open {
                    named.queue.push_back(variant);
                }
                named.closed = named.queue.is_empty();
                self.open = before || !named.closed;
                Ok(value)
            }
            // There are fewer variants than names, because some are aliases. This walk has no value to give.
            Err(Stop::NoVariant) if !named.queue.is_empty() => Err(Stop::Cut),
            Err(Stop::NoVariant) if named.complete.is_some() => {
                named.closed = true;
                Err(Stop::Cut)
            }
            Err(stop) => {
                named.queue.push_back(variant);
                Err(stop)
            }
        }
    }

    fn named<V>(&mut self, name: &'static str) -> (usize, TypeId) {
        let id = typeid::of::<V>();
        let next = self.definitions.len();
        let index = *self.by_visitor.entry((id, name)).or_insert(next);
        if index == next {
            self.definitions.push(Named {
                name,
                definition: Definition::Unknown,
                closed: false,
                queue: VecDeque::new(),
                complete: None,
            });
        }
        (index, id)
    }

    fn inside<T>(
        &mut self,
        id: TypeId,
        closed: bool,
        visit: impl FnOnce(&mut Self, bool) -> Result<T, Stop>,
    ) -> Result<T, Stop> {
        self.ask()?;
        if self.path.len() == MAX_DEPTH {
            return Err(Stop::TooDeep);
        }
        let again = self.path.contains(&id);
        let minimal = u32::from(again || closed);
        self.minimal += minimal;
        self.path.push(id);
        let visited = visit(self, again);
        self.path.pop();
        self.minimal -= minimal;
        visited
    }
}
