//! A KV cache moves from the prefill process that computed it to the decode process that continues with it.
//!
//! ```text
//! kv_blocks                      a prefill in a process of its own, and a decode here
//! kv_blocks prefill URL          a prefill alone
//! kv_blocks decode URL           takes blocks from a prefill that is there
//! ```
//!
//! The prefill has blocks of 16 tokens for each layer, on a GPU or else in its context's pool. The decode asks for the blocks that it lacks
//! and takes them layer by layer: it can compute with the first layer while the others arrive. Half-way the decode has enough and drops the
//! stream, which cancels the call. Between processes of one machine no block is copied: the decode reads the prefill's memory in place, and
//! the prefill gets a block back when the decode drops it.

mod cache;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Parser, Subcommand};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use tensorpipe::device::cuda::CudaDevices;
use tensorpipe::{Context, Device, Tensor};
use tensorpipe_examples::Second;
use tensorpipe_rpc::{DeviceMap, Server, Stream, tensor_service};

use crate::cache::{BLOCKS, Cache, LAYERS, is_block};

/// Hands a cache of keys and values to another process.
#[derive(Parser)]
#[command(name = "kv_blocks", version)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Has a cache, and serves it at a URL, e.g. tcp://127.0.0.1:5000, until it is ended.
    Prefill { url: String },
    /// Takes blocks of it.
    Decode { url: String },
}

/// Blocks of one layer, in the order in which they were asked for.
#[derive(Serialize, Deserialize)]
struct Layer {
    keys: Vec<Tensor>,
    values: Vec<Tensor>,
}

#[tensor_service]
trait Prefill {
    /// These blocks of each layer, the first layer first.
    fn layers(&self, blocks: Vec<u32>) -> impl Stream<Item = Result<Layer, String>>;
    /// How many layers it has handed out by now.
    async fn handed_out(&self) -> u32;
}

struct Prefilled {
    cache: Arc<Cache>,
    handed_out: Arc<AtomicU32>,
}

impl Prefill for Prefilled {
    fn layers(&self, blocks: Vec<u32>) -> impl Stream<Item = Result<Layer, String>> {
        let (cache, handed_out) = (self.cache.clone(), self.handed_out.clone());
        let layers = (0..LAYERS).map(move |layer| {
            let side = |side| {
                let blocks = blocks.iter().map(|block| cache.block(layer, side, *block));
                let found: Option<Vec<Tensor>> = blocks.collect();
                found.ok_or_else(|| format!("it has blocks 0 to {}", BLOCKS - 1))
            };
            let (keys, values) = (side(0)?, side(1)?);
            handed_out.fetch_add(1, Ordering::Relaxed);
            Ok(Layer { keys, values })
        });
        stream::iter(layers)
    }

    async fn handed_out(&self) -> u32 {
        self.handed_out.load(Ordering::Relaxed)
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    match &Args::parse().command {
        Some(Command::Prefill { url }) => prefill(url).await,
        Some(Command::Decode { url }) => decode(url).await,
        None => both().await,
    }
}

/// Builds a context and picks the device for the blocks: the first GPU, or main memory if there is no GPU.
fn place(name: &str) -> Result<(Context, Device)> {
    let cuda = CudaDevices::open();
    let context = Context::builder().name(name).try_cuda(&cuda).build()?;
    let device = match cuda {
        Ok(_) => CudaDevices::device(0),
        Err(_) => Device::CPU,
    };
    Ok((context, device))
}

async fn prefill(url: &str) -> Result<()> {
    let (context, device) = place("prefill")?;
    let service = Prefilled {
        cache: Arc::new(Cache::compute(device, &context).await?),
        handed_out: Arc::default(),
    };
    let server = Server::builder().context(&context);
    let server = server.service(PrefillService::new(service));
    let server = server.listen(url).await?;
    println!("{}", server.url());
    server.wait().await;
    bail!("the listener failed")
}

async fn decode(url: &str) -> Result<()> {
    let (context, device) = place("decode")?;
    let mut client = PrefillClient::connect_with(&context, url).await?;
    if !device.is_cpu() {
        // Blocks on the prefill's GPU arrive on this process's GPU.
        client = client.with_device_map(DeviceMap::new([(device, device)])?);
    }
    // All blocks but the prompt's first four: this process has those from an earlier prompt.
    let blocks: Vec<u32> = (4..BLOCKS).collect();
    let mut layers = client.layers(blocks.clone());
    let (mut taken, mut bytes) = (Vec::new(), 0);
    let begun = Instant::now();
    for layer in 0..LAYERS / 2 {
        let next = layers.next().await.context("a layer is missing")?;
        let next = next.with_context(|| format!("layer {layer}"))?;
        let tensors = next.keys.iter().chain(&next.values);
        bytes += tensors.map(Tensor::byte_len).sum::<usize>();
        taken.push(next);
    }
    let seconds = begun.elapsed().as_secs_f64();
    // May count more than was taken: the next layers are already on their way.
    let lent = client.connection().pipe().stats().bytes_borrowed;
    // This cancels the call.
    drop(layers);
    let handed_out = settled(&client).await?;
    ensure!(handed_out < LAYERS, "the prefill handed out all of it");
    for (layer, taken) in (0..).zip(&taken) {
        for (side, tensors) in (0..).zip([&taken.keys, &taken.values]) {
            ensure!(tensors.len() == blocks.len(), "blocks are missing");
            for (block, tensor) in blocks.iter().zip(tensors) {
                ensure!(tensor.device() == device, "a block on {}", tensor.device());
                let found = tensor.to(Device::CPU, &context).await?;
                let is_right = is_block(&found, layer, side, *block)?;
                ensure!(is_right, "block {block} of layer {layer} is another one");
            }
        }
    }
    let count = taken.len() * blocks.len() * 2;
    println!(
        "{count} blocks, {} MiB on {device}, in {:.2} ms: {:.1} GB/s; then each was looked at",
        bytes >> 20,
        seconds * 1e3,
        bytes as f64 / seconds / 1e9
    );
    println!(
        "{} MiB of them were read where the prefill has them",
        lent.min(bytes as u64) >> 20
    );
    println!("cancelled half-way: the prefill has handed out {handed_out} of {LAYERS} layers");
    println!("over {}", client.connection().route());
    Ok(())
}

/// Waits until the prefill's count stops growing, and returns it.
async fn settled(client: &PrefillClient) -> Result<u32> {
    let mut handed_out = client.handed_out().await?;
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let now = client.handed_out().await?;
        if now == handed_out {
            return Ok(now);
        }
        handed_out = now;
    }
    bail!("the prefill goes on, {handed_out} layers by now")
}

/// A prefill in a process of its own, and a decode here.
async fn both() -> Result<()> {
    let prefill = Second::start(&["prefill", "tcp://127.0.0.1:0"]).await?;
    decode(&prefill.url).await?;
    prefill.end().await
}
