//! One mistake a file: what the user is told, and where the error points.
//!
//! `TRYBUILD=overwrite cargo test -p tensorpipe-rpc --test ui` writes the expected output anew; read the difference.

#[test]
fn mistakes_are_told_where_they_are() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
