//! Intermediate forms for people: `--emit` into `BUNDLE/emit/`, `--dump-passes` into any folder.
//!
//! Nothing here is part of a bundle: the manifest does not list it, and no runtime reads it.

use crate::compile::Model;
use crate::failure::Failure;
use clap::ValueEnum;
use dsc_codegen::lower::{self, LowerOptions};
use dsc_ir::kernel::{Kernel, Role};
use dsc_ir::manifest;
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
    /// PTX of the kernels
    Ptx,
    /// CLIF of the kernels
    Clif,
    /// Every schedule as a Graphviz graph
    Dot,
    /// The manifest
    Manifest,
}

/// Rows at a time of the loop programs shown.
const ROW_BLOCK: u64 = 8;

/// Writes the forms asked for into the `emit` folder of a bundle.
///
/// # Errors
/// Files that cannot be written.
pub fn write(
    kinds: &[Kind],
    bundle: &Path,
    model: &Model,
    spec_text: &str,
    schedules: &[Schedule],
) -> Result<(), Failure> {
    let folder = bundle.join("emit");
    for kind in kinds {
        match kind {
            Kind::Spec => file(&folder, "spec.yaml", spec_text)?,
            Kind::Ir => file(&folder, "graph.dsir", &dsc_ir::text::print(&model.lowered.graph))?,
            Kind::Schedule => each(schedules, &folder, "txt", schedule_text)?,
            Kind::Dot => each(schedules, &folder, "dot", dot)?,
            Kind::Plan => plans(schedules, &folder)?,
            Kind::Ptx => copies(bundle, &folder, "ptx")?,
            Kind::Clif => copies(bundle, &folder, "clif")?,
            Kind::Manifest => copy(&bundle.join(manifest::FILE), &folder, manifest::FILE)?,
        }
    }
    Ok(())
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

fn copy(from: &Path, folder: &Path, name: &str) -> Result<(), Failure> {
    let failed = |error| Failure::Machine(format!("cannot read `{}`: {error}", from.display()));
    file(folder, name, &fs::read_to_string(from).map_err(failed)?)
}

/// Copies the kernel files of one kind.
fn copies(bundle: &Path, folder: &Path, extension: &str) -> Result<(), Failure> {
    let kernels = bundle.join("kernels");
    let failed = |error| Failure::Machine(format!("cannot read `{}`: {error}", kernels.display()));
    for entry in fs::read_dir(&kernels).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.extension().is_some_and(|e| e == extension) {
            copy(&path, folder, &name)?;
        }
    }
    Ok(())
}

fn each(schedules: &[Schedule], folder: &Path, ext: &str, text: fn(&Schedule) -> String) -> Result<(), Failure> {
    let one = |s: &Schedule| file(folder, &format!("{}.{}.{ext}", s.phase.name(), s.target), &text(s));
    schedules.iter().try_for_each(one)
}

fn plans(schedules: &[Schedule], folder: &Path) -> Result<(), Failure> {
    let options = LowerOptions { row_block: ROW_BLOCK, dense: true };
    for s in schedules {
        for k in &s.kernels {
            let func = lower::lower(k, &k.name, &options).map_err(|error| Failure::Defect(error.to_string()))?;
            let name = format!("{}.{}/{}.loops", s.phase.name(), s.target, k.name);
            file(folder, &name, &func.to_string())?;
        }
    }
    Ok(())
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
