//! The `dsc` command as a library: one module per subcommand, and what they share.
//!
//! Subcommands: [`check`], [`build`], [`explain`], [`import`], [`schema`], and [`device`] for those that run a
//! bundle. Shared: [`compile`] from spec to schedules, [`budget`], [`spec_text`], [`emit`] for intermediate forms,
//! [`input`], [`output`], [`failure`]. [`docs`] writes the generated pages of `docs/`, and
//! `gpu_cases` conformance cases for machines with a GPU.

pub mod budget;
pub mod build;
pub mod check;
pub mod compile;
pub mod device;
pub mod docs;
pub mod emit;
pub mod explain;
pub mod failure;
#[cfg(feature = "cuda")]
pub mod gpu_cases;
pub mod import;
pub mod input;
pub mod output;
pub mod schema;
pub mod spec_text;
