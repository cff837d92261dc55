//! Calls with a tensor, from this process to another one on the same GPU.

use anyhow::{Result, ensure};
use tensorpipe::device::cuda::CudaDevices;
use tensorpipe::{Context, DType, Tensor};
use tensorpipe_rpc::DeviceMap;

use super::there::{Orders, TakerClient};
use super::{Bench, Budget, Row, gpu, ready, row, sum};
use crate::peer::Peer;

/// What lies where before it is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Pool,
    Slice,
    Main,
}

/// Whether the other process borrows, what it is sent, and whether that lands on its GPU.
const CASES: [(&str, bool, Source, bool); 5] = [
    ("lent", true, Source::Pool, true),
    ("slice", true, Source::Slice, true),
    ("own", false, Source::Pool, true),
    ("up", true, Source::Main, true),
    ("down", true, Source::Pool, false),
];

pub(crate) async fn calls(cuda: &CudaDevices, sizes: &[usize], budget: Budget) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (case, borrows, source, lands_there) in CASES {
        let peer = Peer::start("gpu-peer", &Orders { borrows })?;
        let context = Context::builder().cuda(cuda).build()?;
        let client = TakerClient::connect_with(&context, peer.address()).await?;
        let client = match lands_there {
            true => client.with_device_map(DeviceMap::new([(gpu(), gpu())])?),
            false => client,
        };
        let most = sizes.iter().copied().max().unwrap_or(0);
        let bench = Bench::new(cuda, context.allocator(gpu())?, most)?;
        let stream = cuda.context(gpu())?.new_stream()?;
        for &len in sizes {
            let make = async |round| {
                let bytes = bench.bytes(round, len);
                let tensor = match source {
                    Source::Pool => {
                        let buffer = cuda.upload(&bytes, bench.pool.take(len)?, &stream)?;
                        Tensor::from_buffer(buffer, DType::U8, [len])?
                    }
                    Source::Slice => {
                        let slice = stream.clone_htod(bytes.as_bytes().unwrap_or_default())?;
                        Tensor::from_cuda(cuda, slice, [len])?
                    }
                    Source::Main => {
                        let mut tensor = context.pool().tensor(DType::U8, [len])?;
                        let bytes = bytes.as_bytes().unwrap_or_default();
                        tensor.make_mut::<u8>()?.copy_from_slice(bytes);
                        tensor
                    }
                };
                ready(tensor.buffer()).await?;
                Ok(tensor)
            };
            let call = async |tensor: Tensor| {
                let taken = match source {
                    Source::Main => client.lift(tensor).await?,
                    _ => client.take(tensor).await?,
                };
                ensure!(taken == len as u64, "{taken} of {len} bytes came");
                Ok(())
            };
            let times = budget.rounds(make, call).await?;
            let found = client.sum(make(7).await?).await?;
            let bytes = bench.bytes(7, len);
            ensure!(
                found == sum(bytes.as_bytes().unwrap_or_default()),
                "{case}: other bytes came"
            );
            let over = used(&client, source);
            rows.push(row(case, len, &times, over));
        }
    }
    Ok(rows)
}

/// The channels that have carried something, and what of it went another way.
fn used(client: &TakerClient, source: Source) -> String {
    let pipe = client.connection().pipe();
    let route = pipe.route();
    let carried = route
        .channels
        .iter()
        .filter(|channel| channel.carried.bytes() > 0);
    let mut names: Vec<_> = carried.map(|channel| channel.name.clone()).collect();
    if source != Source::Main {
        names.retain(|name| name.starts_with("cuda"));
    }
    let diverted = pipe.stats().bytes_diverted;
    if diverted > 0 {
        names.push(format!("{diverted} bytes diverted"));
    }
    names.join(" ")
}
