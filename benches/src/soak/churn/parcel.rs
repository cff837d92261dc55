//! A tensor whose every byte follows from a number that travels with it.

use serde::{Deserialize, Serialize};
use tensorpipe::{Context, DType, Tensor};

use crate::pattern;
use crate::soak::dice::Dice;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Parcel {
    pub(super) number: u64,
    pub(super) tensor: Tensor,
}

impl Parcel {
    /// Of so many bytes, of ordinary memory or of the context's pool.
    ///
    /// # Errors
    /// In words, when there is no memory.
    pub(super) fn make(
        context: &Context,
        number: u64,
        bytes: u64,
        pooled: bool,
    ) -> Result<Self, String> {
        let mut tensor = match pooled {
            true => context.pool().tensor(DType::U8, [bytes]),
            false => Tensor::zeros(DType::U8, [bytes]),
        }
        .map_err(|error| error.to_string())?;
        let place = tensor.make_mut::<u8>().map_err(|error| error.to_string())?;
        pattern::fill(place, number);
        Ok(Self { number, tensor })
    }

    /// One by chance.
    ///
    /// # Errors
    /// As [`Parcel::make`].
    pub(super) fn draw(context: &Context, dice: &mut Dice, largest: u64) -> Result<Self, String> {
        let bytes = dice.length(largest) as u64;
        Self::make(context, dice.next(), bytes, dice.one_in(2))
    }

    /// Looks at every byte; returns how many there are.
    ///
    /// # Errors
    /// In words, what is wrong.
    pub(super) fn check(&self) -> Result<u64, String> {
        let bytes = self.tensor.as_bytes().map_err(|error| error.to_string())?;
        match pattern::mismatch(bytes, self.number) {
            Some(at) => Err(format!("byte {at} of {} is wrong", bytes.len())),
            None => Ok(bytes.len() as u64),
        }
    }

    /// The same, and that it is this one.
    ///
    /// # Errors
    /// As [`Parcel::check`].
    pub(super) fn check_is(&self, number: u64, bytes: u64) -> Result<(), String> {
        let found = self.check()?;
        if (self.number, found) != (number, bytes) {
            let other = self.number;
            return Err(format!(
                "parcel {other} of {found} bytes came for {number} of {bytes}"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_that_is_wrong_and_a_parcel_that_is_another_are_seen() {
        let context = Context::new();
        for pooled in [false, true] {
            let mut parcel = Parcel::make(&context, 7, 10_000, pooled).unwrap();
            parcel.check_is(7, 10_000).unwrap();
            assert!(parcel.check_is(8, 10_000).is_err() && parcel.check_is(7, 9_999).is_err());
            parcel.tensor.make_mut::<u8>().unwrap()[5_000] ^= 1;
            let wrong = parcel.check().unwrap_err();
            assert!(wrong.contains("byte 5000"), "{wrong}");
        }
    }
}
