//! The model: one hidden layer, its gradients by candle's automatic differentiation.
//!
//! Parameters live on the server as plain tensors under the names of [`LAYOUT`]; a worker turns what it pulled into a
//! [`Network`] for one batch, so nothing here outlives a step.

use std::collections::HashMap;

use anyhow::{Context as _, Result};
use candle_core::{Device, Var};
use candle_nn::loss::cross_entropy;
use tensorpipe::Tensor;

use crate::data::{CLASSES, Digits, PIXELS};
use crate::random::Random;

const HIDDEN: usize = 128;

/// Name and shape of every parameter; weights are `[inputs, outputs]`.
pub(crate) const LAYOUT: [(&str, &[usize]); 4] = [
    ("hidden.weight", &[PIXELS, HIDDEN]),
    ("hidden.bias", &[HIDDEN]),
    ("output.weight", &[HIDDEN, CLASSES]),
    ("output.bias", &[CLASSES]),
];

/// Tensors by the names of [`LAYOUT`]: parameters, or gradients of the same shapes.
pub(crate) type Tensors = HashMap<String, Tensor>;

/// What a worker pulls.
pub(crate) fn names() -> Vec<String> {
    LAYOUT.iter().map(|(name, _)| (*name).to_owned()).collect()
}

/// Parameters to start from: weights spread for rectified units (He et al.), biases zero.
pub(crate) fn initial(seed: u64) -> Result<Tensors> {
    let mut random = Random::new(seed);
    let tensor = |shape: &[usize]| -> Result<Tensor> {
        let deviation = match shape {
            [inputs, _] => (2.0 / *inputs as f32).sqrt(),
            _ => 0.0,
        };
        let elements = (0..shape.iter().product())
            .map(|_| deviation * random.normal())
            .collect();
        let shape: Vec<u64> = shape.iter().map(|dim| *dim as u64).collect();
        Ok(Tensor::from_vec::<f32>(elements, shape)?)
    };
    let tensors = LAYOUT.map(|(_, shape)| shape).into_iter().map(tensor);
    names()
        .into_iter()
        .zip(tensors)
        .map(|(name, tensor)| Ok((name, tensor?)))
        .collect()
}

/// Loss and gradients of one batch.
#[derive(Debug)]
pub(crate) struct Gradients {
    /// Mean cross entropy over the batch.
    pub(crate) loss: f32,
    /// Its derivative by each parameter.
    pub(crate) tensors: Tensors,
}

/// The model with the parameters of one moment.
#[derive(Debug)]
pub(crate) struct Network {
    parameters: [Var; LAYOUT.len()],
}

impl Network {
    /// Moves the parameters out of `tensors`.
    pub(crate) fn new(mut tensors: Tensors) -> Result<Self> {
        let mut variable = |name: &str| -> Result<Var> {
            let tensor = tensors
                .remove(name)
                .with_context(|| format!("the server has no parameter `{name}`"))?;
            Ok(Var::from_tensor(&tensor.try_into()?)?)
        };
        let [first, second, third, fourth] = LAYOUT.map(|(name, _)| variable(name));
        Ok(Self {
            parameters: [first?, second?, third?, fourth?],
        })
    }

    /// Loss over `batch` and how it changes with each parameter.
    pub(crate) fn gradients(&self, batch: &Digits) -> Result<Gradients> {
        let labels = candle_core::Tensor::from_slice(&batch.labels, batch.len(), &Device::Cpu)?;
        let loss = cross_entropy(&self.logits(batch)?, &labels)?;
        let gradients = loss.backward()?;
        let mut tensors = Tensors::new();
        for ((name, _), variable) in LAYOUT.iter().zip(&self.parameters) {
            let gradient = gradients
                .get(variable.as_tensor())
                .with_context(|| format!("`{name}` does not take part in the loss"))?;
            tensors.insert((*name).to_owned(), gradient.try_into()?);
        }
        Ok(Gradients {
            loss: loss.to_scalar()?,
            tensors,
        })
    }

    /// The share of `set` that is recognised, from 0 to 1.
    pub(crate) fn accuracy(&self, set: &Digits) -> Result<f64> {
        let guesses = self.logits(set)?.argmax(1)?.to_vec1::<u32>()?;
        let right = guesses
            .iter()
            .zip(&set.labels)
            .filter(|(guess, label)| guess == label);
        Ok(right.count() as f64 / set.len().max(1) as f64)
    }

    fn logits(&self, digits: &Digits) -> Result<candle_core::Tensor> {
        let [hidden_weight, hidden_bias, output_weight, output_bias] = &self.parameters;
        let shape = (digits.len(), PIXELS);
        let images = candle_core::Tensor::from_slice(&digits.images, shape, &Device::Cpu)?;
        let hidden = images
            .matmul(hidden_weight)?
            .broadcast_add(hidden_bias)?
            .relu()?;
        Ok(hidden.matmul(output_weight)?.broadcast_add(output_bias)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data;

    #[test]
    fn gradients_have_the_shapes_of_the_parameters() {
        let parameters = initial(1).unwrap();
        let batch = data::load().unwrap().train.select(&[0, 1, 2]);
        let found = Network::new(parameters.clone())
            .unwrap()
            .gradients(&batch)
            .unwrap();
        assert!((1.0..5.0).contains(&found.loss), "loss {}", found.loss);
        assert_eq!(found.tensors.len(), LAYOUT.len());
        for (name, gradient) in &found.tensors {
            assert_eq!(gradient.shape(), parameters[name].shape(), "{name}");
            let elements = gradient.as_slice::<f32>().unwrap();
            assert!(
                elements.iter().any(|element| *element != 0.0),
                "{name} is all zero"
            );
        }
    }

    #[test]
    fn a_step_along_the_gradient_changes_the_loss_as_predicted() {
        let batch = data::load()
            .unwrap()
            .train
            .select(&(0..32).collect::<Vec<_>>());
        let mut parameters = initial(2).unwrap();
        let before = Network::new(parameters.clone())
            .unwrap()
            .gradients(&batch)
            .unwrap();
        let (step, mut predicted) = (1e-3, 0.0);
        for (name, gradient) in &before.tensors {
            let values = parameters.get_mut(name).unwrap().make_mut::<f32>().unwrap();
            for (value, slope) in values.iter_mut().zip(gradient.as_slice::<f32>().unwrap()) {
                *value -= step * slope;
                predicted += step * slope * slope;
            }
        }
        let after = Network::new(parameters.clone())
            .unwrap()
            .gradients(&batch)
            .unwrap();
        let found = before.loss - after.loss;
        assert!(
            (found / predicted - 1.0).abs() < 0.05,
            "{found} against {predicted}"
        );
    }

    #[test]
    fn a_missing_parameter_is_named() {
        let mut parameters = initial(1).unwrap();
        parameters.remove("hidden.bias");
        let error = Network::new(parameters.clone()).unwrap_err();
        assert!(error.to_string().contains("`hidden.bias`"), "{error}");
    }
}
