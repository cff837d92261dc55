//! A proof that the memory one process maps is the memory the other has. Before the first tensor of a device, its writer lends memory that
//! holds a random number, and tells the reader the number. The reader reads it in its mapping. A handle might open but name other memory:
//! if the peer lies, or if the drivers of two containers number their devices differently.

use std::sync::Arc;
use std::time::Duration;

use super::{Buffer, BufferMut, CudaDevices, Device, DeviceError};
use crate::channels::exchange::{ANSWER_TIMEOUT, FETCH_TIMEOUT};
use crate::device::cuda::Download;
use crate::device::{Allocator, Memory};
use crate::process::{Token, random_token};

/// What the memory holds.
pub(super) type Number = Token;

/// How many proofs about a device may fail in a row, at each end, before no more are tried. Chosen: a device may be busy once.
pub(super) const TRIES: u32 = 3;

/// How long a writer waits for a proof: a second longer than its reader waits for what it fetches. A healthy reader maps and reads within
/// milliseconds, so by then it has said whether it can.
pub(super) const WITHIN: Duration = FETCH_TIMEOUT.saturating_add(Duration::from_secs(1));

/// How long no proof is asked for after the reader could not give one: as long as the reader ignores an exchange that did not answer.
pub(super) const PAUSE: Duration = ANSWER_TIMEOUT;

/// The reason why nothing is received over the channel if the number differs.
pub(super) const OTHER_MEMORY: &str =
    "what was opened is not the peer's memory: it holds another value than the peer has put there";

/// Memory of a device, and the number that it holds once it is ready.
pub(super) fn made(cuda: &CudaDevices, device: Device) -> Result<(Buffer, Number), DeviceError> {
    let number = random_token();
    let number =
        number.map_err(|error| DeviceError::new(device, "getrandom", error.to_string()))?;
    let memory: Arc<dyn Memory> = cuda.allocate(device, number.len())?.into();
    let room = BufferMut::from_memory(memory, number.len());
    let room = room.map_err(|_| DeviceError::new(device, "allocate", "it cannot be filled"))?;
    let stream = cuda.stream(device)?;
    let buffer = cuda.upload(&Buffer::copy_from_slice(&number), room, &stream)?;
    // The result is asked for again later and is known then; nobody waits for the driver here.
    drop(cuda.share(&buffer));
    Ok((buffer, number))
}

/// Reads the number that mapped memory holds.
pub(super) fn read(
    cuda: &CudaDevices,
    device: Device,
    mapped: &Buffer,
) -> Result<Download, DeviceError> {
    let stream = cuda.stream(device)?;
    cuda.download(mapped, &stream)
}
