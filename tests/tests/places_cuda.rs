//! The `places` suite for CUDA devices, on a test driver: arguments, results, streams, references, batches, replicas, callbacks, refusals.
#![allow(missing_docs, reason = "a test")]

#[path = "places/asked.rs"]
mod asked;
#[allow(dead_code, reason = "stories of devices count more")]
#[path = "cuda/driver.rs"]
mod driver;
#[allow(dead_code, reason = "one stream is held at a time")]
#[path = "cuda/fixture.rs"]
mod fixture;
#[path = "places/gpus.rs"]
mod kind;
#[path = "places/layers.rs"]
mod layers;
#[path = "places/refused.rs"]
mod refused;
#[path = "places/scene.rs"]
mod scene;
