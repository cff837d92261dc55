//! Channel `mpt` between two contexts: when its connections are opened, who carries how much, and how it ends.
#![allow(missing_docs, reason = "a test")]

#[path = "mpt/liars.rs"]
mod liars;
#[path = "mpt/opening.rs"]
mod opening;
#[path = "mpt/proxy.rs"]
mod proxy;
#[path = "mpt/scene.rs"]
mod scene;
#[path = "mpt/shares.rs"]
mod shares;
