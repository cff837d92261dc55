//! Element types.

use std::fmt;

use half::{bf16, f16};

/// The element type of a tensor. The discriminant is its code on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names are the field's own")]
pub enum DType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    F16 = 4,
    BF16 = 5,
    U32 = 6,
    I32 = 7,
    F32 = 8,
    U64 = 9,
    I64 = 10,
    F64 = 11,
    /// One byte per element, 0 or 1; viewed as `u8`, because a peer may send any byte.
    Bool = 12,
}

impl DType {
    /// Every type, in the order of the codes.
    pub const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::F16,
        Self::BF16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::U64,
        Self::I64,
        Self::F64,
        Self::Bool,
    ];

    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::BF16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// The code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The type of a code, `None` for one that this version does not know.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Lower-case name, as numpy and candle write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
            Self::Bool => "bool",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A Rust type that a tensor's elements can be viewed as. Every bit pattern is a value of it.
pub trait Element: bytemuck::Pod + Send + Sync {
    /// Its element type.
    const DTYPE: DType;
    /// Whether a tensor of `dtype` may be viewed as this type.
    fn accepts(dtype: DType) -> bool {
        dtype == Self::DTYPE
    }
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),* $(,)?) => {
        $(impl Element for $rust { const DTYPE: DType = DType::$dtype; })*
    };
}

elements! {
    i8 => I8, u16 => U16, i16 => I16, f16 => F16, bf16 => BF16, u32 => U32, i32 => I32, f32 => F32,
    u64 => U64, i64 => I64, f64 => F64,
}

impl Element for u8 {
    const DTYPE: DType = DType::U8;

    fn accepts(dtype: DType) -> bool {
        matches!(dtype, DType::U8 | DType::Bool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_positions() {
        for (i, dtype) in DType::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(dtype.code()), i);
            assert_eq!(DType::from_code(dtype.code()), Some(dtype));
        }
        assert_eq!(DType::from_code(13), None);
    }
}
