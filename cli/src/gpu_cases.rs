//! `dsc gpu-cases`: conformance cases for a machine with a GPU, from the kernels of specs.

use crate::compile::{self, Model};
use crate::explain;
use crate::failure::Failure;
use crate::input::{self, DEFAULT_TARGET, Overrides};
use crate::output::{Output, scaled};
use crate::spec_text;
use clap::Args;
use dsc_codegen::bundle;
use dsc_codegen::cache::Cache;
use dsc_ir::schedule::{Phase, Schedule};
use dsc_ir::target::Target;
use dsc_passes::pipeline::Select;
use dsc_runtime::bundle::Bundle;
use dsc_runtime::cuda::case::{self, CaseError, Skipped};
use dsc_runtime::cuda::make::{self, Made, MakeError, MakeOptions};
use dsc_runtime::model::default_threads;
use std::fs;
use std::path::{Path, PathBuf};

/// Arguments of `dsc gpu-cases`.
#[derive(Debug, Clone, Args)]
pub struct GpuCasesArgs {
    /// Architecture specs
    #[arg(required = true)]
    pub specs: Vec<PathBuf>,
    /// Folder for the cases; those of an earlier run are removed
    #[arg(short, long, value_name = "FOLDER")]
    pub output: PathBuf,
    /// Architecture or machine to make them for
    #[arg(long, default_value = DEFAULT_TARGET)]
    pub target: String,
    /// Only kernels whose name contains this text (`*` stands for anything)
    #[arg(long, value_name = "PATTERN")]
    pub kernel: Option<String>,
    /// Seed of the inputs
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Leave out kernels whose parameters take more MiB
    #[arg(long, default_value_t = 256)]
    pub max_mib: u32,
    /// Leave out kernels that take more than this many million operations
    #[arg(long, default_value_t = 2000)]
    pub max_mflops: u32,
    /// Take PTX even where there is machine code
    #[arg(long)]
    pub ptx: bool,
    #[command(flatten)]
    /// Changes to the specs.
    pub overrides: Overrides,
}

impl GpuCasesArgs {
    fn wants(&self, kernel: &str) -> bool {
        self.kernel.as_deref().is_none_or(|pattern| explain::matches(pattern, kernel))
    }
}

/// Makes them.
///
/// # Errors
/// A spec with errors, a folder that holds something else, a machine that fails.
pub fn run(args: &GpuCasesArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    let target = input::target(&args.target)?;
    if target.is_cpu() {
        return Err(Failure::Input(format!("`{}` is no GPU", args.target)));
    }
    prepare(&args.output)?;
    let mut all = Vec::new();
    for spec in &args.specs {
        all.extend(of_spec(args, spec, &target, output)?);
    }
    let skipped: Vec<Skipped> = all.iter().filter_map(|made| made.clone().skipped()).collect();
    case::write_skipped(&args.output, &skipped)?;
    let (n_cases, bytes) = (all.len() - skipped.len(), folder_bytes(&args.output));
    let (out, n_skipped) = (args.output.display(), skipped.len());
    output.text(&format!("{n_cases} cases, {n_skipped} skipped, {}B in {out}\n", scaled(bytes)))
}

/// Cases of the distinct kernels of both phases of a spec.
fn of_spec(args: &GpuCasesArgs, spec: &Path, target: &Target, output: &mut Output<'_>) -> Result<Vec<Made>, Failure> {
    let prefix = spec.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let checked = input::spec(spec, &args.overrides, output)?;
    let model = Model::new(&checked.spec)?;
    let compiled = compile::phases(&model, &Phase::ALL, target, &Select::All)?;
    let schedules: Vec<Schedule> = compiled.into_iter().map(|s| s.schedule).collect();
    let targets = [input::target("cpu")?, target.clone()];
    let built = bundle::Input {
        model: model.manifest_model(),
        spec_text: spec_text::render(&checked.spec),
        schedules: &schedules,
        targets: &targets,
        emit: Vec::new(),
        emit_manifest: false,
    };
    let place = tempfile::tempdir()?;
    let folder = place.path().join("bundle");
    let report = bundle::build(&built, &folder, Cache::of_user().as_ref())?;
    let bundle = Bundle::load(&folder)?;
    let options = MakeOptions {
        target: &target.name,
        prefix: &prefix,
        seed: args.seed,
        threads: default_threads(),
        max_bytes: u64::from(args.max_mib) << 20,
        max_flops: u64::from(args.max_mflops) * 1_000_000,
        ptx: args.ptx,
    };
    let mut text = Ok(());
    let mut show = |made: &Made| {
        if text.is_ok() {
            text = output.text(&line(made));
        }
    };
    let mut all = make::make(&bundle, &options, |kernel| args.wants(kernel), &args.output, &mut show)?;
    for (_, kernel, reason) in report.missing.into_iter().filter(|(_, kernel, _)| args.wants(kernel)) {
        let made = Made::Skipped(Skipped { name: format!("{prefix}.{kernel}"), reason });
        show(&made);
        all.push(made);
    }
    text.map(|()| all)
}

fn line(made: &Made) -> String {
    match made {
        Made::Case(name) => format!("case     {name}\n"),
        Made::Skipped(s) => format!("skipped  {}: {}\n", s.name, s.reason),
    }
}

/// Makes the folder, or empties it of earlier cases.
fn prepare(folder: &Path) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::Machine(format!("cannot write {}: {e}", folder.display()));
    fs::create_dir_all(folder).map_err(failed)?;
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.join(case::CASE_FILE).is_file() {
            fs::remove_dir_all(&path).map_err(failed)?;
        } else if path.file_name().is_none_or(|name| name != case::SKIPPED_FILE) {
            return Err(Failure::Input(format!("{} is no conformance case; choose another folder", path.display())));
        }
    }
    Ok(())
}

/// Bytes of all files, as far as they can be seen.
fn folder_bytes(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = |entry: fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() => folder_bytes(&entry.path()),
        Ok(data) => data.len(),
        Err(_) => 0,
    };
    entries.map(bytes).sum()
}

impl From<MakeError> for Failure {
    fn from(error: MakeError) -> Failure {
        Failure::Command { exit_code: error.exit_code(), message: error.to_string() }
    }
}

impl From<CaseError> for Failure {
    fn from(error: CaseError) -> Failure {
        Failure::Machine(error.to_string())
    }
}
