//! How the writer's memory gets here: its exchange passes descriptors. The driver opens each one once, and maps them side by side, once for
//! all tensors that lie there.

use std::sync::OnceLock;

use super::{Arc, CudaDevices, Device, DeviceError, LendError, Lender, Passed, Span, Wanted};
use crate::channels::exchange::FETCH_TIMEOUT;
use crate::device::cuda::Handle;
use crate::process::Token;
use crate::sync::lock;
use crate::sys::drop_thread::DropThread;

/// Fetches all of these, or at least gets accepted by the exchange. Takes no longer than one fetch may take.
pub(super) async fn fetch(
    lender: &Arc<Lender>,
    invitation: Token,
    wanted: &[Wanted],
) -> Result<(), LendError> {
    let [first, behind @ ..] = wanted else {
        return lender.fetch(invitation, None).await;
    };
    let all = async {
        lender.fetch(invitation, Some(*first)).await?;
        for one in behind {
            lender.fetch(invitation, Some(*one)).await?;
        }
        Ok(())
    };
    let late = |_| {
        Err(LendError {
            reason: "the peer's exchange is slow".to_owned(),
            lasting: false,
        })
    };
    let fetched = tokio::time::timeout(FETCH_TIMEOUT, all).await;
    fetched.unwrap_or_else(late)
}

/// Maps the passed memory, once. A second caller waits for the first.
pub(super) fn map(
    cuda: &CudaDevices,
    local: Device,
    span: &Span,
    lens: &[u64],
) -> Result<(), (DeviceError, bool)> {
    let mut mapped = lock(&span.mapped);
    if mapped.is_some() {
        return Ok(());
    }
    let mut parts = Vec::with_capacity(lens.len());
    for (part, len) in span.parts.iter().zip(lens) {
        let len = usize::try_from(*len).unwrap_or(usize::MAX);
        parts.push((open(cuda, local, part)?, len));
    }
    let physical = cuda.map(local, parts)?;
    keep_frees(cuda, local, &span.frees);
    *mapped = Some(physical);
    Ok(())
}

/// Opens the passed memory in the driver, once.
fn open(
    cuda: &CudaDevices,
    local: Device,
    passed: &Passed,
) -> Result<Arc<Handle>, (DeviceError, bool)> {
    let mut opened = lock(&passed.opened);
    let known = opened
        .clone()
        .and_then(|known| known.downcast::<Handle>().ok());
    if let Some(known) = known {
        return Ok(known);
    }
    let mut fd = lock(&passed.fd);
    let gone = || DeviceError::new(local, "map", "its descriptor is gone");
    let handle = cuda.import(local, fd.as_ref().ok_or_else(|| (gone(), false))?)?;
    // Once it is opened, the descriptor is not needed.
    *fd = None;
    let handle = Arc::new(handle);
    keep_frees(cuda, local, &passed.frees);
    *opened = Some(handle.clone());
    Ok(handle)
}

/// From now on, the thread that frees the device's memory drops it.
fn keep_frees(cuda: &CudaDevices, local: Device, frees: &OnceLock<Arc<DropThread>>) {
    if let Some(thread) = cuda.frees(local) {
        frees.get_or_init(|| thread);
    }
}
