//! Streams as arguments and results: order, ends, stalls, and what is left behind.

mod bounds;
mod ends;
mod flow;
mod items;
mod strangers;
