//! dsc-runtime: loads a bundle and runs it, with no compiler inside.
//!
//! In reading order: the [`bundle`] and its checks, the [`checkpoint`] and the [`weights`] packed from it, the
//! [`executor`]'s door to devices, the [`cpu`] behind it, the [`model`] with its sequences, [`generate`], the
//! [`dump`] of what a run saw, the kernels' [`check`], and the [`commands`] over all that.

pub mod bundle;
pub mod check;
pub mod checkpoint;
pub mod commands;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod dump;
pub mod executor;
pub mod generate;
pub mod memory;
pub mod model;
pub mod prompts;
pub mod weights;
