//! Remote calls whose tensors travel over a [`tensorpipe`] pipe.

pub mod codec;
pub mod schema;
