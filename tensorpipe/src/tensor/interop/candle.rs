//! Conversions from and to `candle_core`, in main memory.
//!
//! candle keeps its numbers in a vector behind a lock that all views and clones share, and does not tell how many there are. Its own
//! kernels index that vector without checks, so the vector must not be moved away from them. Tensors from candle are therefore copied,
//! once, in their logical order. Tensors to candle are moved where possible.
//!
//! Tensors on a GPU are not converted. candle's feature `cuda` compiles kernels (`candle-kernels` needs `nvcc`) and links CUDA's libraries,
//! the driver's among them; this crate is built and tested where neither exists. Both use the same `cudarc`, and its features are unified.
//! To lend a candle tensor on a device's primary context as it is, call `CudaDevices::borrow` with the address of its slice, and with the
//! candle tensor as the owner.
//!
//! Both have u8, u32, i16, i32, i64, f16, bf16, f32 and f64. A `bool` tensor becomes candle's `u8`.

use candle_core::{CpuStorage, Device, DeviceLocation, Storage, WithDType};

use super::{count_copy, into_counted_vec, usize_shape};
use crate::device::{self, DeviceKind, Pool};
use crate::error::Misuse;
use crate::tensor::{DType, Element, Shape, Tensor};

/// Copies the numbers once, into aligned memory. [`Pool::tensor_from_candle`] copies them into warm memory.
///
/// ```
/// # use tensorpipe::Tensor;
/// # use candle_core::Device;
/// let weights = candle_core::Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
/// let tensor = Tensor::try_from(&weights)?;
/// assert_eq!(tensor.shape(), [2, 2]);
/// let back = candle_core::Tensor::try_from(tensor)?;
/// assert_eq!(back.dims(), [2, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Misuse::NotOnCpu`] for memory of a GPU, [`Misuse::UnsupportedDType`] for candle's 8-bit and smaller floats,
/// [`Misuse::Shape`] for more than [`MAX_DIMS`](crate::tensor::MAX_DIMS) dimensions.
impl TryFrom<&candle_core::Tensor> for Tensor {
    type Error = Misuse;

    fn try_from(tensor: &candle_core::Tensor) -> Result<Self, Misuse> {
        gather(tensor, Self::zeros)
    }
}

impl Pool {
    /// Copies the numbers of a candle tensor once, into warm memory.
    ///
    /// # Errors
    /// As `Tensor::try_from(&candle_tensor)`, and as [`Pool::tensor`].
    pub fn tensor_from_candle(&self, tensor: &candle_core::Tensor) -> Result<Tensor, Misuse> {
        gather(tensor, |dtype, shape| self.tensor(dtype, shape))
    }
}

/// Moves the numbers if the tensor was made of a vector and this is the last handle, else copies them once.
///
/// # Errors
/// [`Misuse::UnsupportedDType`] for a type that candle lacks, [`Misuse::NotOnCpu`] for device memory.
impl TryFrom<Tensor> for candle_core::Tensor {
    type Error = Misuse;

    fn try_from(tensor: Tensor) -> Result<Self, Misuse> {
        match tensor.dtype() {
            DType::U8 | DType::Bool => to_candle::<u8>(tensor),
            DType::U32 => to_candle::<u32>(tensor),
            DType::I16 => to_candle::<i16>(tensor),
            DType::I32 => to_candle::<i32>(tensor),
            DType::I64 => to_candle::<i64>(tensor),
            DType::F16 => to_candle::<half::f16>(tensor),
            DType::BF16 => to_candle::<half::bf16>(tensor),
            DType::F32 => to_candle::<f32>(tensor),
            DType::F64 => to_candle::<f64>(tensor),
            DType::I8 => Err(missing_in_candle(DType::I8, "i16 or u8")),
            DType::U16 => Err(missing_in_candle(DType::U16, "u32 or i32")),
            DType::U64 => Err(missing_in_candle(DType::U64, "i64 or u32")),
        }
    }
}

/// Copies the numbers once.
///
/// # Errors
/// As for the owned tensor.
impl TryFrom<&Tensor> for candle_core::Tensor {
    type Error = Misuse;

