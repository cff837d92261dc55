//! A kernel of CUDA's, as text that the driver compiles, and how it is queued behind a tensor.

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
    /// Compiles it.
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

    /// Queues it, and returns at once: the result is ready when the kernel has run. It lies on the device of `x`.
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
        // The stream waits for what made `x`, and for what still uses the room: not this thread.
        let from = self.cuda.read(x.buffer(), stream)?;
        let to = self.cuda.write(room, stream)?;
        ensure!(
            from.address().is_multiple_of(4),
            "the numbers begin at an odd place: copy the tensor first"
        );
        let (source, target, len) = (from.address(), to.address(), u32::try_from(x.len())?);
        let mut launch = stream.launch_builder(function);
        launch.arg(&source).arg(&target).arg(&len).arg(&factor);
        // SAFETY: these are the kernel's parameters. It reads `len` numbers, aligned, and writes as many, to memory that is there, and
        // nobody else's, until the stream is behind it.
        unsafe { launch.launch(LaunchConfig::for_num_elems(len)) }.context("launching")?;
        // `x` is in use until the stream is here.
        drop(from);
        Ok(Tensor::from_buffer(to.finish()?, x.dtype(), x.shape())?)
    }
}
