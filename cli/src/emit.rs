//! Intermediate forms for people: `--emit` into `BUNDLE/emit/`, `--dump-passes` into any folder.
//!
//! No runtime reads them.

use crate::compile::Model;
use crate::failure::Failure;
use clap::ValueEnum;
use dsc_codegen::cpu;
use dsc_codegen::loops::Func;
use dsc_codegen::lower::{self, LowerOptions};
use dsc_ir::kernel::{Kernel, Role};
use dsc_ir::schedule::{Arg, Launch, Phase, Schedule};
use dsc_ir::target::Target;
use dsc_passes::pipeline::{Dump, Select};
use rayon::prelude::*;
use std::collections::HashMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// An intermediate form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// The resolved spec
    Spec,
    /// The op graph of a step, before all passes
    Ir,
    /// Launches and buffers of every schedule
    Schedule,
    /// Loop programs of the kernels
    Plan,
    /// PTX of the kernels
    Ptx,
    /// CLIF of the kernels
    Clif,
    /// Every schedule as a Graphviz graph
    Dot,
    /// The manifest, which every bundle has as manifest.json
    Manifest,
}

/// Rows at a time of the code shown: as in bundles.
const ROW_BLOCK: u64 = 8;

/// Paths below `emit/`, and texts.
pub type Files = Vec<(String, String)>;

/// The forms asked for.
///
/// # Errors
/// A defect of dsc: a kernel without code.
pub fn files(
    kinds: &[Kind],
    model: &Model,
    spec_text: &str,
    schedules: &[Schedule],
    targets: &[Target],
) -> Result<Files, Failure> {
    let mut files = Files::new();
    for kind in kinds {
        match kind {
            Kind::Spec => files.push(("spec.yaml".into(), spec_text.to_owned())),
            Kind::Ir => {
                files.push(("graph.dsir".into(), dsc_ir::text::print(&model.lowered.graph)));
                if model.tail().is_some() {
                    let prefill = &model.lowered(Phase::Prefill).graph;
                    files.push(("graph.prefill.dsir".into(), dsc_ir::text::print(prefill)));
                }
            }
            Kind::Schedule => files.extend(schedules.iter().map(|s| (named_after(s, ".txt"), schedule_text(s)))),
            Kind::Dot => files.extend(schedules.iter().map(|s| (named_after(s, ".dot"), dot(s)))),
            Kind::Plan => files.extend(of_kernels(schedules, "loops", |_, k| Ok(Some(plan(k)?.to_string())))?),
            Kind::Clif => files.extend(of_kernels(schedules, "clif", |_, k| clif(k).map(Some))?),
            Kind::Ptx => files.extend(of_kernels(schedules, "ptx", |s, k| Ok(ptx(s, k, targets)))?),
            Kind::Manifest => {}
        }
    }
    // A kind may be named twice.
    files.sort();
    files.dedup();
    Ok(files)
}

/// A file name of a schedule.
fn named_after(s: &Schedule, ending: &str) -> String {
    format!("{}.{}{ending}", s.phase.name(), s.target)
}

/// One text for each kernel of each schedule that has one.
fn of_kernels(
    schedules: &[Schedule],
    extension: &str,
    text: impl Fn(&Schedule, &Kernel) -> Result<Option<String>, Failure> + Sync,
) -> Result<Files, Failure> {
    let kernels: Vec<(&Schedule, &Kernel)> =
        schedules.iter().flat_map(|s| s.kernels.iter().map(move |k| (s, k))).collect();
    let one = |(s, k): &(&Schedule, &Kernel)| {
        let name = named_after(s, &format!("/{}.{extension}", k.name));
        Ok(text(s, k)?.map(|text| (name, text)))
    };
    let files: Vec<Option<(String, String)>> = kernels.par_iter().map(one).collect::<Result<_, Failure>>()?;
    Ok(files.into_iter().flatten().collect())
}

fn plan(k: &Kernel) -> Result<Func, Failure> {
    let options = LowerOptions::cpu(ROW_BLOCK);
    lower::lower(k, &k.name, &options).map_err(|error| Failure::Defect(error.to_string()))
}

fn clif(k: &Kernel) -> Result<String, Failure> {
    cpu::emit(&plan(k)?).map_err(|error| Failure::Defect(format!("kernel `{}`: {error}", k.name)))
}

/// PTX for the target of a schedule; a kernel that has none is named in the report of the build.
#[cfg(feature = "nvptx")]
fn ptx(s: &Schedule, k: &Kernel, targets: &[Target]) -> Option<String> {
    let target = targets.iter().find(|target| target.name == s.target && !target.is_cpu())?;
    dsc_codegen::gpu::emit(k, &k.name, target).ok().map(|made| made.ptx)
}

