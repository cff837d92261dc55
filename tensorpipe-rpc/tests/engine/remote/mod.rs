//! Values that stay where they were computed: referred to, fetched, used before they are there, and let go of.

mod chains;
mod given_up;
mod house;
mod values;
