//! The `dsc` command as a library: one module per subcommand, and [`compile`], which they share.

pub mod compile;
