//! Stories about two pipes: one idea a file. Each ends by looking that nothing is left behind.

mod ahead;
mod at_once;
mod close;
mod credit;
mod cut;
mod end;
mod fairness;
mod flood;
mod flush;
mod garbage;
mod go_away;
mod handshake;
mod hello_words;
mod hostile;
mod keep_alive;
mod lanes;
mod offered;
mod parts;
mod pieces;
mod proving;
mod random;
mod refuse;
mod reset;
mod skip;
mod split;
mod wire_md;
