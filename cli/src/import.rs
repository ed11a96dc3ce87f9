//! `dsc import`: a published `config.json` to a spec.

use crate::failure::Failure;
use crate::output::{Output, plural};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;

/// Arguments of `dsc import`.
#[derive(Debug, Clone, Args)]
pub struct ImportArgs {
    /// Published configuration of a model
    pub config: PathBuf,
    /// Where to write the spec; standard output when left out
    #[arg(short, long, value_name = "SPEC.yaml")]
    pub output: Option<PathBuf>,
    /// Print one JSON document, with the spec's text and the findings
    #[arg(long)]
    pub json: bool,
}

/// Runs it. Findings that are only warnings do not keep the spec from being written.
///
/// # Errors
/// A configuration that describes no model dsc knows, files that cannot be read or written.
pub fn run(args: &ImportArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    let name = args.config.display().to_string();
    let text = dsc_frontend::read(&args.config)?;
    let imported = dsc_frontend::import::import(&name, &text);
    let Some(yaml) = &imported.yaml else {
        return Err(Failure::Findings { findings: imported.findings, sources: imported.sources });
    };
    output.note(&imported.render(output.notes_style));
    if let Some(path) = &args.output {
        let failed = |error| Failure::Machine(format!("cannot write `{}`: {error}", path.display()));
        std::fs::write(path, yaml).map_err(failed)?;
    }
    if args.json {
        return output.json(&json!({
            "ok": true,
            "exit_code": 0,
            "spec": yaml,
            "written_to": args.output,
            "findings": imported.findings,
        }));
    }
    match &args.output {
        Some(path) => {
            let warnings = match imported.findings.len() {
                0 => String::new(),
                n => format!(", {}", plural(n, "warning")),
            };
            output.text(&format!("wrote {}{warnings}\n", path.display()))
        }
        None => output.text(yaml),
    }
}
