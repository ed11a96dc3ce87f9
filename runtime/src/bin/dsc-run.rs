//! The `dsc-run` command.
fn main() {}
