//! The `dsc` command: parses the command line, runs a subcommand, and turns its outcome into an exit code.

use clap::{Parser, Subcommand};
use dsc_cli::failure::{CHECK_FAILED, Failure, INPUT_WRONG};
use dsc_cli::output::{Output, style_of};
use dsc_cli::{build, check, device, docs, explain, import, schema};
use dsc_runtime::commands::{InspectArgs, RunArgs, VerifyArgs};
use std::ffi::OsStr;
use std::io::{self, Write};
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;

/// One YAML architecture spec in, prefill and decode kernels out.
#[derive(Parser)]
#[command(name = "dsc", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Find everything that is wrong with a spec, its budgets included
    Check(check::CheckArgs),
    /// Compile a spec into a bundle
    Build(build::BuildArgs),
    /// Show the kernels of a spec or bundle, their costs, and the reasons for every fusion
    Explain(explain::ExplainArgs),
    /// Show what is in a bundle
    Inspect(InspectArgs),
    /// Turn a published config.json into a spec
    Import(import::ImportArgs),
    /// Print the JSON Schema of specs
    Schema(schema::SchemaArgs),
    /// Generate tokens from a bundle and weights
    Run(RunArgs),
    /// Check a bundle's hashes, then every kernel against the interpreter
    Verify(VerifyArgs),
    /// Make conformance cases for a machine with a GPU
    #[cfg(feature = "cuda")]
    #[command(hide = true)]
    GpuCases(dsc_cli::gpu_cases::GpuCasesArgs),
    /// Write the generated pages of docs/
    #[command(name = "__docs", hide = true)]
    Docs(docs::DocsArgs),
}

impl Command {
    fn run(&self, output: &mut Output<'_>) -> Result<u8, Failure> {
        match self {
            Command::Check(args) => check::run(args, output)?,
            Command::Build(args) => build::run(args, output)?,
            Command::Explain(args) => explain::run(args, output)?,
            Command::Import(args) => import::run(args, output)?,
            Command::Schema(args) => schema::run(args, output)?,
            #[cfg(feature = "cuda")]
            Command::GpuCases(args) => dsc_cli::gpu_cases::run(args, output)?,
            Command::Docs(args) => docs::run(args, output)?,
            Command::Inspect(args) => return device::inspect(args, output),
            Command::Run(args) => return device::run(args, output),
            Command::Verify(args) => return device::verify(args, output),
        }
        Ok(0)
    }
}

fn main() -> ExitCode {
    panic::set_hook(Box::new(|info| {
        let place = info.location().map_or_else(String::new, |at| format!(" at {at}"));
        let _ = writeln!(io::stderr(), "note: stopped{place}");
    }));
    let code = panic::catch_unwind(AssertUnwindSafe(start)).unwrap_or_else(|payload| {
        let said = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
        let said = said.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
        let failure = Failure::Defect(said);
        report(&failure);
        failure.exit_code()
    });
    ExitCode::from(code)
}

fn start() -> u8 {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let (stdout, stderr) = (io::stdout(), io::stderr());
    let (out_style, notes_style) = (style_of(&stdout), style_of(&stderr));
    let (mut out, mut notes) = (stdout.lock(), stderr);
    let mut output = Output { out: &mut out, notes: &mut notes, out_style, notes_style };
    let done = cli.command.run(&mut output);
    let done = done.and_then(|code| out.flush().map(|()| code).map_err(Failure::from));
    done.unwrap_or_else(|failure| {
        report(&failure);
        failure.exit_code()
    })
}

/// What went wrong, for people and, where asked for, for programs.
fn report(failure: &Failure) {
    let stderr = io::stderr();
    let _ = stderr.lock().write_all(failure.render(style_of(&stderr)).as_bytes());
    if std::env::args_os().any(|arg| arg == OsStr::new("--json")) {
        let _ = writeln!(io::stdout(), "{:#}", failure.to_json());
    }
}

/// Help and version are what was asked for; anything else about the command line is wrong.
fn usage(error: &clap::Error) -> u8 {
    if error.use_stderr() {
        let failure = Failure::Input(error.to_string().trim_start_matches("error: ").trim_end().to_owned());
        report(&failure);
        return INPUT_WRONG;
    }
    if error.print().is_err() { CHECK_FAILED } else { 0 }
}
