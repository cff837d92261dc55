//! Modules and kernels. Nothing is compiled: what the text of a module says must be there, and each kernel that this project's programs
//! launch is a function here.

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{CUdeviceptr, CUfunction, CUmodule, CUresult, CUstream};

use crate::devices::{current, give};
use crate::machine::{MACHINE, handle};
use crate::streams::stream;

/// Reads its parameters, and returns what its threads do, of which there are so many.
type Kernel = unsafe fn(*mut *mut c_void, usize, u32) -> Box<dyn FnOnce() + Send>;

/// Each with the types of its parameters.
const KERNELS: [(&str, &[&str], Kernel); 1] = [(
    "scaled_relu",
    &[".u64", ".u64", ".u32", ".f32"],
    scaled_relu,
)];

/// A module's text, and its device.
struct Module(String, u32);

impl Module {
    /// The types of a kernel's parameters, as the text has them.
    fn parameters(&self, kernel: &str) -> Option<Vec<&str>> {
        let mut entries = self.0.split(".entry ").skip(1);
        let entry = entries.find_map(|entry| entry.trim_start().strip_prefix(kernel))?;
        let (listed, _) = entry.trim_start().strip_prefix('(')?.split_once(')')?;
        let types = listed.split(".param ").skip(1);
        Some(
            types
                .filter_map(|one| one.split_whitespace().next())
                .collect(),
        )
    }
}

/// A kernel, and the device that it is loaded on.
struct Function(Kernel, u32);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(out: *mut CUmodule, image: *const c_void) -> CUresult {
    may_fail!("cuModuleLoadData");
    let made = MACHINE.state().and_then(|()| current()).and_then(|device| {
        // SAFETY: the caller's promise, for the text of a module.
        let text = unsafe { CStr::from_ptr(image.cast::<c_char>()) };
        let text = text
            .to_str()
            .map_err(|_| CUresult::CUDA_ERROR_INVALID_IMAGE)?;
        match text.contains(".version") && text.contains(".target") {
            true => Ok(handle(Arc::new(Module(text.to_owned(), device))).cast()),
            false => Err(CUresult::CUDA_ERROR_INVALID_PTX),
        }
    });
    // SAFETY: the caller's promise.
    unsafe { give(out, made) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleUnload(module: CUmodule) -> CUresult {
    may_fail!("cuModuleUnload");
    // SAFETY: made by `handle`, and given up by the caller.
    drop(unsafe { Arc::from_raw(module.cast::<Module>().cast_const()) });
    CUresult::CUDA_SUCCESS
}

/// It lives as long as the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    out: *mut CUfunction,
    module: CUmodule,
    name: *const c_char,
) -> CUresult {
    may_fail!("cuModuleGetFunction");
    // SAFETY: the caller's module is one of ours.
    let module = unsafe { &*module.cast::<Module>() };
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let known = KERNELS.iter().find(|(known, ..)| *known == name);
    let found = known.filter(|(_, types, _)| module.parameters(&name).as_deref() == Some(types));
    let found = found.map(|(.., kernel)| handle(Arc::new(Function(*kernel, module.1))).cast());
    // SAFETY: the caller's promise.
    unsafe { give(out, found.ok_or(CUresult::CUDA_ERROR_NOT_FOUND)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    _shared_bytes: c_uint,
    named: CUstream,
    parameters: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> CUresult {
    may_fail!("cuLaunchKernel");
    let sizes = [grid_x, grid_y, grid_z, block_x, block_y, block_z];
    let threads = sizes.into_iter().map(|size| size as usize).product();
    if threads == 0 || block_x as usize * block_y as usize * block_z as usize > 1024 {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    let stream = match stream(named) {
        Ok(stream) => stream,
        Err(error) => return error,
    };
    // SAFETY: the caller's function is one of ours.
    let Function(kernel, device) = unsafe { &*function.cast::<Function>() };
    if stream.device != *device {
        return CUresult::CUDA_ERROR_INVALID_HANDLE;
    }
    // SAFETY: the caller's parameters are the kernel's.
    stream.queue(unsafe { kernel(parameters, threads, *device) });
    CUresult::CUDA_SUCCESS
}

/// Number `at` of a kernel's parameters.
///
/// # Safety
/// There are as many, and that one is a `T`.
unsafe fn parameter<T: Copy>(parameters: *mut *mut c_void, at: usize) -> T {
    // SAFETY: the caller's promise.
    let place = unsafe { parameters.add(at) };
    // SAFETY: as above.
    let parameter = unsafe { *place };
    // SAFETY: as above.
    unsafe { *parameter.cast::<T>() }
}

/// Whether a kernel's numbers lie there on its device, as they must: else it is a fault.
fn lies(address: CUdeviceptr, size: usize, device: u32) -> bool {
    let is_right =
        MACHINE.device_of(address) == Some(device) && address.is_multiple_of(size as u64);
    if !is_right {
        MACHINE.fault(format!(
            "a kernel's numbers at {address:#x}: misaligned, or elsewhere"
        ));
    }
    is_right
}

/// `(from, to, len, factor)`: numbers times `factor`, those below zero as zero.
unsafe fn scaled_relu(
    parameters: *mut *mut c_void,
    threads: usize,
    device: u32,
) -> Box<dyn FnOnce() + Send> {
    // SAFETY: the caller's promise.
    let from: CUdeviceptr = unsafe { parameter(parameters, 0) };
    // SAFETY: as above.
    let to: CUdeviceptr = unsafe { parameter(parameters, 1) };
    // SAFETY: as above.
    let len: u32 = unsafe { parameter(parameters, 2) };
    // SAFETY: as above.
    let factor: f32 = unsafe { parameter(parameters, 3) };
    let len = (len as usize).min(threads) * size_of::<f32>();
    Box::new(move || {
        if ![from, to]
            .iter()
            .all(|at| lies(*at, size_of::<f32>(), device))
        {
            return;
        }
        let mut numbers = Vec::new();
        MACHINE.touch(Some(device), from, len, "a kernel's argument", |bytes| {
            let (given, _) = bytes.as_chunks();
            let given = given.iter().map(|number| f32::from_le_bytes(*number));
            numbers.extend(given.flat_map(|x| (x * factor).max(0.0).to_le_bytes()));
        });
        if numbers.len() == len {
            MACHINE.touch(Some(device), to, len, "a kernel's result", |bytes| {
                bytes.copy_from_slice(&numbers)
            });
        }
    })
}
