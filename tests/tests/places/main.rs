//! Device placement of the tensors of calls. Client and server have devices of their own, whose memory the CPU cannot read.
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
