//! Between the pipe's tensors and candle's.

use anyhow::{Context as _, Result};
use candle_core::Device;
use tensorpipe::Tensor;

/// Copies an f32 tensor into one that candle computes with.
pub(crate) fn to_candle(tensor: &Tensor) -> Result<candle_core::Tensor> {
    let shape: Vec<usize> = tensor.shape().iter().map(|dim| *dim as usize).collect();
    let aligned = tensor.to_aligned()?;
    let elements = aligned.as_slice::<f32>()?;
    candle_core::Tensor::from_slice(elements, shape, &Device::Cpu).context("a tensor for candle")
}

/// Copies an f32 tensor of candle into one that the pipe can send.
pub(crate) fn from_candle(tensor: &candle_core::Tensor) -> Result<Tensor> {
    let shape: Vec<u64> = tensor.dims().iter().map(|dim| *dim as u64).collect();
    let elements = tensor.flatten_all()?.to_vec1::<f32>()?;
    Ok(Tensor::from_vec(elements, shape)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back_keeps_shape_and_elements() {
        let sent = Tensor::from_vec(vec![1f32, 2., 3., 4., 5., 6.], [2, 3]).unwrap();
        let candle = to_candle(&sent).unwrap();
        assert_eq!(
            candle.to_vec2::<f32>().unwrap(),
            [[1., 2., 3.], [4., 5., 6.]]
        );
        let back = from_candle(&candle.t().unwrap()).unwrap();
        assert_eq!(back.shape(), [3, 2]);
        assert_eq!(back.as_slice::<f32>().unwrap(), [1., 4., 2., 5., 3., 6.]);
    }
}
