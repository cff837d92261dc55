//! Bare copies on a stream, each awaited: what the machine can do.

use anyhow::{Context as _, Result};
use tensorpipe::Context;
use tensorpipe::device::cuda::CudaDevices;

use super::{Bench, Budget, Row, gpu, reached, ready, row};

pub(crate) async fn copies(
    cuda: &CudaDevices,
    sizes: &[usize],
    budget: Budget,
) -> Result<Vec<Row>> {
    let context = Context::builder().cuda(cuda).build()?;
    let most = sizes.iter().copied().max().unwrap_or(0);
    let bench = Bench::new(cuda, context.allocator(gpu())?, most)?;
    let stream = cuda.context(gpu())?.new_stream()?;
    let mut rows = Vec::new();
    for &len in sizes {
        let source = bench
            .cuda
            .upload(&bench.bytes(0, len), bench.pool.take(len)?, &stream)?;
        ready(&source).await?;
        let take = async |_| Ok(bench.pool.take(len)?);
        let within = async |room| ready(&cuda.copy(&source, room, &stream)?).await;
        let within = budget.rounds(take, within).await?;
        rows.push(row("copy within", len, &within, String::new()));
        let up = async |room| {
            let copied = cuda.upload(&bench.bytes(0, len), room, &stream)?;
            ready(&copied).await
        };
        let up = budget.rounds(take, up).await?;
        rows.push(row("copy up", len, &up, String::new()));
        let down = async |()| {
            let mut copy = cuda.download(&source, &stream)?;
            reached(&**copy.fence()).await?;
            copy.take()?.context("it is not there")?;
            Ok(())
        };
        let down = budget.rounds(async |_| Ok(()), down).await?;
        rows.push(row("copy down", len, &down, String::new()));
    }
    Ok(rows)
}
