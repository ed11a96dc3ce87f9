//! `verify`: a bundle's hashes, then every kernel against the interpreter.

use super::{CommandError, Outcome, Streams, write_json};
use crate::bundle::Bundle;
use crate::check::{CheckOptions, Finding, Verdict, check};
use crate::model::default_threads;
use clap::Args;
use serde_json::json;
use std::path::PathBuf;

/// Arguments of `verify`.
#[derive(Debug, Clone, Args)]
pub struct VerifyArgs {
    /// Bundle folder or .tar.zst
    pub bundle: PathBuf,
    /// Device whose kernels are checked
    #[arg(long, default_value = "cpu")]
    pub device: String,
    /// Seed of the random inputs
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// CPU threads; all of the machine's by default
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Leaves out kernels whose parameters take more MiB
    #[arg(long, default_value_t = 256)]
    pub max_mib: u32,
    /// Leaves out kernels that take more than this many million operations
    #[arg(long, default_value_t = 2000)]
    pub max_mflops: u32,
    /// Prints one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Verifies it.
///
/// # Errors
/// A bundle that is refused, or code that cannot be compiled.
pub fn verify(args: &VerifyArgs, io: &mut Streams<'_>) -> Result<Outcome, CommandError> {
    let bundle = Bundle::load(&args.bundle)?;
    if args.device != "cpu" {
        return Err(CommandError::Usage(format!("kernels of the device `{}` cannot be checked yet", args.device)));
    }
    writeln!(io.notes, "{} files have the manifest's hashes", bundle.files().count())?;
    let options = CheckOptions {
        threads: args.threads.map_or_else(default_threads, usize::from),
        seed: args.seed,
        max_bytes: u64::from(args.max_mib) << 20,
        max_flops: u64::from(args.max_mflops) * 1_000_000,
    };
    let mut written = Ok(());
    let findings = check(&bundle, &options, |f| {
        if !args.json && written.is_ok() {
            written = writeln!(io.out, "{}", line(f));
        }
    })?;
    written?;
    let failed = findings.iter().filter(|f| matches!(f.verdict, Verdict::Differs(_))).count();
    let skipped = findings.iter().filter(|f| matches!(f.verdict, Verdict::Skipped(_))).count();
    if args.json {
        let kernels: Vec<_> = findings.iter().map(to_json).collect();
        write_json(io.out, &json!({ "failed": failed, "skipped": skipped, "kernels": kernels }))?;
    } else {
        let agree = findings.len() - failed - skipped;
        writeln!(io.out, "{agree} kernels agree, {failed} differ, {skipped} were left out")?;
    }
    Ok(if failed > 0 { Outcome::Failed } else { Outcome::Done })
}

fn line(f: &Finding) -> String {
    match &f.verdict {
        Verdict::Agrees { values, boundary: 0 } => format!("ok    {}: {values} values", f.kernel),
        Verdict::Agrees { values, boundary } => {
            format!("ok    {}: {values} values, {boundary} at a rounding boundary", f.kernel)
        }
        Verdict::Differs(reason) => format!("FAIL  {}: {reason}", f.kernel),
        Verdict::Skipped(reason) => format!("skip  {}: {reason}", f.kernel),
    }
}

fn to_json(f: &Finding) -> serde_json::Value {
    match &f.verdict {
        Verdict::Agrees { values, boundary } => {
            json!({ "kernel": f.kernel, "verdict": "agrees", "values": values, "boundary": boundary })
        }
        Verdict::Differs(reason) => json!({ "kernel": f.kernel, "verdict": "differs", "reason": reason }),
        Verdict::Skipped(reason) => json!({ "kernel": f.kernel, "verdict": "skipped", "reason": reason }),
    }
}
