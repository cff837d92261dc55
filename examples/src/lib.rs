//! Member package.
