//! Where the tensors of calls land: on devices whose memory the CPU cannot read, of a client and of a server, each with its own.
#![allow(missing_docs, reason = "a test")]

#[path = "places/asked.rs"]
mod asked;
#[path = "places/toys.rs"]
mod kind;
#[path = "places/layers.rs"]
mod layers;
#[path = "places/liars.rs"]
mod liars;
#[path = "places/refused.rs"]
mod refused;
#[path = "places/scene.rs"]
mod scene;
#[path = "../../examples/src/bin/custom_channel/staged.rs"]
mod staged;
