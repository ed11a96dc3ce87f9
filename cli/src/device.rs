//! `dsc run`, `dsc inspect`, `dsc verify`: the commands of `dsc-run`, which does not need the compiler.

use crate::failure::Failure;
use crate::output::Output;
use dsc_runtime::commands::{self, CommandError, InspectArgs, Outcome, RunArgs, Streams, VerifyArgs};

/// Generates tokens.
///
/// # Errors
/// Wrong input or a failing machine.
pub fn run(args: &RunArgs, output: &mut Output<'_>) -> Result<u8, Failure> {
    shared(commands::run(args, &mut streams(output)))
}

/// Shows what is in a bundle.
///
/// # Errors
/// A bundle that is refused.
pub fn inspect(args: &InspectArgs, output: &mut Output<'_>) -> Result<u8, Failure> {
    shared(commands::inspect(args, &mut streams(output)))
}

/// Checks a bundle and its kernels.
///
/// # Errors
/// A bundle that is refused, a failing machine.
pub fn verify(args: &VerifyArgs, output: &mut Output<'_>) -> Result<u8, Failure> {
    shared(commands::verify(args, &mut streams(output)))
}

fn streams<'a>(output: &'a mut Output<'_>) -> Streams<'a> {
    Streams { out: output.out, notes: output.notes }
}

fn shared(done: Result<Outcome, CommandError>) -> Result<u8, Failure> {
    match done {
        Ok(outcome) => Ok(outcome.exit_code()),
        Err(CommandError::Output(error)) => Err(error.into()),
        Err(error) => Err(Failure::Command { exit_code: error.exit_code(), message: error.to_string() }),
    }
}
