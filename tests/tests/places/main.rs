//! Where the tensors of calls land: on devices whose memory the CPU cannot read, of a client and of a server, each with its own.
#![allow(missing_docs, reason = "a test")]

mod asked;
#[path = "toys.rs"]
mod kind;
mod layers;
mod liars;
mod refused;
mod scene;
#[path = "../../../examples/src/bin/custom_channel/staged.rs"]
mod staged;
