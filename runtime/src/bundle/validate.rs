//! Whether the entries of a manifest fit each other, so that nothing behind it needs to doubt an index or a size.

use dsc_ir::dtype::DType;
use dsc_ir::expr::{Expr, Sym};
use dsc_ir::manifest::{KernelEntry, Manifest, ParamEntry, ScheduleEntry, State, Weight, tensor_type};
use dsc_ir::op::step;
use dsc_ir::schedule::Arg;
use std::collections::BTreeSet;

/// Largest size of one axis.
const MAX_AXIS: u64 = 1 << 40;
/// Most elements along the constant axes of one tensor.
const MAX_ELEMENTS: u64 = 1 << 44;
/// Most axes.
const MAX_RANK: usize = 8;
/// Most scratch memory of one CPU call.
const MAX_SCRATCH: u64 = 1 << 30;
/// Most slots of a schedule.
const MAX_SLOTS: u32 = 1 << 20;

type Checked = Result<(), String>;

fn ensure(ok: bool, message: impl FnOnce() -> String) -> Checked {
    if ok { Ok(()) } else { Err(message()) }
}

/// Checks everything but the files' contents.
pub(super) fn manifest(m: &Manifest) -> Checked {
    let model = &m.model;
    ensure(model.vocab_size > 0 && i32::try_from(model.vocab_size).is_ok(), || {
        format!("a vocabulary of {} tokens", model.vocab_size)
    })?;
    ensure(i32::try_from(model.max_position_embeddings).is_ok(), || {
        format!("a context of {} tokens", model.max_position_embeddings)
    })?;
    ensure(model.tp > 0 && model.ep > 0, || "zero ranks".into())?;
    m.weights.iter().try_for_each(weight)?;
    m.states.iter().try_for_each(state)?;
    let mut names = BTreeSet::new();
    for k in &m.kernels {
        ensure(names.insert(&k.name), || format!("two kernels are named `{}`", k.name))?;
        kernel(m, k).map_err(|e| format!("kernel `{}`: {e}", k.name))?;
    }
    for s in &m.schedules {
        schedule(m, s).map_err(|e| format!("{} schedule for `{}`: {e}", s.phase.name(), s.target))?;
    }
    Ok(())
}

/// A dtype and shape whose byte size can be computed and is not absurd.
fn tensor(dtype: DType, shape: &[Expr]) -> Checked {
    ensure(shape.len() <= MAX_RANK, || format!("{} axes", shape.len()))?;
    let mut elements = 1u64;
    for e in shape.iter().filter_map(Expr::as_const) {
        ensure(e <= MAX_AXIS, || format!("an axis of {e}"))?;
        elements = elements.checked_mul(e).filter(|n| *n <= MAX_ELEMENTS).ok_or("too many elements")?;
    }
    let constant = |n: usize| shape.iter().rev().take(n).all(|e| e.as_const().is_some_and(|c| c > 0));
    match dtype {
        DType::F32 | DType::Bf16 | DType::I32 => Ok(()),
        DType::Packed(_) => ensure(!shape.is_empty() && constant(1), || "packed rows need constant channels".into()),
        DType::Weight(_) => {
            ensure(shape.len() >= 2 && constant(shape.len()), || "a weight needs constant rows and columns".into())
        }
    }
}

fn weight(w: &Weight) -> Checked {
    let shape: Vec<Expr> = w.shape.iter().map(|s| Expr::Const(*s)).collect();
    let named = |e| format!("weight `{}`: {e}", w.tensor);
    tensor(w.dtype, &shape).map_err(named)?;
    ensure(!shape.is_empty() && !w.shape.contains(&0), || named("an empty shape".into()))?;
    ensure(!w.tensor.contains("{e}") || shape.len() >= 3, || named("experts need three axes".into()))?;
    let split = match w.shard.split_once(':') {
        None => w.shard == "none",
        Some((kind, n)) => matches!(kind, "outer" | "inner") && n.parse::<u64>().is_ok_and(|n| n > 0),
    };
    ensure(split, || named(format!("`{}` is no split", w.shard)))
}

fn state(s: &State) -> Checked {
    let named = |e: String| format!("state `{}`: {e}", s.name);
    tensor(s.dtype, &s.shape).map_err(named)?;
    ensure(s.shape.len() == 3, || named(format!("{} axes, not 3", s.shape.len())))?;
    ensure(!matches!(s.dtype, DType::Weight(_)), || named("a weight's dtype".into()))?;
    ensure(s.keep.is_some() != s.ratio.is_some(), || named("it must have one of `keep` and `ratio`".into()))
}

fn listed(m: &Manifest, file: &str) -> Checked {
    ensure(m.files.contains_key(file), || format!("its file `{file}` is not listed"))
}

