//! Which channel carries a tensor: the one that the route names, at every size limit and transport, or that the context asks for.
#![allow(missing_docs, reason = "a test")]

mod borders;
mod frame;
mod processors;
mod scene;
mod wishes;
