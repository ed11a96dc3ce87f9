//! The `dsc` command.
fn main() {}
