//! Names of the two halves, and of the values that they exchange.

/// The process that has the images and the hidden layer.
pub(crate) const FRONT: &str = "front";
/// The process that has the output layer and the loss.
pub(crate) const BACK: &str = "back";

/// The mean loss of a step, from the back.
pub(crate) const LOSS: &str = "loss";
/// The activations of the test images, in the last step.
pub(crate) const TEST: &str = "test";
/// The share of the test images that is recognised, from the back.
pub(crate) const ACCURACY: &str = "accuracy";

/// Images of a micro-batch.
pub(crate) const MICRO_BATCH: usize = 16;
/// Seed for drawing batches. Both halves draw the same ones: the front uses the images, the back the labels.
pub(crate) const SEED: u64 = 11;

/// Activations of a micro-batch, from the front.
pub(crate) fn activations(micro_batch: u32) -> String {
    format!("activations/{micro_batch}")
}

/// Gradients by these activations, from the back.
pub(crate) fn gradients(micro_batch: u32) -> String {
    format!("gradients/{micro_batch}")
}
