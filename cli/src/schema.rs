//! `dsc schema`: JSON Schema of a spec, for editors.

use crate::failure::Failure;
use crate::output::Output;
use clap::Args;

/// Arguments of `dsc schema`.
#[derive(Debug, Clone, Args)]
pub struct SchemaArgs {
    /// Print one JSON document, which is what this command prints anyway
    #[arg(long)]
    pub json: bool,
}

/// Runs it.
///
/// # Errors
/// A stream that nobody reads.
pub fn run(_: &SchemaArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    output.json(&dsc_frontend::schema::schema())
}
