//! Streams as arguments and results: order, ends, stalls, and what is left behind.

mod bounds;
mod ends;
pub(crate) mod flow;
mod hostile;
mod items;
mod unread;
