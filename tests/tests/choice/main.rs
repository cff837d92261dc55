//! Which channel carries a tensor: as the route says, at every border, over every transport; and as a context wants it.
#![allow(missing_docs, reason = "a test")]

mod borders;
mod frame;
mod processors;
mod scene;
mod wishes;
