//! The `dsc-run` command: everything that runs on a device, with no compiler inside.
#![allow(clippy::print_stderr)] // a binary prints its errors

use clap::{Parser, Subcommand};
use dsc_runtime::commands::{self, CommandError, Outcome, Streams};
use std::io::{self, Write};
use std::process::ExitCode;

/// Runs, inspects and verifies dsc bundles.
#[derive(Parser)]
#[command(name = "dsc-run", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Generates tokens from a bundle and weights
    Run(commands::RunArgs),
    /// Shows what is in a bundle
    Inspect(commands::InspectArgs),
    /// Checks a bundle's hashes, then every kernel against the interpreter
    Verify(commands::VerifyArgs),
    /// Compares two dumps of one run on different devices
    Compare(commands::CompareArgs),
    /// Runs stored kernel cases on the GPU
    #[cfg(feature = "cuda")]
    Conformance(commands::ConformanceArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let (stdout, stderr) = (io::stdout(), io::stderr());
    let (mut out, mut notes) = (stdout.lock(), stderr.lock());
    let mut streams = Streams { out: &mut out, notes: &mut notes };
    let result = match &cli.command {
        Command::Run(args) => commands::run(args, &mut streams),
        Command::Inspect(args) => commands::inspect(args, &mut streams),
        Command::Verify(args) => commands::verify(args, &mut streams),
        Command::Compare(args) => commands::compare(args, &mut streams),
        #[cfg(feature = "cuda")]
        Command::Conformance(args) => commands::conformance(args, &mut streams),
    };
    let flushed = out.flush().map_err(CommandError::from);
    drop((out, notes));
    match result.and_then(|outcome| flushed.map(|()| outcome)) {
        Ok(outcome @ (Outcome::Done | Outcome::Failed)) => ExitCode::from(outcome.exit_code()),
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::from(e.exit_code())
        }
    }
}
