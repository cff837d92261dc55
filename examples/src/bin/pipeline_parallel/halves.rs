//! The two layers: parameters, gradients by candle's automatic differentiation, and SGD steps.

use anyhow::{Context as _, Result};
use candle_core::backprop::GradStore;
use candle_core::{Device, Tensor, Var};
use candle_nn::loss::cross_entropy;
use tensorpipe_examples::data::{CLASSES, PIXELS};
use tensorpipe_examples::random::Random;

/// Units between the halves.
const HIDDEN: usize = 128;
/// Learning rate of a step.
const RATE: f64 = 0.1;

/// One layer, and its gradients summed over the micro-batches of a step.
struct Layer {
    weight: Var,
    bias: Var,
    found: Option<(Tensor, Tensor)>,
}

impl Layer {
    /// Weights spread for rectified units (He et al.), biases zero.
    fn new(inputs: usize, outputs: usize, random: &mut Random) -> Result<Self> {
        let deviation = (2.0 / inputs as f32).sqrt();
        let weights = (0..inputs * outputs).map(|_| deviation * random.normal());
        let weights =
            Tensor::from_vec(weights.collect::<Vec<_>>(), (inputs, outputs), &Device::Cpu)?;
        let bias = Tensor::zeros(outputs, candle_core::DType::F32, &Device::Cpu)?;
        Ok(Self {
            weight: Var::from_tensor(&weights)?,
            bias: Var::from_tensor(&bias)?,
            found: None,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.matmul(&self.weight)?.broadcast_add(&self.bias)?)
    }

    fn gather(&mut self, gradients: &GradStore) -> Result<()> {
        let of = |variable: &Var| {
            let gradient = gradients.get(variable.as_tensor()).cloned();
            gradient.context("a parameter takes no part in the loss")
        };
        let (weight, bias) = (of(&self.weight)?, of(&self.bias)?);
        self.found = Some(match self.found.take() {
            Some((weights, biases)) => ((weights + weight)?, (biases + bias)?),
            None => (weight, bias),
        });
        Ok(())
    }

    /// Takes one step along the mean gradient of `micro_batches` micro-batches.
    fn step(&mut self, micro_batches: u32) -> Result<()> {
        let (weight, bias) = self.found.take().context("a step without gradients")?;
        let rate = RATE / f64::from(micro_batches);
        self.weight
            .set(&(self.weight.as_tensor() - (weight * rate)?)?)?;
        self.bias.set(&(self.bias.as_tensor() - (bias * rate)?)?)?;
        Ok(())
    }
}

/// The hidden layer.
pub(crate) struct FrontHalf(Layer);

impl FrontHalf {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(Layer::new(PIXELS, HIDDEN, &mut Random::new(7))?))
    }

    /// The activations of images.
    pub(crate) fn forward(&self, images: &[f32]) -> Result<Tensor> {
        let shape = (images.len() / PIXELS, PIXELS);
        let images = Tensor::from_slice(images, shape, &Device::Cpu)?;
        Ok(self.0.forward(&images)?.relu()?)
    }

    /// Adds this layer's gradients. `gradient` is the loss's gradient by `activations`, which [`FrontHalf::forward`] made.
    pub(crate) fn backward(&mut self, activations: &Tensor, gradient: &Tensor) -> Result<()> {
        // The derivative of this sum by `activations` is `gradient`. From there candle applies the chain rule.
        let gradients = (activations * gradient)?.sum_all()?.backward()?;
        self.0.gather(&gradients)
    }

    pub(crate) fn step(&mut self, micro_batches: u32) -> Result<()> {
        self.0.step(micro_batches)
    }
}

/// The output layer, and the loss.
pub(crate) struct BackHalf(Layer);

impl BackHalf {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(Layer::new(HIDDEN, CLASSES, &mut Random::new(8))?))
    }

    /// Returns the mean loss of a micro-batch, and its gradient by the activations.
    pub(crate) fn train(&mut self, activations: Tensor, labels: &[u32]) -> Result<(f32, Tensor)> {
        let activations = Var::from_tensor(&activations)?;
        let labels = Tensor::from_slice(labels, labels.len(), &Device::Cpu)?;
        let loss = cross_entropy(&self.0.forward(&activations)?, &labels)?;
        let gradients = loss.backward()?;
        self.0.gather(&gradients)?;
        let gradient = gradients.get(activations.as_tensor()).cloned();
        Ok((
            loss.to_scalar()?,
            gradient.context("the activations take no part in the loss")?,
        ))
    }

    pub(crate) fn step(&mut self, micro_batches: u32) -> Result<()> {
        self.0.step(micro_batches)
    }

    /// The share of the labels that is recognised, from 0 to 1.
    pub(crate) fn accuracy(&self, activations: &Tensor, labels: &[u32]) -> Result<f64> {
        let guesses = self.0.forward(activations)?.argmax(1)?.to_vec1::<u32>()?;
        let right = guesses.iter().zip(labels).filter(|(a, b)| a == b).count();
        Ok(right as f64 / labels.len().max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{MICRO_BATCH, SEED};
    use tensorpipe_examples::data::{self, Batches};

    /// Two halves fed with micro-batches compute the same gradients as one whole network fed with the whole batch.
    #[test]
    fn two_halves_learn_what_one_network_would() -> Result<()> {
        let split = data::load()?;
        let mut batches = Batches::new(split.train.count(), 4 * MICRO_BATCH, SEED);
        let (mut front, mut back) = (FrontHalf::new()?, BackHalf::new()?);
        let batch = split.train.select(batches.draw());
        let whole = {
            let images = Tensor::from_slice(&batch.images, (batch.count(), PIXELS), &Device::Cpu)?;
            let hidden = front.0.forward(&images)?.relu()?;
            let labels = Tensor::from_slice(&batch.labels, batch.count(), &Device::Cpu)?;
            let loss = cross_entropy(&back.0.forward(&hidden)?, &labels)?;
            loss.backward()?
        };
        for (images, labels) in batch
            .images
            .chunks(MICRO_BATCH * PIXELS)
            .zip(batch.labels.chunks(MICRO_BATCH))
        {
            let activations = front.forward(images)?;
            let (_, gradient) = back.train(activations.detach(), labels)?;
            front.backward(&activations, &gradient)?;
        }
        for layer in [&front.0, &back.0] {
            let (summed, _) = layer.found.as_ref().context("no gradients")?;
            let expected = whole.get(layer.weight.as_tensor()).context("no gradient")?;
            let apart = ((summed / 4.0)? - expected)?.abs()?.max_all()?;
            let apart = apart.to_scalar::<f32>()?;
            assert!(apart < 1e-5, "{apart}");
        }
        Ok(())
    }
}
