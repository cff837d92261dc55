//! The cache of one prompt: for each layer, blocks of keys and blocks of values.

use anyhow::Result;
use half::f16;
use tensorpipe::{Context, DType, Device, Tensor};

pub(crate) const LAYERS: u32 = 32;

/// Blocks of keys in a layer, and as many of values.
pub(crate) const BLOCKS: u32 = 16;

/// Tokens, heads, numbers of a head.
const SHAPE: [u64; 3] = [16, 8, 128];

/// Blocks stay where they were computed: on a GPU, or in main memory that other processes may read.
pub(crate) struct Cache(Vec<Tensor>);

fn place(layer: u32, side: u32, block: u32) -> u32 {
    (layer * 2 + side) * BLOCKS + block
}

impl Cache {
    /// Stands in for a model: fills each block with the block's index.
    pub(crate) async fn compute(device: Device, context: &Context) -> Result<Self> {
        let mut blocks = Vec::new();
        for place in 0..LAYERS * 2 * BLOCKS {
            let mut block = context.pool().tensor(DType::F16, SHAPE)?;
            block.make_mut::<f16>()?.fill(f16::from_f32(place as f32));
            blocks.push(block.to(device, context).await?);
        }
        Ok(Self(blocks))
    }

    /// Side 0 are the keys, side 1 the values. Nothing is copied.
    pub(crate) fn block(&self, layer: u32, side: u32, block: u32) -> Option<Tensor> {
        self.0.get(place(layer, side, block) as usize).cloned()
    }
}

/// Whether `found` is that block. Compares every number.
pub(crate) fn is_block(found: &Tensor, layer: u32, side: u32, block: u32) -> Result<bool> {
    let expected = f16::from_f32(place(layer, side, block) as f32);
    let numbers = found.as_slice::<f16>()?;
    Ok(found.shape() == SHAPE && numbers.iter().all(|number| *number == expected))
}
