//! NVIDIA GPUs through the driver API: a small launcher, and conformance cases run with it.
//!
//! - [`case`]: a launch with its inputs and expected results as a folder, written on any machine;
//! - [`compare`]: results against expectations;
//! - [`make`]: cases from a bundle, with the CPU kernels' results as expectations;
//! - [`device`] (feature `cuda`): modules, launches, graphs and times; [`buffer`]: the memory they work on;
//! - `fill` (feature `cuda`): random weights made where they are used;
//! - [`conformance`] (feature `cuda`): runs every case of a folder;
//! - [`model`] (feature `cuda`): a whole bundle, behind the same door as the CPU, with the [`target`] it takes;
//! - `marks` (feature `cuda`): names of kernels and phases for a profiler.
//!
//! Nothing here needs a GPU to build, and a machine without a driver gives an error, never a panic.

#[cfg(feature = "cuda")]
pub mod buffer;
pub mod case;
mod codes;
pub mod compare;
#[cfg(feature = "cuda")]
mod conformance;
#[cfg(feature = "cuda")]
pub mod device;
#[cfg(feature = "cuda")]
mod fill;
pub mod make;

#[cfg(feature = "cuda")]
mod marks;
#[cfg(feature = "cuda")]
pub mod model;
#[cfg(feature = "cuda")]
pub mod target;

#[cfg(feature = "cuda")]
pub use conformance::{CaseResult, ConformanceError, ConformanceTable, conformance};
