//! A tensor whose every byte follows from a number that travels with it.

use anyhow::{Result, ensure};
use fastrand::Rng;
use serde::{Deserialize, Serialize};
use tensorpipe::{Context, DType, Tensor};

use crate::pattern;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Parcel {
    pub(super) number: u64,
    pub(super) tensor: Tensor,
}

impl Parcel {
    /// Makes a parcel of `bytes` bytes, in ordinary memory or in the context's pool.
    pub(super) fn make(context: &Context, number: u64, bytes: u64, pooled: bool) -> Result<Self> {
        let mut tensor = match pooled {
            true => context.pool().tensor(DType::U8, [bytes])?,
            false => Tensor::zeros(DType::U8, [bytes])?,
        };
        pattern::fill(tensor.make_mut::<u8>()?, number);
        Ok(Self { number, tensor })
    }

    /// Makes a random parcel.
    pub(super) fn draw(context: &Context, rng: &mut Rng, largest: u64) -> Result<Self> {
        let (number, bytes) = (rng.u64(..), length(rng, largest));
        Self::make(context, number, bytes, number.is_multiple_of(2))
    }

    pub(super) fn len(&self) -> u64 {
        self.tensor.byte_len() as u64
    }

    /// Checks every byte.
    pub(super) fn check(&self) -> Result<()> {
        check(self.tensor.as_bytes()?, self.number)
    }

    /// Checks every byte, and that the parcel has this number and length.
    pub(super) fn check_is(&self, number: u64, bytes: u64) -> Result<()> {
        let (other, found) = (self.number, self.len());
        ensure!(
            (other, found) == (number, bytes),
            "parcel {other} of {found} bytes came for {number} of {bytes}"
        );
        self.check()
    }
}

pub(super) fn check(bytes: &[u8], number: u64) -> Result<()> {
    let (wrong, len) = (pattern::mismatch(bytes, number), bytes.len());
    ensure!(
        wrong.is_none(),
        "byte {} of {len} is wrong",
        wrong.unwrap_or_default()
    );
    Ok(())
}

/// A length in bytes: mostly small, seldom up to `largest`, sometimes nothing.
pub(super) fn length(rng: &mut Rng, largest: u64) -> u64 {
    let up_to = match rng.u64(..32) {
        0 | 1 => return 0,
        2..=11 => 4 << 10,
        12..=21 => 100 << 10,
        22..=28 => 1 << 20,
        29 | 30 => 6 << 20,
        _ => largest,
    };
    rng.u64(1..=up_to.min(largest).max(1))
}

pub(super) fn one_in(rng: &mut Rng, n: u64) -> bool {
    rng.u64(..n) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_that_is_wrong_and_a_parcel_that_is_another_are_seen() -> Result<()> {
        let context = Context::new();
        for pooled in [false, true] {
            let mut parcel = Parcel::make(&context, 7, 10_000, pooled)?;
            parcel.check_is(7, 10_000)?;
            assert!(parcel.check_is(8, 10_000).is_err() && parcel.check_is(7, 9_999).is_err());
            parcel.tensor.make_mut::<u8>()?[5_000] ^= 1;
            let wrong = parcel.check().expect_err("a byte is").to_string();
            assert!(wrong.contains("byte 5000"), "{wrong}");
        }
        Ok(())
    }
}
