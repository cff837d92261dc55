//! Graphs that a program captures while this crate works, as PyTorch does.
//!
//! Unless a thread is in the relaxed mode, a call of its own that makes or frees memory, or asks an event, ends each capture that was begun for
//! the whole process. That mode is right here: no capture depends on these calls.

#![allow(
    unsafe_code,
    reason = "the driver replaces a number, and is asked about a stream"
)]

use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult, CUstreamCaptureMode as Mode, CUstreamCaptureStatus};
use cudarc::driver::{CudaStream, DriverError, result};

use super::fence::Watcher;
use super::{Kept, enter};

/// This thread is in the relaxed mode until this is dropped.
pub(super) struct Relaxed {
    /// `None` if the driver refuses.
    before: Option<Mode>,
    /// It is of one thread.
    _here: PhantomData<*const ()>,
}

impl Relaxed {
    pub(super) fn here() -> Self {
        Self {
            before: exchange(Mode::CU_STREAM_CAPTURE_MODE_RELAXED),
            _here: PhantomData,
        }
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        self.before.and_then(exchange);
    }
}

/// Runs `act` when no graph is being captured on the stream: at once, or on the thread that waits for events. What it queues there would end
/// the capture, and would be refused.
pub(super) fn after_capture(
    stream: &Arc<CudaStream>,
    watcher: &Watcher,
    act: impl FnOnce() + Send + 'static,
) {
    if !is_captured(stream) {
        return act();
    }
    let stream = Kept::new(stream.clone());
    watcher.watch(move || !is_captured(&stream), Box::new(act));
}

fn is_captured(stream: &CudaStream) -> bool {
    let _here = enter(stream.context());
    // SAFETY: the stream is there.
    let status = unsafe { result::stream::is_capturing(stream.cu_stream()) };
    match status {
        Ok(status) => status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
        // The stream of address 0, with which a captured one would have to wait.
        Err(error) => error == DriverError(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
    }
}

/// Gives this thread a mode. Returns the one that it had.
fn exchange(mut mode: Mode) -> Option<Mode> {
    // SAFETY: there is a mode there, which is replaced.
    let exchanged = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    exchanged.result().ok().map(|()| mode)
}
