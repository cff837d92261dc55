//! The model: one hidden layer, its gradients by candle's automatic differentiation.

use std::collections::HashMap;

use anyhow::{Context as _, Result};
use candle_core::{Device, Var};
use candle_nn::loss::cross_entropy;
use tensorpipe::Tensor;
use tensorpipe_examples::data::{CLASSES, Digits, PIXELS};
use tensorpipe_examples::random::Random;

const HIDDEN: usize = 128;

/// Name and shape of every parameter; weights are `[inputs, outputs]`.
const LAYOUT: [(&str, &[usize]); 4] = [
    ("hidden.weight", &[PIXELS, HIDDEN]),
    ("hidden.bias", &[HIDDEN]),
    ("output.weight", &[HIDDEN, CLASSES]),
    ("output.bias", &[CLASSES]),
];

/// Tensors by the names of [`LAYOUT`]: parameters, or gradients of the same shapes.
pub(crate) type Tensors = HashMap<String, Tensor>;

/// Parameters to start from: weights spread for rectified units (He et al.), biases zero.
pub(crate) fn initial(seed: u64) -> Result<Tensors> {
    let mut random = Random::new(seed);
    let mut tensors = Tensors::new();
    for (name, shape) in LAYOUT {
        let deviation = match shape {
            [inputs, _] => (2.0 / *inputs as f32).sqrt(),
            _ => 0.0,
        };
        let elements = 0..shape.iter().product();
        let elements: Vec<f32> = elements.map(|_| deviation * random.normal()).collect();
        let shape: Vec<u64> = shape.iter().map(|dim| *dim as u64).collect();
        tensors.insert(name.to_owned(), Tensor::from_vec(elements, shape)?);
    }
    Ok(tensors)
}

/// The mean cross entropy over `batch`, and its derivative by each parameter.
pub(crate) fn gradients(parameters: Tensors, batch: &Digits) -> Result<(f32, Tensors)> {
    let variables = variables(parameters)?;
    let labels = candle_core::Tensor::from_slice(&batch.labels, batch.count(), &Device::Cpu)?;
    let loss = cross_entropy(&logits(&variables, batch)?, &labels)?;
    let found = loss.backward()?;
    let mut gradients = Tensors::new();
    for ((name, _), variable) in LAYOUT.iter().zip(&variables) {
        let gradient = found.get(variable.as_tensor());
        let gradient = gradient.with_context(|| format!("`{name}` has no part in the loss"))?;
        gradients.insert((*name).to_owned(), gradient.try_into()?);
    }
    Ok((loss.to_scalar()?, gradients))
}

/// The share of `set` that is recognised, from 0 to 1.
pub(crate) fn accuracy(parameters: Tensors, set: &Digits) -> Result<f64> {
    let guesses = logits(&variables(parameters)?, set)?
        .argmax(1)?
        .to_vec1::<u32>()?;
    let right = guesses
        .iter()
        .zip(&set.labels)
        .filter(|(guess, label)| guess == label);
    Ok(right.count() as f64 / set.count() as f64)
}

/// The parameters, in the order of [`LAYOUT`].
fn variables(mut parameters: Tensors) -> Result<Vec<Var>> {
    let variables = LAYOUT.iter().map(|(name, _)| {
        let parameter = parameters.remove(*name);
        let parameter =
            parameter.with_context(|| format!("the server has no parameter `{name}`"))?;
        Ok(Var::from_tensor(&parameter.try_into()?)?)
    });
    variables.collect()
}

fn logits(variables: &[Var], digits: &Digits) -> Result<candle_core::Tensor> {
    let shape = (digits.count(), PIXELS);
    let images = candle_core::Tensor::from_slice(&digits.images, shape, &Device::Cpu)?;
    let hidden = images
        .matmul(&variables[0])?
        .broadcast_add(&variables[1])?
        .relu()?;
    Ok(hidden.matmul(&variables[2])?.broadcast_add(&variables[3])?)
}