    fn try_from(tensor: &Tensor) -> Result<Self, Misuse> {
        Self::try_from(tensor.clone())
    }
}

fn gather(
    tensor: &candle_core::Tensor,
    memory: impl FnOnce(DType, Shape) -> Result<Tensor, Misuse>,
) -> Result<Tensor, Misuse> {
    let (storage, _) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        return Err(Misuse::NotOnCpu(device_of(tensor.device())));
    };
    let shape = tensor.dims().iter().map(|dim| *dim as u64).collect();
    let copy = match storage {
        CpuStorage::U8(from) => gather_as(from, tensor, shape, memory),
        CpuStorage::U32(from) => gather_as(from, tensor, shape, memory),
        CpuStorage::I16(from) => gather_as(from, tensor, shape, memory),
        CpuStorage::I32(from) => gather_as(from, tensor, shape, memory),
        CpuStorage::I64(from) => gather_as(from, tensor, shape, memory),
        CpuStorage::F16(from) => gather_as(from, tensor, shape, memory),
        CpuStorage::BF16(from) => gather_as(from, tensor, shape, memory),
        CpuStorage::F32(from) => gather_as(from, tensor, shape, memory),
        CpuStorage::F64(from) => gather_as(from, tensor, shape, memory),
        CpuStorage::F8E4M3(_)
        | CpuStorage::F6E2M3(_)
        | CpuStorage::F6E3M2(_)
        | CpuStorage::F4(_)
        | CpuStorage::F8E8M0(_) => Err(Misuse::UnsupportedDType {
            library: "tensorpipe",
            dtype: tensor.dtype().as_str().to_owned(),
            instead: "f16, bf16 or f32",
        }),
    }?;
    count_copy(copy.byte_len());
    Ok(copy)
}

fn gather_as<T: Element>(
    from: &[T],
    tensor: &candle_core::Tensor,
    shape: Shape,
    memory: impl FnOnce(DType, Shape) -> Result<Tensor, Misuse>,
) -> Result<Tensor, Misuse> {
    let mut copy = memory(T::DTYPE, shape)?;
    let to = copy.make_mut::<T>()?;
    match tensor.layout().contiguous_offsets() {
        Some((start, end)) => to.copy_from_slice(&from[start..end]),
        None => {
            for (to, at) in to.iter_mut().zip(tensor.strided_index()) {
                *to = from[at];
            }
        }
    }
    Ok(copy)
}

fn to_candle<T: Element + WithDType>(tensor: Tensor) -> Result<candle_core::Tensor, Misuse> {
    let shape = usize_shape(&tensor)?;
    let vec = into_counted_vec::<T>(tensor)?;
    candle_core::Tensor::from_vec(vec, shape, &Device::Cpu).map_err(|error| {
        Misuse::Other(format!(
            "candle refuses the tensor ({error}); reshape it first"
        ))
    })
}

fn missing_in_candle(dtype: DType, instead: &'static str) -> Misuse {
    Misuse::UnsupportedDType {
        library: "candle",
        dtype: dtype.as_str().to_owned(),
        instead,
    }
}

