//! The compound values of the serializer: those with a length on the wire, and those without.

use serde::ser::{self, Serialize};

use super::error::Fault;
use super::serializer::Writer;

/// A sequence or map being written. Its length stands before it; if that was not known, it is inserted at the end.
pub(super) struct Sequence<'a> {
    writer: &'a mut Writer,
    start: usize,
    announced: Option<usize>,
    written: usize,
}

impl<'a> Sequence<'a> {
    #[inline]
    pub(super) fn begin(writer: &'a mut Writer, announced: Option<usize>) -> Result<Self, Fault> {
        writer.enter()?;
        Ok(Self {
            start: writer.bytes().len(),
            writer,
            announced,
            written: 0,
        })
    }

    #[inline]
    fn finish(self) -> Result<(), Fault> {
        self.writer.leave();
        match self.announced {
            None => self.writer.insert_len(self.start, self.written),
            Some(announced) if announced == self.written => Ok(()),
            Some(announced) => Err(Fault::WrongLength {
                announced,
                written: self.written,
            }),
        }
    }
}

impl ser::SerializeSeq for Sequence<'_> {
    type Ok = ();
    type Error = Fault;

    #[inline]
    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Fault> {
        self.written += 1;
        self.writer.element(value)
    }

    #[inline]
    fn end(self) -> Result<(), Fault> {
        self.finish()
    }
}

impl ser::SerializeMap for Sequence<'_> {
    type Ok = ();
    type Error = Fault;

    #[inline]
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Fault> {
        self.written += 1;
        self.writer.element(key)
    }

    #[inline]
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Fault> {
        value.serialize(&mut *self.writer)
    }

    #[inline]
    fn end(self) -> Result<(), Fault> {
        self.finish()
    }
}

/// A tuple, struct or variant being written: its fields one after another.
pub(super) struct Fields<'a> {
    writer: &'a mut Writer,
}

impl<'a> Fields<'a> {
    #[inline]
    pub(super) fn begin(writer: &'a mut Writer) -> Result<Self, Fault> {
        writer.enter()?;
        Ok(Self { writer })
    }
}

macro_rules! fields {
    ($($trait:ident::$method:ident($($key:ident)?) $(skips $skip:ident)?;)*) => {
        $(impl ser::$trait for Fields<'_> {
            type Ok = ();
            type Error = Fault;

            #[inline]
            fn $method<T: Serialize + ?Sized>(
                &mut self,
                $($key: &'static str,)?
                value: &T,
            ) -> Result<(), Fault> {
                value.serialize(&mut *self.writer)
            }

            $(#[cold]
            fn $skip(&mut self, key: &'static str) -> Result<(), Fault> {
                Err(Fault::SkippedField(key))
            })?

            #[inline]
            fn end(self) -> Result<(), Fault> {
                self.writer.leave();
                Ok(())
            }
        })*
    };
}

fields! {
    SerializeTuple::serialize_element();
    SerializeTupleStruct::serialize_field();
    SerializeTupleVariant::serialize_field();
    SerializeStruct::serialize_field(_key) skips skip_field;
    SerializeStructVariant::serialize_field(_key) skips skip_field;
}
