//! A proof that what one process maps is what the other has. Before the first tensor of a device's, its writer lends memory that
//! holds a random number. The reader, told that number, reads it there. A handle may open and be of something else: where the peer
//! lies, or the drivers of two containers number their devices differently.

use std::sync::Arc;
use std::time::Duration;

use super::{Buffer, BufferMut, CudaDevices, Device, DeviceError};
use crate::channels::exchange::{ANSWER_TIMEOUT, FETCH_TIMEOUT};
use crate::device::cuda::Download;
use crate::device::{Allocator, Memory};
use crate::process::{Token, random_token};

/// What the memory holds.
pub(super) type Number = Token;

/// So many proofs about a device are tried in a row that come to nothing, at each end. Chosen: a device may be busy once.
pub(super) const TRIES: u32 = 3;

/// So long a writer waits for one: a second longer than its reader does for what it fetches, so that a reader that is well, which has mapped
/// and read within milliseconds, has said by then whether it can.
pub(super) const WITHIN: Duration = FETCH_TIMEOUT.saturating_add(Duration::from_secs(1));

/// So long none is asked for where the reader could not just then: as long as it asks nothing of an exchange that did not answer.
pub(super) const PAUSE: Duration = ANSWER_TIMEOUT;

/// Why nothing is received over the channel where the number is another.
pub(super) const OTHER_MEMORY: &str =
    "what was opened is not the peer's memory: it holds another value than the peer has put there";

/// Memory of a device's, and the number that it holds once it is ready.
pub(super) fn made(cuda: &CudaDevices, device: Device) -> Result<(Buffer, Number), DeviceError> {
    let number = random_token();
    let number =
        number.map_err(|error| DeviceError::new(device, "getrandom", error.to_string()))?;
    let memory: Arc<dyn Memory> = cuda.allocate(device, number.len())?.into();
    let room = BufferMut::from_memory(memory, number.len());
    let room = room.map_err(|_| DeviceError::new(device, "allocate", "it cannot be filled"))?;
    let stream = cuda.stream(device)?;
    let buffer = cuda.upload(&Buffer::copy_from_slice(&number), room, &stream)?;
    // What comes of it is asked for again, and known then: here nobody waits for the driver.
    drop(cuda.share(&buffer));
    Ok((buffer, number))
}

/// Has the number read that mapped memory holds.
pub(super) fn read(
    cuda: &CudaDevices,
    device: Device,
    mapped: &Buffer,
) -> Result<Download, DeviceError> {
    let stream = cuda.stream(device)?;
    cuda.download(mapped, &stream)
}