fn device_of(device: &Device) -> device::Device {
    let (kind, index) = match device.location() {
        DeviceLocation::Cpu => (DeviceKind::CPU, 0),
        DeviceLocation::Cuda { gpu_id } => (DeviceKind::CUDA, gpu_id),
        DeviceLocation::Metal { gpu_id } => (DeviceKind::new("metal"), gpu_id),
    };
    device::Device::new(kind, u32::try_from(index).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::super::{copied_bytes, counting};
    use super::*;

    fn there_and_back<T: Element + WithDType + PartialEq + std::fmt::Debug>(values: Vec<T>) {
        let (_turn, before) = counting();
        let bytes = size_of_val(values.as_slice()) as u64;
        let candle = candle_core::Tensor::from_vec(values.clone(), (2, 2), &Device::Cpu).unwrap();
        let tensor = Tensor::try_from(&candle).unwrap();
        assert_eq!(
            (tensor.dtype(), tensor.shape()),
            (<T as Element>::DTYPE, &[2, 2][..])
        );
        assert_eq!(tensor.as_slice::<T>().unwrap(), values);
        assert_eq!(copied_bytes() - before, bytes);
        let back = candle_core::Tensor::try_from(&tensor).unwrap();
        assert_eq!((back.dtype(), back.dims()), (candle.dtype(), &[2, 2][..]));
        assert_eq!(back.flatten_all().unwrap().to_vec1::<T>().unwrap(), values);
        assert_eq!(copied_bytes() - before, 2 * bytes);
    }

    #[test]
    fn every_shared_type_goes_there_and_back() {
        there_and_back(vec![1u8, 2, 3, 255]);
        there_and_back(vec![1u32, 2, 3, u32::MAX]);
        there_and_back(vec![1i16, -2, 3, i16::MIN]);
        there_and_back(vec![1i32, -2, 3, i32::MIN]);
        there_and_back(vec![1i64, -2, 3, i64::MIN]);
        there_and_back([1.0, -2.0, 0.5, 4.0].map(f16::from_f32).to_vec());
        there_and_back([1.0, -2.0, 0.5, 4.0].map(bf16::from_f32).to_vec());
        there_and_back(vec![1f32, -2.0, 0.1, f32::MAX]);
        there_and_back(vec![1f64, -2.0, 0.1, f64::MAX]);
    }

    #[test]
    fn views_are_gathered_in_logical_order() {
        let (_turn, before) = counting();
        let all = candle_core::Tensor::arange(0u32, 12, &Device::Cpu)
            .unwrap()
            .reshape((3, 4))
            .unwrap();
        let turned = Tensor::try_from(&all.t().unwrap()).unwrap();
        assert_eq!(turned.shape(), [4, 3]);
        assert_eq!(
            turned.as_slice::<u32>().unwrap(),
            [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]
        );
        let rows = Tensor::try_from(&all.narrow(0, 1, 2).unwrap()).unwrap();
        assert_eq!(rows.as_slice::<u32>().unwrap(), [4, 5, 6, 7, 8, 9, 10, 11]);
        assert_eq!(copied_bytes() - before, 48 + 32);
        let repeated = all.narrow(1, 1, 1).unwrap().broadcast_as((3, 2)).unwrap();
        let pool = Pool::default();
        let repeated = pool.tensor_from_candle(&repeated).unwrap();
        assert_eq!(repeated.as_slice::<u32>().unwrap(), [1, 1, 5, 5, 9, 9]);
        let scalar = all.sum_all().unwrap();
        assert_eq!(Tensor::try_from(&scalar).unwrap().item::<u32>(), Ok(66));
    }

    #[test]
    fn a_vector_with_one_holder_moves_into_candle() {
        let (_turn, before) = counting();
        let vec = vec![1f32, 2.0, 3.0];
        let at = vec.as_ptr();
        let candle = candle_core::Tensor::try_from(Tensor::from(vec)).unwrap();
        let (storage, _) = candle.storage_and_layout();
        let Storage::Cpu(CpuStorage::F32(inside)) = &*storage else {
            panic!("not f32 on the CPU")
        };
        assert_eq!(inside.as_ptr(), at);
        assert_eq!(copied_bytes(), before);
    }

    #[test]
    fn what_one_side_lacks_is_named_with_a_way_out() {
        let error = candle_core::Tensor::try_from(Tensor::from(vec![1u64])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "candle has no u64 tensors; convert to i64 or u32 first"
        );
        let small = candle_core::Tensor::new(&[1f32], &Device::Cpu)
            .unwrap()
            .to_dtype(candle_core::DType::F8E4M3)
            .unwrap();
        assert_eq!(
            Tensor::try_from(&small).unwrap_err().to_string(),
            "tensorpipe has no f8e4m3 tensors; convert to f16, bf16 or f32 first"
        );
        let bools = Tensor::from_buffer(
            vec![0u8, 1].into_iter().collect::<Tensor>().into_buffer(),
            DType::Bool,
            [2],
        );
        let candle = candle_core::Tensor::try_from(bools.unwrap()).unwrap();
        assert_eq!(candle.to_vec1::<u8>().unwrap(), [0, 1]);
    }
}
