//! Modules and kernels. Nothing is compiled: what the text of a module says must be there, and each kernel that this project's programs
//! launch is a function here.

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{CUdeviceptr, CUfunction, CUmodule, CUresult, CUstream};

use crate::devices::{current, give};
use crate::machine::{MACHINE, handle};
use crate::streams::stream;

/// Reads its parameters, and returns what its threads do, of which there are so many.
type Kernel = unsafe fn(*mut *mut c_void, usize) -> Box<dyn FnOnce() + Send>;

const KERNELS: [(&str, Kernel); 1] = [("scaled_relu", scaled_relu)];

/// Names of the kernels in a module's text.
struct Module(Vec<String>);

/// One of them.
struct Function(Kernel);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(out: *mut CUmodule, image: *const c_void) -> CUresult {
    let made = MACHINE.state().and_then(|()| current()).and_then(|_| {
        // SAFETY: the caller's promise, for the text of a module.
        let text = unsafe { CStr::from_ptr(image.cast::<c_char>()) };
        let text = text
            .to_str()
            .map_err(|_| CUresult::CUDA_ERROR_INVALID_IMAGE)?;
        let entries = text.split(".entry").skip(1).map(|entry| {
            let name = entry.split('(').next().unwrap_or_default();
            name.trim().to_owned()
        });
        match text.contains(".version") && text.contains(".target") {
            true => Ok(handle(Arc::new(Module(entries.collect()))).cast()),
            false => Err(CUresult::CUDA_ERROR_INVALID_PTX),
        }
    });
    // SAFETY: the caller's promise.
    unsafe { give(out, made) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleUnload(module: CUmodule) -> CUresult {
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
    // SAFETY: the caller's module is one of ours.
    let Module(names) = unsafe { &*module.cast::<Module>() };
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let known = KERNELS.iter().find(|(known, _)| *known == name);
    let found = known.filter(|_| names.iter().any(|there| *there == name));
    let found = found.map(|(_, kernel)| handle(Arc::new(Function(*kernel))).cast());
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
    let Function(kernel) = unsafe { &*function.cast::<Function>() };
    // SAFETY: the caller's parameters are the kernel's.
    stream.queue(unsafe { kernel(parameters, threads) });
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

/// `(from, to, len, factor)`: numbers times `factor`, those below zero as zero.
unsafe fn scaled_relu(parameters: *mut *mut c_void, threads: usize) -> Box<dyn FnOnce() + Send> {
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
        let mut numbers = Vec::new();
        MACHINE.touch(from, len, "a kernel's argument", |bytes| {
            let (given, _) = bytes.as_chunks();
            let given = given.iter().map(|number| f32::from_le_bytes(*number));
            numbers.extend(given.flat_map(|x| (x * factor).max(0.0).to_le_bytes()));
        });
        if numbers.len() == len {
            MACHINE.touch(to, len, "a kernel's result", |bytes| {
                bytes.copy_from_slice(&numbers)
            });
        }
    })
}
