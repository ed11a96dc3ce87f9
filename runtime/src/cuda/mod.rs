//! NVIDIA GPUs through the driver API: a small launcher, and conformance cases run with it.
//!
//! - [`case`]: a launch with its inputs and expected results as a folder, written on any machine;
//! - [`compare`]: results against expectations;
//! - [`make`]: cases from a bundle, with the CPU kernels' results as expectations;
//! - [`device`] (feature `cuda`): modules, buffers, launches and times;
//! - [`conformance`] (feature `cuda`): runs every case of a folder;
//! - [`model`] (feature `cuda`): a whole bundle, behind the same door as the CPU.
//!
//! Nothing here needs a GPU to build, and a machine without a driver gives an error, never a panic.

pub mod case;
mod codes;
pub mod compare;
#[cfg(feature = "cuda")]
mod conformance;
#[cfg(feature = "cuda")]
pub mod device;
pub mod make;

#[cfg(feature = "cuda")]
pub mod model;

#[cfg(feature = "cuda")]
pub use conformance::{CaseResult, ConformanceError, ConformanceTable, conformance};
