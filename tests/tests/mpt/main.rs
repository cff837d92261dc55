//! Channel `mpt` between two contexts: when it opens its connections, how it spreads the load over them, and how it ends.
#![allow(missing_docs, reason = "a test")]

mod liars;
mod loss;
mod opening;
mod proxy;
mod scene;
mod shares;
mod stall;
