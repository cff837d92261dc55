//! The handwritten digits: 1797 labelled 8×8 images, split once and for all into train and test.
//!
//! Every process embeds the same file and shuffles it with the same seed, so the split is the same everywhere and no
//! worker ever trains on an image that the final accuracy is measured with.

use anyhow::{Context as _, Result, ensure};

use crate::random::Random;

/// Pixels of one image.
pub(crate) const PIXELS: usize = 64;
/// Digits to tell apart.
pub(crate) const CLASSES: usize = 10;

const CSV: &str = include_str!("../../../data/digits.csv");
/// The brightest pixel in the file.
const WHITE: u8 = 16;
/// Of all pixels in the file.
const MEAN: f32 = 4.88;
/// Of all pixels in the file.
const DEVIATION: f32 = 6.02;
/// One image in so many is kept for the test.
const TEST_SHARE: usize = 5;
const SPLIT_SEED: u64 = 0xD161_7500;

/// Images and what they show.
#[derive(Clone, Debug, Default)]
pub(crate) struct Digits {
    /// Pixels, [`PIXELS`] an image, scaled to mean 0 and deviation 1: gradients descend faster.
    pub(crate) images: Vec<f32>,
    /// The digit of each image.
    pub(crate) labels: Vec<u32>,
}

impl Digits {
    /// How many images.
    pub(crate) fn len(&self) -> usize {
        self.labels.len()
    }

    /// Copies the images at `indices`, in that order.
    pub(crate) fn select(&self, indices: &[usize]) -> Self {
        let mut chosen = Self::default();
        for &index in indices {
            let pixels = index * PIXELS..(index + 1) * PIXELS;
            chosen.images.extend_from_slice(&self.images[pixels]);
            chosen.labels.push(self.labels[index]);
        }
        chosen
    }
}

/// What to learn from, and what to measure with.
#[derive(Clone, Debug)]
pub(crate) struct Split {
    /// Four fifths.
    pub(crate) train: Digits,
    /// The other fifth.
    pub(crate) test: Digits,
}

/// Reads the embedded file and splits it.
pub(crate) fn load() -> Result<Split> {
    let all =
        parse(CSV).context("the embedded digits.csv is damaged; restore it and build again")?;
    let mut order: Vec<usize> = (0..all.len()).collect();
    Random::new(SPLIT_SEED).shuffle(&mut order);
    let (test, train) = order.split_at(all.len() / TEST_SHARE);
    Ok(Split {
        train: all.select(train),
        test: all.select(test),
    })
}

/// An endless row of batches, each image once before any comes again.
#[derive(Debug)]
pub(crate) struct Batches {
    order: Vec<usize>,
    taken: usize,
    size: usize,
    random: Random,
}

impl Batches {
    /// Batches of `size` out of `images`; another `seed` gives another order.
    pub(crate) fn new(images: usize, size: usize, seed: u64) -> Self {
        Self {
            order: (0..images).collect(),
            taken: images,
            size: size.min(images),
            random: Random::new(seed),
        }
    }

    /// The indices of the next batch.
    pub(crate) fn draw(&mut self) -> &[usize] {
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
    for (number, line) in csv.lines().enumerate() {
        let values = line
            .split(',')
            .map(str::parse::<u8>)
            .collect::<Result<Vec<_>, _>>()
            .with_context(|| format!("line {}", number + 1))?;
        let Some((&label, pixels)) = values.split_last() else {
            continue;
        };
        ensure!(
            pixels.len() == PIXELS
                && usize::from(label) < CLASSES
                && pixels.iter().all(|pixel| *pixel <= WHITE),
            "line {} is not {PIXELS} pixels up to {WHITE} and a digit",
            number + 1
        );
        digits.labels.push(u32::from(label));
        let scaled = pixels
            .iter()
            .map(|pixel| (f32::from(*pixel) - MEAN) / DEVIATION);
        digits.images.extend(scaled);
    }
    Ok(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_split_is_complete_and_balanced() {
        let split = load().unwrap();
        assert_eq!((split.train.len(), split.test.len()), (1438, 359));
        assert_eq!(split.train.images.len(), 1438 * PIXELS);
        for digit in 0..CLASSES as u32 {
            let count = |set: &Digits| set.labels.iter().filter(|label| **label == digit).count();
            assert!(count(&split.test) >= 25, "too few {digit}s to test with");
            assert!(count(&split.train) >= 120, "too few {digit}s to learn from");
        }
    }

    #[test]
    fn pixels_are_centred_and_scaled() {
        let all = parse(CSV).unwrap();
        let pixels = || all.images.iter().map(|pixel| f64::from(*pixel));
        let count = all.images.len() as f64;
        let mean = pixels().sum::<f64>() / count;
        let variance = pixels().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
        assert!(
            mean.abs() < 0.01 && (variance - 1.0).abs() < 0.01,
            "{mean} {variance}"
        );
    }

    #[test]
    fn every_process_splits_alike() {
        let (one, two) = (load().unwrap(), load().unwrap());
        assert_eq!(one.test.labels, two.test.labels);
        // Pinned: with another split, the accuracies of two versions could not be compared.
        assert_eq!(one.test.labels[..12], [9, 2, 8, 1, 4, 8, 7, 2, 1, 5, 5, 9]);
    }

    #[test]
    fn damage_is_reported_with_its_line() {
        let good = CSV.lines().next().unwrap();
        let error = parse(&format!("{good}\n1,2,3\n")).unwrap_err();
        assert!(error.to_string().starts_with("line 2 "), "{error}");
        let error = parse(&good.replace("13", "x")).unwrap_err();
        assert!(error.to_string().starts_with("line 1"), "{error}");
    }

    #[test]
    fn an_epoch_shows_each_image_once() {
        let mut batches = Batches::new(10, 5, 1);
        let mut seen = batches.draw().to_vec();
        seen.extend_from_slice(batches.draw());
        seen.sort_unstable();
        assert_eq!(seen, (0..10).collect::<Vec<_>>());
        assert_eq!(batches.draw().len(), 5);
    }
}
