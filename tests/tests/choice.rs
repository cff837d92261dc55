//! Which channel carries a tensor: as the route says, at every border, over every transport; and as a context wants it.
#![allow(missing_docs, reason = "a test")]

#[path = "choice/borders.rs"]
mod borders;
#[path = "choice/frame.rs"]
mod frame;
#[path = "choice/processors.rs"]
mod processors;
#[path = "choice/scene.rs"]
mod scene;
#[path = "choice/wishes.rs"]
mod wishes;
