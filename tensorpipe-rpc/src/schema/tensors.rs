//! Which argument a tensor of a call is of: errors name it.
//!
//! Neither end keeps account of that while a call is made. The types tell how many tensors each argument can hold, and so does the
//! number of all of them; where several arguments are left, none is named.

use std::collections::BTreeMap;
use std::sync::Mutex;

use tensorpipe::Device;

use super::shape::{Body, Definition, Shape};
use super::trace::Named;
use super::{Method, Tracer};
use crate::lock::lock;

/// How many tensors a value holds: at least, and at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count {
    least: usize,
    most: usize,
}

impl Count {
    pub(super) const ANY: Self = Self::new(0, usize::MAX);
    const NONE: Self = Self::new(0, 0);

    const fn new(least: usize, most: usize) -> Self {
        Self { least, most }
    }

    fn and(self, other: Self) -> Self {
        Self {
            least: self.least.saturating_add(other.least),
            most: self.most.saturating_add(other.most),
        }
    }

    fn or(self, other: Self) -> Self {
        Self {
            least: self.least.min(other.least),
            most: self.most.max(other.most),
        }
    }

    /// That of any number of such values.
    fn times(self) -> Self {
        match self.most {
            0 => self,
            _ => Self::ANY,
        }
    }

    fn sum(counts: impl IntoIterator<Item = Self>) -> Self {
        counts.into_iter().fold(Self::NONE, Self::and)
    }
}

/// Counts the tensors in shapes that refer to these definitions.
pub(super) struct Counter<'t> {
    definitions: &'t [Named],
    known: Vec<Option<Count>>,
}

impl<'t> Counter<'t> {
    pub(super) fn new(definitions: &'t [Named]) -> Self {
        let known = vec![None; definitions.len()];
        Self { definitions, known }
    }

    pub(super) fn count(&mut self, shape: &Shape) -> Count {
        match shape {
            Shape::Leaf("Tensor") => Count::new(1, 1),
            Shape::Leaf(_) => Count::NONE,
            Shape::Open | Shape::Again => Count::ANY,
            Shape::Option(inner) => self.count(inner).or(Count::NONE),
            Shape::Seq(inner) => self.count(inner).times(),
            Shape::Map(inner) => self.count(&inner.0).and(self.count(&inner.1)).times(),
            Shape::Tuple(inner) => self.sum(inner),
            Shape::Named(index) => self.named(*index),
        }
    }

    fn sum<'s>(&mut self, shapes: impl IntoIterator<Item = &'s Shape>) -> Count {
        Count::sum(shapes.into_iter().map(|shape| self.count(shape)))
    }

    fn named(&mut self, index: usize) -> Count {
        if let Some(known) = self.known[index] {
            return known;
        }
        // What is found where the type is inside itself.
        self.known[index] = Some(Count::ANY);
        let count = match &self.definitions[index].definition {
            Definition::Unknown => Count::ANY,
            Definition::Struct(body) => self.body(body),
            Definition::Enum { variants, .. } => {
                let variants = variants.values().map(|body| self.body(body));
                variants.reduce(Count::or).unwrap_or(Count::NONE)
            }
        };
        self.known[index] = Some(count);
        count
    }

    fn body(&mut self, body: &Body) -> Count {
        match body {
            Body::Unit => Count::NONE,
            Body::Newtype(inner) => self.count(inner),
            Body::Tuple(inner) => self.sum(inner),
            Body::Fields(fields) => self.sum(fields.iter().map(|(_, shape)| shape)),
        }
    }
}

impl Method {
    /// Tensor number `tensor` of a call with `of` tensors, if only one argument can hold it.
    pub(crate) fn name_tensor(&self, tensor: usize, of: usize) -> Option<String> {
        let arguments = self.tensors();
        let behind = of.checked_sub(tensor + 1)?;
        let counts = |part: &[(String, Count)]| Count::sum(part.iter().map(|(_, count)| *count));
        let can_hold = |index: &usize| {
            let this = arguments[*index].1;
            let (before, after) = (
                counts(&arguments[..*index]),
                counts(&arguments[index + 1..]),
            );
            this.most > 0
                && (before.least..before.and(this).most).contains(&tensor)
                && (after.least..after.and(this).most).contains(&behind)
        };
        let index = only((0..arguments.len()).filter(can_hold))?;
        let (name, count) = &arguments[index];
        let before = counts(&arguments[..index]);
        Some(match before.least == before.most {
            _ if count.most == 1 => format!("argument `{name}`"),
            true => format!("tensor {} of argument `{name}`", tensor - before.least),
            false => format!("a tensor of argument `{name}`"),
        })
    }

