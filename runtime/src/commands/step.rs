//! `run --step`: one step of a model, kernel by kernel, against another execution on the same inputs.

use super::{CommandError, Outcome, RunArgs, Streams, write_json};
use crate::bundle::Bundle;
use crate::check::walk::{LaunchFinding, Reference, Walk, walk};
use crate::cpu::Kernels;
use crate::generate::{Request, before};
use crate::model::{Model, Rows, Want, default_threads};
use clap::ValueEnum;
use dsc_ir::schedule::Phase;
use serde_json::json;
use std::str::FromStr;

/// Which step, and which of its launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepChoice {
    /// Phase of the step.
    pub phase: Phase,
    /// The launch to compare; all without one.
    pub launch: Option<usize>,
}

impl FromStr for StepChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<StepChoice, String> {
        let (phase, launch) = match text.split_once(':') {
            Some(("prefill", rest)) => (Phase::Prefill, rest),
            Some(("decode", rest)) => (Phase::Decode, rest),
            Some((phase, _)) => return Err(format!("there is no phase `{phase}`; there are `prefill` and `decode`")),
            None => (Phase::Decode, text),
        };
        let launch = match launch {
            "all" => None,
            n => Some(n.parse().map_err(|_| format!("`{n}` is neither a launch's number nor `all`"))?),
        };
        Ok(StepChoice { phase, launch })
    }
}

/// What a device is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Against {
    /// The CPU's kernels.
    Cpu,
    /// The interpreter.
    Interpreter,
}

/// Runs up to the step and through it.
pub(super) fn run(
    args: &RunArgs,
    choice: StepChoice,
    bundle: &Bundle,
    model: &mut Model,
    request: &Request,
    io: &mut Streams<'_>,
) -> Result<Outcome, CommandError> {
    let request = Request { max_new_tokens: 1, trace: false, ..request.clone() };
    let default = if args.device == "cpu" { Against::Interpreter } else { Against::Cpu };
    let reference = match args.step_against.unwrap_or(default) {
        Against::Interpreter => Reference::Interpreter,
        Against::Cpu => {
            let threads = args.threads.map_or_else(default_threads, usize::from);
            Reference::Cpu(Box::new(Kernels::compile(bundle, threads, |i| bundle.manifest.kernels[i].cpu.is_some())?))
        }
    };
    let table = before(model, &request, choice.phase)?;
    let through = Walk { bundle, reference: &reference, only: choice.launch, stop_at_difference: false };
    let mut written = Ok(());
    let findings =
        model.with_input(choice.phase, &table, Want { rows: Rows::Last, probes: false }, |device, input| {
            walk(&through, device, choice.phase, input, |f| {
                if !args.json && written.is_ok() {
                    written = writeln!(io.out, "{}", line(f));
                }
            })
        })?;
    written?;
    let first = findings.iter().find(|f| f.differs.is_some());
    let failed = findings.iter().filter(|f| f.differs.is_some()).count();
    if args.json {
        let launches: Vec<_> = findings.iter().map(to_json).collect();
        write_json(io.out, &json!({ "phase": choice.phase.name(), "failed": failed, "launches": launches }))?;
    } else {
        let n = findings.len();
        writeln!(io.out, "{} step: {} of {n} launches agree", choice.phase.name(), n - failed)?;
        if let Some(f) = first {
            writeln!(io.out, "first to differ: launch {} `{}`", f.launch, f.kernel)?;
        }
    }
    Ok(if failed > 0 { Outcome::Failed } else { Outcome::Done })
}

fn line(f: &LaunchFinding) -> String {
    let word = if f.differs.is_some() { "FAIL" } else { "ok  " };
    let layer = f.layer.map_or(String::new(), |l| format!(" layer {l}"));
    let mut text =
        format!("{word}  {:>4} {}{layer}: {} values, worst difference {:.1e}", f.launch, f.kernel, f.values, f.worst);
    if f.boundary > 0 {
        text += &format!(", {} at a rounding boundary", f.boundary);
    }
    if let Some(reason) = f.differs.as_ref().or(f.first.as_ref()) {
        text += &format!("; first {reason}");
    }
    text
}

fn to_json(f: &LaunchFinding) -> serde_json::Value {
    json!({
        "launch": f.launch,
        "kernel": f.kernel,
        "layer": f.layer,
        "values": f.values,
        "boundary": f.boundary,
        "worst": f.worst,
        "first": f.first,
        "differs": f.differs,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices() {
        let choice = |phase, launch| Ok(StepChoice { phase, launch });
        assert_eq!("12".parse(), choice(Phase::Decode, Some(12)));
        assert_eq!("all".parse(), choice(Phase::Decode, None));
        assert_eq!("prefill:all".parse(), choice(Phase::Prefill, None));
        assert_eq!("decode:3".parse(), choice(Phase::Decode, Some(3)));
        assert!("warm:3".parse::<StepChoice>().is_err() && "-1".parse::<StepChoice>().is_err());
    }
}
