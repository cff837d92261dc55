//! Stories about two pipes: one idea a file. Each ends by checking that nothing is left behind.

mod ahead;
mod at_once;
mod close;
mod credit;
mod cut;
mod fairness;
mod flush;
mod handshake;
mod hostile;
mod keep_alive;
mod parts;
mod proving;
mod random;
mod refuse;
mod reset;
mod wire_md;
