//! Calls of many clients handled as one: what is gathered, who gets what, and who is touched by whom.

mod chaos;
mod faults;
mod gathered;
mod leaving;
mod model;
mod waits;
