//! Channel `mpt` between two contexts: when its connections are opened, who carries how much, and how it ends.
#![allow(missing_docs, reason = "a test")]

mod liars;
mod loss;
mod opening;
mod proxy;
mod scene;
mod shares;
mod stall;
