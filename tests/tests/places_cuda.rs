//! The same of CUDA devices, on a driver for tests: arguments, results, streams, references, batches, replicas, calls back, and what is refused.
#![allow(missing_docs, reason = "a test")]

#[path = "places/asked.rs"]
mod asked;
#[allow(dead_code, reason = "stories of devices count more")]
#[path = "cuda/driver.rs"]
mod driver;
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
