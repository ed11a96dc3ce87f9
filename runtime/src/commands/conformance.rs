//! `conformance`: single kernels of a GPU on stored inputs, against stored results.

use super::{CommandError, Outcome, Streams};
use clap::Args;
use std::path::PathBuf;

/// Arguments of `conformance`.
#[derive(Debug, Clone, Args)]
pub struct ConformanceArgs {
    /// Folder of cases
    pub cases: PathBuf,
}

/// Runs all cases on GPU 0.
///
/// # Errors
/// No GPU, or a folder that is no folder of cases.
pub fn conformance(args: &ConformanceArgs, io: &mut Streams<'_>) -> Result<Outcome, CommandError> {
    let table = crate::cuda::conformance(&args.cases)?;
    write!(io.out, "{table}")?;
    Ok(if table.passed() { Outcome::Done } else { Outcome::Failed })
}
