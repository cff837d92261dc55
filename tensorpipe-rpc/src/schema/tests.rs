//! What is traced, and what is compared.

mod agreement;
mod structures;
