//! The same of CUDA devices, on a driver for tests: arguments, results, streams, references, batches, replicas, calls back.
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
#[allow(
    dead_code,
    reason = "only stories of what is refused look at all of it"
)]
#[path = "places/scene.rs"]
mod scene;
