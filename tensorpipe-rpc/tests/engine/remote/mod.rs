//! References to values that stay where they were computed: passing, fetching, using them before they exist, and releasing them.

mod chains;
mod given_up;
mod house;
mod values;