fn kernel(m: &Manifest, k: &KernelEntry) -> Checked {
    listed(m, &k.graph)?;
    for p in &k.params {
        tensor(p.dtype, &p.shape).map_err(|e| format!("parameter `{}`: {e}", p.name))?;
        let known = matches!(p.role.as_str(), "input" | "weight" | "state" | "state_out" | "output");
        ensure(known, || format!("parameter `{}` has the role `{}`", p.name, p.role))?;
    }
    if let Some(cpu) = &k.cpu {
        listed(m, &cpu.file)?;
        ensure(cpu.scratch_bytes <= MAX_SCRATCH, || format!("{} bytes of scratch", cpu.scratch_bytes))?;
        ensure(cpu.row_block > 0 && cpu.row_block <= 1 << 32, || format!("row blocks of {}", cpu.row_block))?;
    }
    for (target, code) in &k.gpu {
        ensure(m.targets.contains_key(target), || format!("code for `{target}`, which is no target of the bundle"))?;
        listed(m, &code.ptx)?;
        code.cubin.as_deref().map_or(Ok(()), |file| listed(m, file))?;
        ensure((1..=1024).contains(&code.threads), || format!("blocks of {} threads", code.threads))?;
    }
    Ok(())
}

fn schedule(m: &Manifest, s: &ScheduleEntry) -> Checked {
    for b in &s.buffers {
        tensor(b.dtype, &b.shape).map_err(|e| format!("buffer `{}`: {e}", b.name))?;
        ensure(b.slot < MAX_SLOTS, || format!("buffer `{}` lives in slot {}", b.name, b.slot))?;
    }
    let mut made = vec![false; s.buffers.len()];
    for (i, launch) in s.launches.iter().enumerate() {
        let k = m.kernels.get(launch.kernel as usize);
        let k = k.ok_or_else(|| format!("launch {i} is of kernel {}, there are {}", launch.kernel, m.kernels.len()))?;
        ensure(k.params.len() == launch.args.len(), || {
            format!("launch {i} binds {} of the {} parameters of `{}`", launch.args.len(), k.params.len(), k.name)
        })?;
        for (p, a) in k.params.iter().zip(&launch.args) {
            arg(m, s, p, a, &mut made)
                .map_err(|e| format!("launch {i} (`{}`), parameter `{}`: {e}", k.name, p.name))?;
        }
    }
    for p in &s.probes {
        let ok = (p.buffer as usize) < s.buffers.len() && (p.after as usize) < s.launches.len();
        ensure(ok, || format!("probe `{}` reads buffer {} after launch {}", p.name, p.buffer, p.after))?;
    }
    let logits = s.probes.iter().any(|p| p.name == crate::executor::LOGITS);
    ensure(logits, || "it has no probe `logits`".into())
}

/// Whether what a parameter is bound to exists, suits its role, and has its dtype and size.
fn arg(m: &Manifest, s: &ScheduleEntry, p: &ParamEntry, a: &Arg, made: &mut [bool]) -> Checked {
    let role = p.role.as_str();
    let (dtype, shape) = match a {
        Arg::Buffer(i) => {
            let b = s.buffers.get(*i as usize).ok_or_else(|| format!("there is no buffer {i}"))?;
            ensure(matches!(role, "input" | "output"), || format!("a buffer for a {role}"))?;
            ensure(role == "output" || made[*i as usize], || format!("reads `{}` before it is made", b.name))?;
            made[*i as usize] = true;
            (b.dtype, b.shape.clone())
        }
        Arg::Weight(i) => {
            let w = m.weights.get(*i as usize).ok_or_else(|| format!("there is no weight {i}"))?;
            ensure(role == "weight", || format!("a weight for a {role}"))?;
            (w.dtype, w.shape.iter().map(|c| Expr::Const(*c)).collect())
        }
        Arg::State(i) => {
            let st = m.states.get(*i as usize).ok_or_else(|| format!("there is no state {i}"))?;
            ensure(matches!(role, "state" | "state_out"), || format!("a state for a {role}"))?;
            (st.dtype, st.shape.clone())
        }
        Arg::Input(name) => {
            ensure(role == "input", || format!("a step's input for a {role}"))?;
            let rows = |e: Expr| vec![e];
            match name.as_str() {
                "step" => (DType::I32, vec![Expr::tokens(), Expr::Const(step::COLUMNS)]),
                "out_rows" => (DType::I32, rows(Expr::Sym(Sym::OutRows))),
                "tail_rows" => (DType::I32, rows(Expr::Sym(Sym::TailRows))),
                "tail_step" => (DType::I32, vec![Expr::Sym(Sym::TailRows), Expr::Const(step::COLUMNS)]),
                _ => return Err(format!("there is no input `{name}`")),
            }
        }
    };
    let same = dtype == p.dtype && tensor_type(dtype, &shape).bytes() == tensor_type(p.dtype, &p.shape).bytes();
    ensure(same, || format!("is bound to {}, not {}", tensor_type(dtype, &shape), tensor_type(p.dtype, &p.shape)))
}