#[cfg(not(feature = "nvptx"))]
fn ptx(_: &Schedule, _: &Kernel, _: &[Target]) -> Option<String> {
    None
}

/// Writes the state after every pass, for both phases.
///
/// # Errors
/// Files that cannot be written.
pub fn dump_passes(model: &Model, target: &Target, select: &Select, folder: &Path) -> Result<(), Failure> {
    for phase in Phase::ALL {
        let mut dumps: Vec<Dump> = Vec::new();
        let mut keep = |dump| dumps.push(dump);
        model.compile(phase, target, select, Some(&mut keep))?;
        for (at, dump) in dumps.iter().enumerate() {
            let name = format!("{}.{}.{at:02}-{}.txt", phase.name(), target.name, dump.pass);
            file(folder, &name, &dump.text)?;
        }
    }
    Ok(())
}

fn file(folder: &Path, name: &str, text: &str) -> Result<(), Failure> {
    let path = folder.join(name);
    let failed = |error| Failure::Machine(format!("cannot write `{}`: {error}", path.display()));
    fs::create_dir_all(path.parent().unwrap_or(folder)).map_err(failed)?;
    fs::write(&path, text).map_err(failed)
}

/// Name of a value with its layer.
fn named(name: &str, layer: Option<u32>) -> String {
    layer.map_or_else(|| name.to_owned(), |layer| format!("{layer}.{name}"))
}

fn arg(s: &Schedule, arg: &Arg) -> String {
    let at = |i: &u32| *i as usize;
    match arg {
        Arg::Buffer(i) => s.buffers.get(at(i)).map_or_else(String::new, |b| named(&b.name, b.layer)),
        Arg::Weight(i) => s.weights.get(at(i)).map_or_else(String::new, |w| format!("w:{}", named(&w.name, w.layer))),
        Arg::State(i) => s.states.get(at(i)).map_or_else(String::new, |t| format!("s:{}", named(&t.name, t.layer))),
        Arg::Input(name) => format!("in:{name}"),
    }
}

/// Launches in order, then buffers with the memory they share.
fn schedule_text(s: &Schedule) -> String {
    let mut text = format!("{} for {}\n\nlaunches\n", s.phase.name(), s.target);
    for (at, l) in s.launches.iter().enumerate() {
        let layer = l.layer.map_or_else(|| "-".to_owned(), |layer| layer.to_string());
        let args: Vec<String> = l.args.iter().map(|a| arg(s, a)).collect();
        let _ = writeln!(text, "{at:>5} layer {layer:>3} {}({})", s.kernels[l.kernel as usize].name, args.join(", "));
    }
    text.push_str("\nbuffers\n");
    for b in &s.buffers {
        let _ = writeln!(text, "  slot {:>3} {}: {}", b.slot, named(&b.name, b.layer), b.ty);
    }
    text
}

/// A graph of launches, joined by the buffers that one makes and another reads.
fn dot(s: &Schedule) -> String {
    let mut text = String::from("digraph schedule {\n  rankdir=TB;\n  node [shape=box, fontname=monospace];\n");
    let mut maker: HashMap<u32, usize> = HashMap::new();
    for (at, l) in s.launches.iter().enumerate() {
        let k = &s.kernels[l.kernel as usize];
        let layer = l.layer.map_or_else(String::new, |layer| format!("layer {layer}\\n"));
        let _ = writeln!(text, "  n{at} [label=\"{layer}{}\\n({})\"];", k.name, k.anchor);
        for (i, buffer, made) in buffers(k, l) {
            if made {
                maker.insert(buffer, at);
            } else if let Some(from) = maker.get(&buffer) {
                let _ = writeln!(text, "  n{from} -> n{at} [label=\"{}\"];", arg(s, &l.args[i]));
            }
        }
    }
    text.push_str("}\n");
    text
}

/// Buffer arguments of a launch: place, buffer, and whether the launch makes it.
fn buffers<'l>(k: &'l Kernel, l: &'l Launch) -> impl Iterator<Item = (usize, u32, bool)> + 'l {
    l.args.iter().zip(&k.params).enumerate().filter_map(|(i, (arg, param))| match arg {
        Arg::Buffer(buffer) => Some((i, *buffer, param.role == Role::Output)),
        Arg::Weight(_) | Arg::State(_) | Arg::Input(_) => None,
    })
}
