//! `model.safetensors`, mapped into memory, behind the interface through which candle's models ask for parameters.
//!
//! candle's own mapping is an unsafe function and checks less. [`MappedSafetensors`] checks the whole header, so even a
//! hostile file causes no more than an error.

use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Error, Result, Shape, Tensor};
use candle_nn::Init;
use candle_nn::var_builder::SimpleBackend;
use tensorpipe::tensor::interop::{MappedSafetensors, SafetensorsError};

use super::error::ModelError;

/// An open file of weights.
#[derive(Debug)]
pub(super) struct Weights {
    path: PathBuf,
    file: MappedSafetensors,
}

impl Weights {
    pub(super) fn open(path: &Path) -> std::result::Result<Self, ModelError> {
        let path = path.to_owned();
        if !path.exists() {
            return Err(ModelError::Missing { path });
        }
        let file = MappedSafetensors::open(&path)?;
        Ok(Self { path, file })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn borrowed(&self, name: &str) -> Result<tensorpipe::Tensor> {
        self.file.tensor(name).map_err(|error| match error {
            // The message names the file; its reader has no methods to call.
            SafetensorsError::Name { name, .. } => message(format_args!(
                "it has no tensor `{name}`, which config.json asks for"
            )),
            other => message(other),
        })
    }
}

impl SimpleBackend for Weights {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let found = self.borrowed(name)?;
        // Checked before anything is copied.
        let fits = found.shape().iter().map(|dim| *dim as usize);
        if !fits.eq(shape.dims().iter().copied()) {
            return Err(message(format_args!(
                "`{name}` is {:?}, config.json wants {:?}",
                found.shape(),
                shape.dims()
            )));
        }
        self.get_unchecked(name, dtype, device)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        let tensor = Tensor::try_from(self.borrowed(name)?).map_err(message)?;
        if !tensor.dtype().is_float() {
            return Err(message(format_args!(
                "`{name}` is {}, weights are floats",
                tensor.dtype().as_str()
            )));
        }
        let tensor = tensor.to_dtype(dtype)?;
        let numbers = tensor.to_dtype(DType::F32)?.flatten_all()?;
        if !is_finite(&numbers.to_vec1::<f32>()?) {
            return Err(message(format_args!(
                "`{name}` has numbers that are none (NaN) or infinite; fetch or write the file again"
            )));
        }
        tensor.to_device(device)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.file.tensor(name).is_ok()
    }
}

/// Whether no number is infinite or NaN.
pub(crate) fn is_finite(numbers: &[f32]) -> bool {
    numbers.iter().all(|number| number.is_finite())
}

/// An error for people, without the backtrace that candle's own errors carry.
fn message(reason: impl std::fmt::Display) -> Error {
    Error::Msg(reason.to_string())
}
