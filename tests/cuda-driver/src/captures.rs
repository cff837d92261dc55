//! Captures of graphs. A thread in the default mode ends each that was begun for the whole process, by a call that is potentially unsafe.
//! Any thread ends one by work on its stream that has to do with something outside of the graph. Nothing is captured.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use cudarc::driver::sys::{
    CUdeviceptr, CUgraph, CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
};

use crate::devices::give;
use crate::streams::stream;

/// Calls that make or free memory, ask an event, or wait.
const UNSAFE: [&str; 17] = [
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
];

struct Capture {
    /// The stream's address.
    stream: usize,
    by: ThreadId,
    mode: CUstreamCaptureMode,
    is_invalid: bool,
    /// Memory that the graph makes.
    made: Vec<CUdeviceptr>,
}

thread_local! {
    static MODE: Cell<CUstreamCaptureMode> =
        const { Cell::new(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL) };
}

fn captures() -> MutexGuard<'static, Vec<Capture>> {
    static CAPTURES: Mutex<Vec<Capture>> = Mutex::new(Vec::new());
    CAPTURES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this thread may call a function now. If it may not, each capture that forbids it is invalid.
pub(crate) fn allow(function: &str) -> Result<(), CUresult> {
    use CUstreamCaptureMode as Mode;
    let (mode, here) = (MODE.get(), std::thread::current().id());
    if mode == Mode::CU_STREAM_CAPTURE_MODE_RELAXED || !UNSAFE.contains(&function) {
        return Ok(());
    }
    let is_global = |mode| mode == Mode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    let mut is_allowed = true;
    for capture in captures().iter_mut() {
        let is_own = capture.by == here && capture.mode != Mode::CU_STREAM_CAPTURE_MODE_RELAXED;
        if is_own || is_global(mode) && is_global(capture.mode) {
            (capture.is_invalid, is_allowed) = (true, false);
        }
    }
    match is_allowed {
        true => Ok(()),
        false => Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
    }
}

/// Whether a graph is being captured on this stream.
pub(crate) fn is_captured(named: CUstream) -> bool {
    captures().iter().any(|one| one.stream == named.addr())
}

/// The graph that is being captured there, if there is one, makes memory.
pub(crate) fn makes(named: CUstream, address: CUdeviceptr) {
    let mut captures = captures();
    let this = captures.iter_mut().find(|one| one.stream == named.addr());
    this.into_iter().for_each(|one| one.made.push(address));
}

/// What is not part of the graph that is being captured there ends the capture.
pub(crate) fn ends(
    named: CUstream,
    error: CUresult,
    is_part: impl Fn(&[CUdeviceptr]) -> bool,
) -> Result<(), CUresult> {
    let mut captures = captures();
    let this = captures.iter_mut().find(|one| one.stream == named.addr());
    match this.filter(|one| !is_part(&one.made)) {
        None => Ok(()),
        Some(one) => {
            one.is_invalid = true;
            Err(error)
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(
    mode: *mut CUstreamCaptureMode,
) -> CUresult {
    may_fail!("cuThreadExchangeStreamCaptureMode");
    // SAFETY: the caller has a mode there.
    let wanted = unsafe { mode.read() };
    // SAFETY: as above.
    unsafe { give(mode, Ok(MODE.replace(wanted))) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(named: CUstream, mode: CUstreamCaptureMode) -> CUresult {
    may_fail!("cuStreamBeginCapture_v2");
    if let Err(error) = stream(named) {
        return error;
    }
    captures().push(Capture {
        stream: named.addr(),
        by: std::thread::current().id(),
        mode,
        is_invalid: false,
        made: Vec::new(),
    });
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(
    named: CUstream,
    status: *mut CUstreamCaptureStatus,
) -> CUresult {
    may_fail!("cuStreamIsCapturing");
    let captures = captures();
    let this = captures.iter().find(|one| one.stream == named.addr());
    let found = match this {
        None => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
        Some(one) if one.is_invalid => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED,
        Some(_) => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE,
    };
    // SAFETY: the caller has room for a status.
    unsafe { give(status, stream(named).map(|_| found)) }
}

/// Gives no graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(named: CUstream, graph: *mut CUgraph) -> CUresult {
    may_fail!("cuStreamEndCapture");
    let mut captures = captures();
    let is_this = |capture: &Capture| capture.stream == named.addr();
    let Some(at) = captures.iter().position(is_this) else {
        return CUresult::CUDA_ERROR_ILLEGAL_STATE;
    };
    let capture = captures.remove(at);
    let here = std::thread::current().id();
    let ended = match capture {
        Capture { by, mode, .. }
            if by != here && mode != CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED =>
        {
            Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
        }
        Capture { is_invalid, .. } if is_invalid => {
            Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
        }
        _ => Ok(std::ptr::null_mut()),
    };
    // SAFETY: the caller has room for a graph.
    unsafe { give(graph, ended) }
}
