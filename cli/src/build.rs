//! `dsc build`: a spec to a bundle.

use crate::compile::{self, Model, Scheduled};
use crate::emit::{self, Kind};
use crate::explain::PassArgs;
use crate::failure::Failure;
use crate::input::{self, DEFAULT_TARGET, Overrides};
use crate::output::{Output, grouped, plural, scaled};
use crate::{budget, spec_text};
use clap::Args;
use dsc_codegen::bundle::{self, BuildError, Report};
use dsc_codegen::cache::Cache;
use dsc_frontend::Checked;
use dsc_ir::diag::Diagnostic;
use dsc_ir::schedule::{Phase, Schedule};
use dsc_ir::target::Target;
use dsc_passes::explain::kv;
use indexmap::IndexMap;
use serde_json::json;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Arguments of `dsc build`.
#[derive(Debug, Clone, Args)]
pub struct BuildArgs {
    /// Architecture spec
    pub spec: PathBuf,
    /// Where to write the bundle: a folder, or an archive if it ends in .tar.zst; an older bundle is replaced
    #[arg(short, long, value_name = "BUNDLE")]
    pub output: PathBuf,
    /// Architectures or machines to make code for, or `all`
    #[arg(long, value_delimiter = ',', default_value = "cpu", value_name = "TARGETS")]
    pub target: Vec<String>,
    #[command(flatten)]
    /// Changes to the spec.
    pub overrides: Overrides,
    /// Intermediate forms to write into BUNDLE/emit/
    #[arg(long, value_delimiter = ',', value_name = "KINDS")]
    pub emit: Vec<Kind>,
    #[command(flatten)]
    /// Passes that run.
    pub passes: PassArgs,
    /// Writes the state after every pass into this folder
    #[arg(long, value_name = "DIR")]
    pub dump_passes: Option<PathBuf>,
    /// Generate every kernel anew
    #[arg(long)]
    pub no_cache: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Runs it.
///
/// # Errors
/// A spec with errors, exceeded budgets, files that cannot be written.
pub fn run(args: &BuildArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    let started = Instant::now();
    let targets = targets(&args.target)?;
    emit::check(&args.emit)?;
    let checked = input::spec(&args.spec, &args.overrides, output)?;
    let model = Model::new(&checked.spec)?;
    let mut scheduled = Vec::new();
    let scheduling = scheduling_targets(&targets)?;
    for target in &scheduling {
        let compiled = compile::phases(&model, &Phase::ALL, target, &args.passes.select())?;
        within_budgets(&model, &checked, &compiled)?;
        if let Some(folder) = &args.dump_passes {
            emit::dump_passes(&model, target, &args.passes.select(), folder)?;
        }
        scheduled.extend(compiled);
    }
    let schedules: Vec<Schedule> = scheduled.into_iter().map(|s| s.schedule).collect();
    let spec_text = spec_text::render(&checked.spec);
    let emit = emit::files(&args.emit, &model, &spec_text, &schedules, &scheduling)?;
    let bundle = bundle::Input {
        model: model.manifest_model(),
        spec_text,
        schedules: &schedules,
        targets: &targets,
        emit,
        emit_manifest: args.emit.contains(&Kind::Manifest),
    };
    let cache = if args.no_cache { None } else { Cache::of_user() };
    let report = bundle::build(&bundle, &args.output, cache.as_ref())?;
    done(args, &model, &targets, &schedules, &report, started.elapsed(), output)
}

/// The targets named, each architecture once.
fn targets(names: &[String]) -> Result<Vec<Target>, Failure> {
    let mut targets: IndexMap<String, Target> = IndexMap::new();
    for name in names {
        let found = match name.as_str() {
            "all" => dsc_frontend::targets::all()?.to_vec(),
            name => vec![input::target(name)?],
        };
        for target in found {
            // Of the machines of an architecture, `all` takes the default, which comes first.
            let known = targets.entry(target.name.clone()).or_insert_with(|| target.clone());
            if known.machine.name != target.machine.name && name != "all" {
                let (one, other) = (&known.machine.name, &target.machine.name);
                let message = format!("`{one}` and `{other}` are both {}: a bundle is for one of them", target.name);
                return Err(Failure::Input(message));
            }
        }
    }
    if let Some(gpu) = targets.values().find(|t| !t.is_cpu() && !cfg!(feature = "nvptx")) {
        let message = format!("this dsc was built without LLVM (feature `nvptx`) and has no code for {}", gpu.name);
        return Err(Failure::Machine(message));
    }
    Ok(targets.into_values().collect())
}

/// Schedules belong to GPU targets; the CPU runs any of them, or the default target's when it is alone.
fn scheduling_targets(targets: &[Target]) -> Result<Vec<Target>, Failure> {
    let gpus: Vec<Target> = targets.iter().filter(|t| !t.is_cpu()).cloned().collect();
    if gpus.is_empty() { Ok(vec![input::target(DEFAULT_TARGET)?]) } else { Ok(gpus) }
}

fn within_budgets(model: &Model, checked: &Checked, compiled: &[Scheduled]) -> Result<(), Failure> {
    let Some(first) = compiled.first() else { return Ok(()) };
    let facts = compile::facts(model, compiled, 1, 1);
    let exceeded = budget::check(&checked.spec, &kv(&first.schedule), &facts, &checked.spans);
    if exceeded.is_empty() {
        return Ok(());
    }
    let of_target = |finding: Diagnostic| finding.note(format!("in the schedules for {}", first.schedule.target));
    let findings = exceeded.into_iter().map(of_target).collect();
    Err(Failure::Findings { findings, sources: checked.sources.clone() })
}

impl From<BuildError> for Failure {
    fn from(error: BuildError) -> Failure {
        match error {
            BuildError::InTheWay { .. } => Failure::Input(error.to_string()),
            BuildError::Io { .. } => Failure::Machine(error.to_string()),
            BuildError::Internal { kernel, message } => Failure::Defect(format!("kernel `{kernel}`: {message}")),
        }
    }
}

fn done(
    args: &BuildArgs,
    model: &Model,
    targets: &[Target],
    schedules: &[Schedule],
    report: &Report,
    took: Duration,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let seconds = (took.as_secs_f64() * 1e3).round() / 1e3;
    let names: Vec<&str> = targets.iter().map(|t| t.name.as_str()).collect();
    if args.json {
        let missing = |(target, kernel, reason): &(String, String, String)| json!({"target": target, "kernel": kernel, "reason": reason});
        let schedule = |s: &Schedule| json!({"phase": s.phase, "target": s.target, "launches": s.launches.len()});
        return output.json(&json!({
            "ok": true,
            "exit_code": 0,
            "model": model.spec.name,
            "bundle": args.output,
            "targets": names,
            "schedules": schedules.iter().map(schedule).collect::<Vec<_>>(),
            "kernels": report.n_kernels,
            "cached": report.n_cached,
            "bytes": report.bytes,
            "missing": report.missing.iter().map(missing).collect::<Vec<_>>(),
            "seconds": seconds,
        }));
    }
    let mut text = format!("{} for {}\n", output.bold(&model.spec.name), names.join(", "));
    for s in schedules {
        let launches = grouped(s.launches.len() as u64);
        text.push_str(&format!("  {} for {}: {launches} launches a step\n", s.phase.name(), s.target));
    }
    let kernels = plural(report.n_kernels, "kernel");
    text.push_str(&format!("  {kernels}, {} of them from the cache\n", report.n_cached));
    for target in targets.iter().filter(|t| !t.is_cpu()) {
        text.push_str(&coverage(&target.name, report));
    }
    text.push_str(&format!("  {}B in {}, {seconds:.2} s\n", scaled(report.bytes), args.output.display()));
    output.text(&text)
}

/// Kernels that a GPU target has, and those it lacks by reason.
fn coverage(target: &str, report: &Report) -> String {
    let mut lacking: IndexMap<&str, Vec<&str>> = IndexMap::new();
    for (_, kernel, reason) in report.missing.iter().filter(|(t, _, _)| t == target) {
        lacking.entry(reason).or_default().push(kernel);
    }
    let n_lacking: usize = lacking.values().map(Vec::len).sum();
    let n_there = report.n_kernels.saturating_sub(n_lacking);
    let mut text = format!("  {target}: PTX for {n_there} of {}\n", plural(report.n_kernels, "kernel"));
    for (reason, kernels) in lacking {
        text.push_str(&format!("    none for {}: {reason}\n", kernels.join(", ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn an_architecture_is_built_once() {
        assert_eq!(targets(&names(&["cpu", "cpu"])).unwrap().len(), 1);
        assert_eq!(targets(&names(&["sm_9"])).unwrap_err().exit_code(), 2);
    }

    #[cfg(feature = "nvptx")]
    #[test]
    fn machines_of_one_architecture_exclude_each_other() {
        assert_eq!(targets(&names(&["h200", "sm_90a"])).unwrap().len(), 1);
        assert_eq!(targets(&names(&["h200", "h100"])).unwrap_err().exit_code(), 2);
        assert_eq!(targets(&names(&["all"])).unwrap().len(), 8);
    }

    #[test]
    fn the_cpu_alone_runs_the_default_schedules() {
        let cpu = targets(&names(&["cpu"])).unwrap();
        assert_eq!(scheduling_targets(&cpu).unwrap()[0].name, DEFAULT_TARGET);
    }
}
