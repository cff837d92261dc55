//! Graphs that a program captures while this crate works, as PyTorch does.
//!
//! Unless a thread is in the relaxed mode, a call of its own that makes or frees memory, or asks an event, ends each capture that was begun for
//! the whole process. That mode is right here: no capture depends on these calls.

#![allow(unsafe_code, reason = "the driver replaces a number")]

use std::marker::PhantomData;

use cudarc::driver::sys::{self, CUstreamCaptureMode as Mode};

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

/// Gives this thread a mode. Returns the one that it had.
fn exchange(mut mode: Mode) -> Option<Mode> {
    // SAFETY: there is a mode there, which is replaced.
    let exchanged = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    exchanged.result().ok().map(|()| mode)
}