    /// The argument whose tensors are to be on this device, if there is only one: by its attribute, or else by its caller's map.
    pub(crate) fn name_placed(&self, device: Device) -> Option<String> {
        let placed = self.places.arguments;
        let mut here = placed
            .iter()
            .filter(|(_, place)| *place == device)
            .peekable();
        let name = if here.peek().is_some() {
            only(here)?.0.to_owned()
        } else {
            let mut others = self.tensors();
            others.retain(|(name, count)| {
                count.most > 0 && !placed.iter().any(|(placed, _)| placed == name)
            });
            only(others.into_iter())?.0
        };
        Some(format!("argument `{name}`"))
    }

    /// How many tensors each argument of a call's own message holds. A trace is kept: a peer may cause as many errors as it likes.
    fn tensors(&self) -> Vec<(String, Count)> {
        static KNOWN: Mutex<BTreeMap<usize, Vec<(String, Count)>>> = Mutex::new(BTreeMap::new());
        let key = self.structure as usize;
        let known = lock(&KNOWN).get(&key).cloned();
        let mut arguments = known.unwrap_or_else(|| {
            let mut tracer = Tracer::new();
            (self.structure)(&mut tracer);
            let arguments = tracer.tensors();
            lock(&KNOWN).insert(key, arguments.clone());
            arguments
        });
        if self.streams.argument {
            // The last, whose items are messages of their own.
            arguments.pop();
        }
        arguments
    }
}

fn only<T>(mut all: impl Iterator<Item = T>) -> Option<T> {
    let first = all.next()?;
    all.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde::Deserialize;
    use tensorpipe::{DeviceKind, Payload, Tensor};

    use super::super::Places;
    use super::*;

    #[derive(Deserialize)]
    #[expect(dead_code, reason = "only traced")]
    struct Layer {
        weights: Tensor,
        bias: Option<Tensor>,
        name: String,
        below: Option<Box<Self>>,
    }

    #[derive(Deserialize)]
    #[expect(dead_code, reason = "only traced")]
    enum Either {
        One(Tensor),
        Two { a: Tensor, b: Tensor },
    }

    fn method(structure: fn(&mut Tracer)) -> Method {
        Method {
            structure,
            ..crate::remote::FETCH
        }
    }

    fn names(method: &Method, of: usize) -> Vec<String> {
        let name = |tensor| method.name_tensor(tensor, of).unwrap_or_default();
        (0..of).map(name).collect()
    }

    #[test]
    fn a_tensor_is_named_where_only_one_argument_can_hold_it() {
        let fixed = method(|tracer| {
            tracer.argument::<String>("key");
            tracer.argument::<Tensor>("weights");
            tracer.argument::<(Tensor, Payload, Tensor)>("pair");
        });
        assert_eq!(
            names(&fixed, 3),
            [
                "argument `weights`",
                "tensor 0 of argument `pair`",
                "tensor 1 of argument `pair`"
            ]
        );
        let between = method(|tracer| {
            tracer.argument::<Tensor>("first");
            tracer.argument::<HashMap<String, Vec<Tensor>>>("many");
            tracer.argument::<Tensor>("last");
        });
        assert_eq!(
            names(&between, 4),
            [
                "argument `first`",
                "tensor 0 of argument `many`",
                "tensor 1 of argument `many`",
                "argument `last`"
            ]
        );
        // Of two that vary it may be either's.
        let vary = method(|tracer| {
            tracer.argument::<Option<Tensor>>("perhaps");
            tracer.argument::<Vec<Tensor>>("many");
            tracer.argument::<u8>("level");
        });
        assert_eq!(names(&vary, 2), ["", "a tensor of argument `many`"]);
    }

    #[test]
    fn tensors_are_counted_through_structs_and_enums_and_a_type_inside_itself_may_hold_any_number()
    {
        let counted = method(|tracer| {
            tracer.argument::<Either>("either");
            tracer.argument::<Layer>("layer");
        });
        let counts: Vec<_> = counted
            .tensors()
            .into_iter()
            .map(|(_, count)| count)
            .collect();
        assert_eq!(counts, [Count::new(1, 2), Count::new(1, usize::MAX)]);
    }

    #[test]
    fn a_place_is_that_of_one_argument_by_its_attribute_or_else_by_its_type() {
        let gpu = |index| Device::new(DeviceKind::CUDA, index);
        const GPU: Device = Device::new(DeviceKind::CUDA, 0);
        let structure: fn(&mut Tracer) = |tracer| {
            tracer.argument::<Tensor>("placed");
            tracer.argument::<u64>("len");
            tracer.argument::<Tensor>("other");
        };
        let placed = Method {
            places: Places {
                arguments: &[("placed", GPU)],
                ..Places::NOWHERE
            },
            ..method(structure)
        };
        let name = |method: &Method, index| method.name_placed(gpu(index));
        assert_eq!(name(&placed, 0).as_deref(), Some("argument `placed`"));
        assert_eq!(name(&placed, 1).as_deref(), Some("argument `other`"));
        assert_eq!(name(&method(structure), 0), None, "either of two");
    }
}
