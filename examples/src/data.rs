//! The handwritten digits: 1797 labelled 8×8 images, split once and for all into train and test.
//!
//! Every process embeds the same file and shuffles it with the same seed. So the split is the same everywhere, and no worker trains on an
//! image that the final accuracy is measured with.

use anyhow::{Context as _, Result, ensure};

use crate::random::Random;

/// Pixels of one image.
pub const PIXELS: usize = 64;
/// Digits to tell apart.
pub const CLASSES: usize = 10;

const CSV: &str = include_str!("../data/digits.csv");
/// Of all pixels in the file.
const MEAN: f32 = 4.88;
/// Of all pixels in the file.
const DEVIATION: f32 = 6.02;
/// One image in this many goes into the test set.
const TEST_SHARE: usize = 5;
const SPLIT_SEED: u64 = 0xD161_7500;

/// Images and what they show.
#[derive(Clone, Debug, Default)]
pub struct Digits {
    /// Pixels, [`PIXELS`] an image, scaled to mean 0 and deviation 1: gradients descend faster.
    pub images: Vec<f32>,
    /// The digit of each image.
    pub labels: Vec<u32>,
}

impl Digits {
    /// How many images.
    pub fn count(&self) -> usize {
        self.labels.len()
    }

    /// Copies the images at `indices`, in that order.
    pub fn select(&self, indices: &[usize]) -> Self {
        let mut chosen = Self::default();
        for &index in indices {
            let pixels = index * PIXELS..(index + 1) * PIXELS;
            chosen.images.extend_from_slice(&self.images[pixels]);
            chosen.labels.push(self.labels[index]);
        }
        chosen
    }
}

/// Images to train with, and images to measure the accuracy with.
#[derive(Clone, Debug)]
pub struct Split {
    /// Four fifths.
    pub train: Digits,
    /// The other fifth.
    pub test: Digits,
}

/// Reads the embedded file and splits it.
pub fn load() -> Result<Split> {
    let all = parse(CSV).context("the embedded digits.csv is damaged")?;
    let mut order: Vec<usize> = (0..all.count()).collect();
    Random::new(SPLIT_SEED).shuffle(&mut order);
    let (test, train) = order.split_at(all.count() / TEST_SHARE);
    Ok(Split {
        train: all.select(train),
        test: all.select(test),
    })
}

/// An endless sequence of random batches. No image repeats before the next shuffle.
#[derive(Debug)]
pub struct Batches {
    order: Vec<usize>,
    taken: usize,
    size: usize,
    random: Random,
}

impl Batches {
    /// Batches of `size` out of `images`; another `seed` gives another order.
    pub fn new(images: usize, size: usize, seed: u64) -> Self {
        Self {
            order: (0..images).collect(),
            taken: images,
            size: size.min(images),
            random: Random::new(seed),
        }
    }

    /// The indices of the next batch.
    pub fn draw(&mut self) -> &[usize] {
        if self.taken + self.size > self.order.len() {
            self.random.shuffle(&mut self.order);
            self.taken = 0;
        }
        let batch = self.taken..self.taken + self.size;
        self.taken = batch.end;
        &self.order[batch]
    }
}

fn parse(csv: &str) -> Result<Digits> {
    let mut digits = Digits::default();
    for line in csv.lines() {
        let values = line.split(',').map(str::parse::<u8>);
        let values = values.collect::<Result<Vec<_>, _>>()?;
        let (label, pixels) = values.split_last().context("an empty line")?;
        ensure!(pixels.len() == PIXELS, "{} pixels", pixels.len());
        digits.labels.push(u32::from(*label));
        let scaled = pixels
            .iter()
            .map(|pixel| (f32::from(*pixel) - MEAN) / DEVIATION);
        digits.images.extend(scaled);
    }
    Ok(digits)
}
