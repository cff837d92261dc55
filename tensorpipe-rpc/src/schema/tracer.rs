//! The tracer, to which generated code shows the types of a method.

use std::fmt::Write as _;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::shape::{Names, Shape};
use super::trace::{Check, SEEDS, Stop, Trace, check_reading};
use crate::caught::catch_panic;

/// Collects the structure of one method's types.
#[derive(Debug)]
pub struct Tracer {
    trace: Trace,
    roots: Vec<(String, Option<Shape>)>,
    untraced: Vec<String>,
    /// The first type that no call can carry, and why.
    pub(super) unsuitable: Option<String>,
}

impl Tracer {
    pub(super) fn new() -> Self {
        Self {
            trace: Trace::default(),
            roots: Vec::new(),
            untraced: Vec::new(),
            unsuitable: None,
        }
    }

    /// The type of an argument.
    pub fn argument<T: Serialize + DeserializeOwned>(&mut self, name: &'static str) {
        self.root::<T>(format!("argument {name}"));
    }

    /// The type that the method returns; for a `Result`, its `Ok` type.
    pub fn returns<T: Serialize + DeserializeOwned>(&mut self) {
        self.root::<T>("returns".to_owned());
    }

    /// The type of the method's error.
    pub fn error<T: Serialize + DeserializeOwned>(&mut self) {
        self.root::<T>("error".to_owned());
    }

    /// The type of the value that a reference is to. No call need be able to carry it: perhaps nobody fetches it, or nobody can.
    pub fn referent<T: Deserialize<'static>>(&mut self, place: &'static str) {
        if let Ok(shape) = self.trace_type::<T>(|_| Ok(())) {
            self.roots.push((format!("{place}, fetched"), Some(shape)));
        }
    }

    fn root<T: Serialize + DeserializeOwned>(&mut self, place: String) {
        let shape = match self.trace_type::<T>(check_reading) {
            Ok(shape) => Some(shape),
            Err(stop) => {
                let text = format!("{place}: `{}` {stop}", std::any::type_name::<T>());
                if let Stop::SelfDescribing(_) | Stop::Unreadable(_) = stop {
                    self.unsuitable.get_or_insert_with(|| text.clone());
                }
                self.untraced.push(text);
                None
            }
        };
        self.roots.push((place, shape));
    }

    /// Traces a type with each seed in turn: a type that checks its input may accept one seed and not another.
    fn trace_type<T: Deserialize<'static>>(&mut self, check: Check<T>) -> Result<Shape, Stop> {
        let known = self.trace.known();
        let mut first = None;
        for seed in SEEDS {
            let walk = || self.trace.walk(seed, check);
            let stop = match catch_panic(walk) {
                Ok(Ok(shape)) => return Ok(shape),
                Ok(Err(stop)) => stop,
                Err(_) => Stop::Panicked,
            };
            self.trace.forget_since(known);
            match stop {
                Stop::Refused(_) => {
                    first.get_or_insert(stop);
                }
                // No seed helps here.
                Stop::SelfDescribing(_) | Stop::Unreadable(_) => return Err(stop),
                _ => return Err(first.unwrap_or(stop)),
            }
        }
        Err(first.unwrap_or(Stop::TooLarge))
    }

    /// The structure as text, and the types that could not be traced.
    pub(super) fn finish(self) -> (String, Vec<String>) {
        let definitions = &self.trace.definitions;
        let names = Names::new(definitions.iter().map(|definition| definition.name));
        let mut out = String::new();
        let mut write = || {
            for (place, shape) in &self.roots {
                write!(out, "{place}: ")?;
                match shape {
                    Some(shape) => names.write(&mut out, shape)?,
                    None => out.push_str("untraced"),
                }
                out.push('\n');
            }
            for (index, definition) in definitions.iter().enumerate() {
                names.write_definition(&mut out, index, &definition.definition)?;
            }
            std::fmt::Result::Ok(())
        };
        // Writing to a string does not fail.
        let _ = write();
        (out, self.untraced)
    }
}
