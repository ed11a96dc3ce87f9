//! `dsc check`: every finding about a spec in one run, its budgets included.

use crate::compile::Model;
use crate::failure::Failure;
use crate::input::{self, DEFAULT_TARGET, Overrides};
use crate::output::{Output, exact, plural};
use crate::{budget, compile};
use clap::Args;
use dsc_ir::schedule::Phase;
use dsc_passes::pipeline::Select;
use serde_json::json;
use std::path::PathBuf;

/// Arguments of `dsc check`.
#[derive(Debug, Clone, Args)]
pub struct CheckArgs {
    /// Architecture spec
    pub spec: PathBuf,
    #[command(flatten)]
    /// Changes to it.
    pub overrides: Overrides,
    /// Architecture or machine whose schedules the budgets are held against
    #[arg(long, default_value = DEFAULT_TARGET)]
    pub target: String,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Runs it.
///
/// # Errors
/// Findings, exceeded budgets.
pub fn run(args: &CheckArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    let target = input::target(&args.target)?;
    let loaded = dsc_frontend::load(&args.spec, &args.overrides.all());
    let Some(checked) = &loaded.checked else { return Err(Failure::of_spec(loaded)) };
    let model = Model::new(&checked.spec)?;
    let schedules = compile::phases(&model, &Phase::ALL, &target, &Select::All)?;
    let kv = dsc_passes::explain::kv(&schedules[0].schedule);
    let facts = compile::facts(&model, &schedules, 1, 1);
    let exceeded = budget::check(&checked.spec, &kv, &facts, &checked.spans);
    let mut findings = loaded.findings.clone();
    let failed = !exceeded.is_empty();
    findings.extend(exceeded);
    if failed {
        return Err(Failure::Findings { findings, sources: loaded.sources });
    }
    output.note(&dsc_frontend::render(&findings, &loaded.sources, output.notes_style));
    let name = &checked.spec.name;
    if args.json {
        return output.json(&json!({
            "ok": true,
            "exit_code": 0,
            "model": name,
            "target": target.name,
            "kv_bytes_per_token": kv.bytes_per_token,
            "findings": findings,
        }));
    }
    let bytes = exact(kv.bytes_per_token.0);
    let layers = plural(checked.spec.num_hidden_layers as usize, "layer");
    let warnings = match findings.len() {
        0 => String::new(),
        n => format!(", {}", plural(n, "warning")),
    };
    output.text(&format!("{name}: good, {layers}, {bytes} bytes of cache per token{warnings}\n"))
}
