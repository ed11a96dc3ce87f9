//! Intermediate forms for people: `--emit` into `BUNDLE/emit/`, `--dump-passes` into any folder.
//!
//! No runtime reads them.

use crate::compile::Model;
use crate::failure::Failure;
use clap::ValueEnum;
use dsc_codegen::forms::{self, Form};
use dsc_ir::kernel::{Kernel, Role};
use dsc_ir::schedule::{Arg, Launch, Phase, Schedule};
use dsc_ir::target::Target;
use dsc_passes::pipeline::{Dump, Select};
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
    /// Optimised LLVM IR of the kernels, which their PTX is made from
    Llvm,
    /// PTX of the kernels
    Ptx,
    /// CLIF of the kernels
    Clif,
    /// Every schedule as a Graphviz graph
    Dot,
    /// The manifest with an empty table of files: the table lists this file too, and no file holds its own hash
    Manifest,
}

/// Paths below `emit/`, and texts.
pub type Files = Vec<(String, String)>;

impl Kind {
    /// Whether LLVM makes it.
    fn needs_llvm(self) -> bool {
        matches!(self, Kind::Llvm | Kind::Ptx)
    }
}

/// Refuses forms that this dsc cannot make.
///
/// # Errors
/// It was built without LLVM.
pub fn check(kinds: &[Kind]) -> Result<(), Failure> {
    let lacking = |kind: &&Kind| kind.needs_llvm() && !cfg!(feature = "nvptx");
    let Some(kind) = kinds.iter().find(lacking) else { return Ok(()) };
    let name = kind.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    Err(Failure::Machine(format!("this dsc was built without LLVM (feature `nvptx`) and cannot emit `{name}`")))
}

/// The forms asked for but the manifest, which only the bundle's writer knows. LLVM IR and PTX are those for the target
/// of each schedule, one of `targets`, also where the bundle itself is for the CPU alone.
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
            Kind::Plan => files.extend(named_forms(schedules, forms::loops(schedules)?, "loops")),
            Kind::Clif => files.extend(named_forms(schedules, forms::clif(schedules)?, "clif")),
            Kind::Llvm | Kind::Ptx => files.extend(gpu(*kind, schedules, targets)?),
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

/// Files of kernels: a folder for each schedule, a file for each kernel.
fn named_forms(schedules: &[Schedule], forms: Vec<Form>, extension: &str) -> Files {
    let named = |form: Form| {
        let schedule = &schedules[form.schedule];
        let kernel: &Kernel = &schedule.kernels[form.kernel];
        (named_after(schedule, &format!("/{}.{extension}", kernel.name)), form.text)
    };
    forms.into_iter().map(named).collect()
}

#[cfg(feature = "nvptx")]
fn gpu(kind: Kind, schedules: &[Schedule], targets: &[Target]) -> Result<Files, Failure> {
    Ok(match kind {
        Kind::Llvm => named_forms(schedules, forms::llvm(schedules, targets)?, "ll"),
        _ => named_forms(schedules, forms::ptx(schedules, targets)?, "ptx"),
    })
}

#[cfg(not(feature = "nvptx"))]
fn gpu(kind: Kind, _: &[Schedule], _: &[Target]) -> Result<Files, Failure> {
    check(&[kind]).map(|()| Files::new())
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
