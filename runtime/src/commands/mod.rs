//! The commands of `dsc-run`, which `dsc` shares: arguments in, text out. Only binaries print and exit.

mod compare;
#[cfg(feature = "cuda")]
mod conformance;
mod inspect;
mod run;
mod step;
mod verify;

pub use compare::{CompareArgs, compare};
#[cfg(feature = "cuda")]
pub use conformance::{ConformanceArgs, conformance};
pub use inspect::{InspectArgs, inspect};
pub use run::{GpuArgs, RunArgs, TableMemory, run};
pub use step::{Against, StepChoice};
pub use verify::{VerifyArgs, verify};

use crate::bundle::BundleError;
use crate::dump::DumpError;
use crate::executor::DeviceError;
use crate::prompts::PromptError;
use std::io::Write;

/// How a command ended that did its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All is well: exit code 0.
    Done,
    /// What was checked failed: exit code 1.
    Failed,
}

impl Outcome {
    /// Exit code.
    pub fn exit_code(self) -> u8 {
        match self {
            Outcome::Done => 0,
            Outcome::Failed => 1,
        }
    }
}

/// Why a command could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The bundle.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// The prompts.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// Device or weights.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Conformance cases or the GPU they need.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Conformance(#[from] crate::cuda::ConformanceError),
    /// The dump.
    #[error(transparent)]
    Dump(#[from] DumpError),
    /// Arguments that do not go together.
    #[error("{0}")]
    Usage(String),
    /// Output that nobody takes.
    #[error("cannot write the output: {0}")]
    Output(#[from] std::io::Error),
}

impl CommandError {
    /// Exit code: 2 for wrong input, 3 for the machine.
    pub fn exit_code(&self) -> u8 {
        match self {
            CommandError::Bundle(e) => e.exit_code(),
            CommandError::Prompt(e) => e.exit_code(),
            CommandError::Device(e) => e.exit_code(),
            #[cfg(feature = "cuda")]
            CommandError::Conformance(crate::cuda::ConformanceError::Cuda(_)) => 3,
            #[cfg(feature = "cuda")]
            CommandError::Conformance(crate::cuda::ConformanceError::Case(_)) => 2,
            CommandError::Usage(_) => 2,
            CommandError::Dump(_) | CommandError::Output(_) => 3,
        }
    }
}

/// Where a command writes: results, and notes for people, which are never part of JSON output.
pub struct Streams<'a> {
    /// Results.
    pub out: &'a mut dyn Write,
    /// Notes.
    pub notes: &'a mut dyn Write,
}

/// Writes a JSON document.
fn write_json(out: &mut dyn Write, value: &serde_json::Value) -> Result<(), CommandError> {
    let text = serde_json::to_string_pretty(value).map_err(|e| CommandError::Usage(e.to_string()))?;
    Ok(writeln!(out, "{text}")?)
}
