//! A CUDA kernel as PTX, which the driver compiles, and its launch behind the work that fills its argument.

#![allow(unsafe_code, reason = "a kernel takes addresses as they are")]

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg as _};
use cudarc::nvrtc::Ptx;
use tensorpipe::device::cuda::CudaDevices;
use tensorpipe::{Context, DType, Tensor};

/// `to[i] = max(0, factor * from[i])` for `i` below `len`, a thread for each.
const PTX: &str = include_str!("scaled_relu.ptx");

/// The kernel on every device, each with a stream of its own.
pub(crate) struct Kernel {
    cuda: CudaDevices,
    context: Context,
    loaded: Vec<(CudaFunction, Arc<CudaStream>)>,
}

impl Kernel {
    /// Compiles the kernel for every device.
    pub(crate) fn load(cuda: &CudaDevices, context: &Context) -> Result<Self> {
        let load = |device| {
            let gpu = cuda.context(device)?;
            let module = gpu.load_module(Ptx::from_src(PTX));
            let module = module.with_context(|| format!("compiling the kernel for {device}"))?;
            Ok((module.load_function("scaled_relu")?, gpu.new_stream()?))
        };
        Ok(Self {
            loaded: cuda
                .devices()
                .into_iter()
                .map(load)
                .collect::<Result<_>>()?,
            context: context.clone(),
            cuda: cuda.clone(),
        })
    }

    /// Queues the kernel and returns at once. The result lies on the device of `x` and is ready when the kernel has run.
    pub(crate) fn scaled_relu(&self, x: &Tensor, factor: f32) -> Result<Tensor> {
        ensure!(
            x.dtype() == DType::F32,
            "the kernel is for f32, this is {}",
            x.dtype()
        );
        if x.is_empty() {
            return Ok(x.clone());
        }
        let device = x.device();
        let loaded = self.loaded.get(device.index as usize);
        let (function, stream) = loaded.with_context(|| format!("there is no {device}"))?;
        let room = self.context.allocator(device)?.take(x.byte_len())?;
        // The stream, not this thread, waits for the work that fills `x` and for earlier work that still uses `room`.
        let from = self.cuda.read(x.buffer(), stream)?;
        let to = self.cuda.write(room, stream)?;
        ensure!(
            from.address().is_multiple_of(4),
            "the numbers begin at an odd place: copy the tensor first"
        );
        let (source, target, len) = (from.address(), to.address(), u32::try_from(x.len())?);
        let mut launch = stream.launch_builder(function);
        launch.arg(&source).arg(&target).arg(&len).arg(&factor);
        // SAFETY: the arguments are the kernel's parameters. It reads `len` aligned numbers and writes as many. Both memories stay
        // allocated, and nobody else uses the target, until the stream has run the kernel.
        unsafe { launch.launch(LaunchConfig::for_num_elems(len)) }.context("launching")?;
        // Marks `x` as in use until the stream gets here.
        drop(from);
        Ok(Tensor::from_buffer(to.finish()?, x.dtype(), x.shape())?)
    }
}
