//! `dsc explain`: what a spec compiles to, as figures and reasons.

mod table;

use crate::compile::{self, Model, Scheduled};
use crate::failure::Failure;
use crate::input::{self, DEFAULT_TARGET, Overrides, tokens};
use crate::output::Output;
use clap::{Args, ValueEnum};
use dsc_ir::schedule::Phase;
use dsc_ir::target::Target;
use dsc_passes::explain::{Explanation, PhaseRemark, kv};
use dsc_passes::pipeline::{PASSES, Select};
use std::path::PathBuf;

/// Arguments of `dsc explain`.
#[derive(Debug, Clone, Args)]
pub struct ExplainArgs {
    /// Architecture spec, or a bundle (folder or .tar.zst)
    #[arg(value_name = "SPEC|BUNDLE")]
    pub spec: PathBuf,
    #[command(flatten)]
    /// Changes to the spec.
    pub overrides: Overrides,
    /// Only this phase
    #[arg(long)]
    pub phase: Option<PhaseName>,
    /// Only kernels whose name contains this text (`*` stands for anything), with parameters and costs in full
    #[arg(long, value_name = "PATTERN")]
    pub kernel: Option<String>,
    /// Architecture or machine the schedules are for
    #[arg(long, default_value = DEFAULT_TARGET)]
    pub target: String,
    /// Sequences of a step
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub batch: u64,
    /// Tokens of context of each sequence, such as 4096 or 64k
    #[arg(long, default_value = "64k", value_parser = tokens, value_name = "TOKENS")]
    pub context: u64,
    #[command(flatten)]
    /// Passes that run.
    pub passes: PassArgs,
    /// Only cache sizes and the distinct kernels
    #[arg(long, conflicts_with_all = ["kernel", "remarks"])]
    pub brief: bool,
    /// Every decision of the passes instead of a summary
    #[arg(long)]
    pub remarks: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// A phase on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PhaseName {
    /// One row of each sequence.
    Decode,
    /// Many rows of few sequences.
    Prefill,
}

impl PhaseName {
    fn phase(self) -> Phase {
        match self {
            PhaseName::Decode => Phase::Decode,
            PhaseName::Prefill => Phase::Prefill,
        }
    }
}

/// Which optional passes run.
#[derive(Debug, Clone, Default, Args)]
pub struct PassArgs {
    /// `none`: one kernel per op
    #[arg(long, value_name = "none", value_parser = ["none"])]
    pub fuse: Option<String>,
    /// Of the fusing passes, only this one
    #[arg(long, value_name = "PASS", conflicts_with = "fuse", value_parser = fusing_passes())]
    pub only_pass: Option<String>,
}

/// Names of the passes that can be left out.
fn fusing_passes() -> Vec<&'static str> {
    PASSES
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| name.starts_with("fuse-") || name.starts_with("merge-"))
        .collect()
}

impl PassArgs {
    /// As the pipeline takes it.
    pub fn select(&self) -> Select {
        match (&self.fuse, &self.only_pass) {
            (Some(_), _) => Select::NoFusion,
            (None, Some(pass)) => Select::Only(pass.clone()),
            (None, None) => Select::All,
        }
    }
}

/// Runs it.
///
/// # Errors
/// A spec with errors, a target that there is not, a damaged bundle.
pub fn run(args: &ExplainArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    let target = input::target(&args.target)?;
    let checked = input::spec_or_bundle(&args.spec, &args.overrides, output)?;
    let model = Model::new(&checked.spec)?;
    let phases = args.phase.map_or(vec![Phase::Decode, Phase::Prefill], |p| vec![p.phase()]);
    let scheduled = compile::phases(&model, &phases, &target, &args.passes.select())?;
    let explanation = explanation(&model, &scheduled, &target, args);
    if let Some(pattern) = args.kernel.as_deref().filter(|_| explanation.is_empty_of_kernels()) {
        return Err(Failure::Input(format!("no kernel's name matches `{pattern}`")));
    }
    if args.json {
        return output.json(&explanation.0);
    }
    let text = table::text(&explanation.0, &target, args, output);
    output.text(&text)
}

/// An explanation, cut to the kernels asked for.
struct Cut(Explanation);

impl Cut {
    fn is_empty_of_kernels(&self) -> bool {
        self.0.phases.values().all(|p| p.once.is_empty() && p.layer_kinds.iter().all(|kind| kind.kernels.is_empty()))
    }
}

fn explanation(model: &Model, scheduled: &[Scheduled], target: &Target, args: &ExplainArgs) -> Cut {
    let mut phases = compile::facts(model, scheduled, args.batch, args.context);
    if let Some(pattern) = &args.kernel {
        for facts in phases.values_mut() {
            facts.once.retain(|k| matches(pattern, &k.name));
            facts.layer_kinds.iter_mut().for_each(|kind| kind.kernels.retain(|k| matches(pattern, &k.name)));
        }
    }
    let remarks = scheduled.iter().flat_map(|s| {
        let phase = s.phase.name();
        s.remarks.iter().map(move |remark| PhaseRemark { phase: phase.into(), remark: remark.clone() })
    });
    Cut(Explanation {
        model: model.spec.name.clone(),
        target: target.name.clone(),
        kv: kv(&scheduled[0].schedule),
        phases,
        remarks: remarks.collect(),
    })
}

/// Whether the parts of a pattern around its `*` occur in a name, in order.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let mut rest = name;
    pattern.split('*').all(|part| match rest.find(part) {
        Some(at) => {
            rest = &rest[at + part.len()..];
            true
        }
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        assert!(matches("attention", "sparse_attention_rope"));
        assert!(matches("sparse*rope", "sparse_attention_rope"));
        assert!(!matches("rope*sparse", "sparse_attention_rope"));
        assert!(matches("*", "x"));
    }

    #[test]
    fn fusing_passes_are_a_part_of_all() {
        assert!(fusing_passes().contains(&"merge-linears") && !fusing_passes().contains(&"plan-buffers"));
    }
}
