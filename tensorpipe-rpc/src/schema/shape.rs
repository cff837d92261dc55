//! The structure of a type, and its text form.
//!
//! The text depends on serde's names and on the order in which types are met, but not on paths or addresses. So two builds of the
//! same definition write the same text.

use std::fmt::{self, Write as _};

/// The shape of a value.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Shape {
    /// Not examined yet.
    #[default]
    Open,
    /// A recursion: an unnamed type inside itself.
    Again,
    Leaf(&'static str),
    Option(Box<Self>),
    Seq(Box<Self>),
    Map(Box<(Self, Self)>),
    Tuple(Vec<Self>),
    /// A struct or enum, by its index in the list of definitions.
    Named(usize),
}

/// The inside of a struct or of a variant.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Body {
    Unit,
    Newtype(Shape),
    Tuple(Vec<Shape>),
    Fields(Vec<(String, Shape)>),
}

impl Body {
    /// A struct's fields. With aliases, serde lists more names than there are fields, and does not say which belong together. The
    /// fields are then numbered.
    pub(super) fn fields(names: &[&'static str], shapes: Vec<Shape>) -> Self {
        let named = names.len() == shapes.len();
        let fields = shapes
            .into_iter()
            .enumerate()
            .map(|(i, shape)| match named {
                true => (names[i].to_owned(), shape),
                false => (i.to_string(), shape),
            });
        Self::Fields(fields.collect())
    }
}

/// A named type.
#[derive(Clone, Debug)]
pub(super) enum Definition {
    /// Met, but not fully explored yet.
    Unknown,
    Struct(Body),
    Enum {
        /// The names that serde lists, aliases included.
        names: &'static [&'static str],
        /// The existing variants, by index.
        variants: std::collections::BTreeMap<u32, Body>,
    },
}

/// Writes shapes and definitions, with a unique name for each definition.
pub(super) struct Names(Vec<String>);

impl Names {
    /// Types of the same name are numbered in the order in which they were met.
    pub(super) fn new(names: impl Iterator<Item = &'static str>) -> Self {
        let mut all: Vec<&str> = Vec::new();
        let unique = names.map(|name| {
            all.push(name);
            match all.iter().filter(|other| **other == name).count() {
                1 => name.to_owned(),
                count => format!("{name}#{count}"),
            }
        });
        Self(unique.collect())
    }

    /// One line for the type, and one for each of its fields or variants, indented.
    pub(super) fn write_definition(
        &self,
        out: &mut String,
        index: usize,
        definition: &Definition,
    ) -> fmt::Result {
        let name = &self.0[index];
        match definition {
            Definition::Unknown => writeln!(out, "type {name}"),
            Definition::Struct(Body::Fields(fields)) => {
                writeln!(out, "struct {name}")?;
                for (field, shape) in fields {
                    write!(out, "  {field}: ")?;
                    self.write(out, shape)?;
                    out.push('\n');
                }
                Ok(())
            }
            Definition::Struct(body) => {
                write!(out, "struct {name}")?;
                self.write_body(out, body)?;
                out.push('\n');
                Ok(())
            }
            Definition::Enum { names, variants } => {
                writeln!(out, "enum {name}")?;
                let named = names.len() == variants.len();
                for (index, body) in variants {
                    write!(out, "  {index}")?;
                    if let (true, Some(name)) = (named, names.get(*index as usize)) {
                        write!(out, " {name}")?;
                    }
                    self.write_body(out, body)?;
                    out.push('\n');
                }
                Ok(())
            }
        }
    }

    pub(super) fn write(&self, out: &mut String, shape: &Shape) -> fmt::Result {
        match shape {
            Shape::Open => out.write_str("?"),
            Shape::Again => out.write_str("…"),
            Shape::Leaf(name) => out.write_str(name),
            Shape::Named(index) => out.write_str(&self.0[*index]),
            Shape::Option(inner) => self.write_around(out, "Option<", inner, ">"),
            Shape::Seq(inner) => self.write_around(out, "[", inner, "]"),
            Shape::Map(inner) => {
                self.write_around(out, "{", &inner.0, ": ")?;
                self.write_around(out, "", &inner.1, "}")
            }
            Shape::Tuple(inner) => self.write_tuple(out, inner),
        }
    }

    fn write_around(
        &self,
        out: &mut String,
        open: &str,
        inner: &Shape,
        close: &str,
    ) -> fmt::Result {
        out.push_str(open);
        self.write(out, inner)?;
        out.push_str(close);
        Ok(())
    }

    fn write_tuple(&self, out: &mut String, shapes: &[Shape]) -> fmt::Result {
        if let [first, _, _, ..] = shapes
            && shapes.iter().all(|shape| shape == first)
        {
            self.write_around(out, "[", first, "")?;
            return write!(out, "; {}]", shapes.len());
        }
        out.push('(');
        for (i, shape) in shapes.iter().enumerate() {
            self.write_around(out, if i == 0 { "" } else { ", " }, shape, "")?;
        }
        out.push(')');
        Ok(())
    }

    fn write_body(&self, out: &mut String, body: &Body) -> fmt::Result {
        match body {
            Body::Unit => Ok(()),
            Body::Newtype(inner) => self.write_around(out, "(", inner, ")"),
            Body::Tuple(shapes) => self.write_tuple(out, shapes),
            Body::Fields(fields) => {
                for (i, (name, shape)) in fields.iter().enumerate() {
                    let open = if i == 0 { " { " } else { ", " };
                    write!(out, "{open}{name}: ")?;
                    self.write(out, shape)?;
                }
                out.push_str(if fields.is_empty() { " {}" } else { " }" });
                Ok(())
            }
        }
    }
}
