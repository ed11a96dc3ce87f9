//! Every kernel of a bundle on random inputs, its CPU code against the interpreter on its op graph.
//!
//! Two steps are tried: one in the middle of two long sequences, so that rings and pages are read, and one from
//! the beginning, so that windows are cut short. Kernels beyond a size limit are named and left out.

pub(crate) mod compare;
pub(crate) mod inputs;
mod recipe;
pub mod walk;

pub use recipe::Recipe;

use crate::bundle::Bundle;
use crate::cpu::Kernels;
use crate::executor::DeviceError;
use crate::memory::Bytes;
use compare::Tally;
use dsc_ir::dtype::DType;
use dsc_ir::graph::{Def, Graph, ValueId};
use dsc_ir::interp::{self, Array, Values};
use dsc_ir::manifest::{KernelEntry, ParamEntry, tensor_type};
use dsc_ir::op::Op;
use dsc_ir::text;
use inputs::Step;

/// How much a check may take.
#[derive(Debug, Clone, Copy)]
pub struct CheckOptions {
    /// CPU threads.
    pub threads: usize,
    /// Seed of the inputs.
    pub seed: u64,
    /// Most bytes of a kernel's parameters together.
    pub max_bytes: u64,
    /// Most floating-point operations of a kernel.
    pub max_flops: u64,
}

/// What came of one kernel.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// It agrees; with how many values, and how many of them lie the other side of a rounding boundary.
    Agrees {
        /// Values compared.
        values: u64,
        /// Values that rounded the other way.
        boundary: u64,
    },
    /// It does not.
    Differs(String),
    /// It was left out.
    Skipped(String),
}

/// The kernel and its verdict.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// Kernel's name.
    pub kernel: String,
    /// What came of it.
    pub verdict: Verdict,
}

/// Checks all kernels; `progress` sees each finding as it comes.
///
/// # Errors
/// Code that cannot be compiled, or a machine that fails.
pub fn check(
    bundle: &Bundle,
    options: &CheckOptions,
    mut progress: impl FnMut(&Finding),
) -> Result<Vec<Finding>, DeviceError> {
    let kernels = Kernels::compile(bundle, options.threads, |_| true)?;
    let mut findings = Vec::new();
    for (i, entry) in bundle.manifest.kernels.iter().enumerate() {
        let one = Check { bundle, kernels: &kernels, entry, index: i, options };
        let verdict = one.verdict()?;
        let finding = Finding { kernel: entry.name.clone(), verdict };
        progress(&finding);
        findings.push(finding);
    }
    Ok(findings)
}

struct Check<'a> {
    bundle: &'a Bundle,
    kernels: &'a Kernels,
    entry: &'a KernelEntry,
    index: usize,
    options: &'a CheckOptions,
}

impl Check<'_> {
    fn verdict(&self) -> Result<Verdict, DeviceError> {
        if !self.kernels.has(self.index) {
            return Ok(Verdict::Skipped("it has no CPU code".into()));
        }
        let (graph, params) = match graph_of(self.bundle, self.entry) {
            Ok(b) => b,
            Err(e) => return Ok(Verdict::Differs(e)),
        };
        if graph.nodes.iter().any(|n| matches!(n.op, Op::AllReduce(_))) {
            return Ok(Verdict::Skipped("it communicates between ranks".into()));
        }
        let mut total = Tally::default();
        let mut done = 0;
        let mut reason = String::new();
        for step in inputs::steps(&graph) {
            match too_large(self.entry, &step, self.options.max_bytes, self.options.max_flops) {
                Some(r) => reason = r,
                None => match self.step(&graph, &params, &step)? {
                    Ok(tally) => {
                        total.add(&tally);
                        done += 1;
                    }
                    Err(message) => return Ok(Verdict::Differs(message)),
                },
            }
        }
        if done == 0 {
            return Ok(Verdict::Skipped(reason));
        }
        Ok(match total.verdict() {
            Ok(()) => Verdict::Agrees { values: total.values, boundary: total.boundary },
            Err(message) => Verdict::Differs(message),
        })
    }

    fn step(&self, graph: &Graph, params: &[ValueId], step: &Step) -> Result<Result<Tally, String>, DeviceError> {
        let vocab = self.bundle.manifest.model.vocab_size;
        let mut values = match inputs::values(graph, step, vocab, self.options.seed) {
            Ok(v) => v,
            Err(e) => return Ok(Err(format!("no inputs could be made: {e}"))),
        };
        let mut blocks = blocks(self.entry, params, &values, step)?;
        self.kernels.call(self.entry, self.index, &mut blocks, &step.env)?;
        if let Err(e) = interp::run(graph, &step.env, &mut values) {
            return Ok(Err(format!("the interpreter refuses it: {e}")));
        }
        Ok(self.compare(graph, params, &values, &blocks))
    }

    fn compare(&self, graph: &Graph, params: &[ValueId], values: &Values, blocks: &[Bytes]) -> Result<Tally, String> {
        let rule = compare::Rule::of(graph);
        let mut total = Tally::default();
        for (arg, v) in outputs(self.entry, params) {
            let (p, block) = (&self.entry.params[arg], &blocks[arg]);
            let expected = values.get(&v).ok_or_else(|| format!("`{}` is not evaluated", p.name))?;
            let got = Array::from_storage(expected.ty_dtype, &expected.shape, block.as_ref())
                .map_err(|e| format!("`{}`: {e}", p.name))?;
            total.add(&compare::arrays(&rule, &p.name, expected, &got)?);
        }
        Ok(total)
    }
}

/// What a kernel changes: numbers of its parameters with their values.
fn outputs<'a>(entry: &'a KernelEntry, params: &'a [ValueId]) -> impl Iterator<Item = (usize, ValueId)> + 'a {
    let all = params.iter().zip(&entry.params).enumerate();
    all.filter(|(_, (_, p))| matches!(p.role.as_str(), "output" | "state_out")).map(|(i, (v, _))| (i, *v))
}

/// A kernel's op graph and its value of each parameter.
pub(crate) fn graph_of(bundle: &Bundle, entry: &KernelEntry) -> Result<(Graph, Vec<ValueId>), String> {
    let fail = |e: String| format!("its graph `{}`: {e}", entry.graph);
    let text = bundle.text(&entry.graph).map_err(|e| fail(e.to_string()))?;
    let graph = text::parse(text).map_err(|e| fail(e.to_string()))?;
    let params = bind(&graph, &entry.params).map_err(fail)?;
    Ok((graph, params))
}

/// Why a kernel is left out, if it is beyond these limits.
pub(crate) fn too_large(entry: &KernelEntry, step: &Step, max_bytes: u64, max_flops: u64) -> Option<String> {
    let bytes = entry.params.iter().map(|p| tensor_type(p.dtype, &p.shape).bytes().eval(&step.env));
    let bytes = bytes.fold(0, u64::saturating_add);
    if bytes > max_bytes {
        return Some(format!("its parameters take {bytes} bytes, over the limit of {max_bytes}"));
    }
    let flops = entry.flops.eval(&step.env);
    if flops > max_flops {
        return Some(format!("it takes {flops} operations, over the limit of {max_flops}"));
    }
    None
}

/// Memory of a kernel's parameters before a launch.
pub(crate) fn blocks(
    entry: &KernelEntry,
    params: &[ValueId],
    values: &Values,
    step: &Step,
) -> Result<Vec<Bytes>, DeviceError> {
    let block = |(v, p): (&ValueId, &ParamEntry)| -> Result<Bytes, DeviceError> {
        if let Some(array) = values.get(v) {
            return Ok(Bytes::copy_of(&array.to_storage())?);
        }
        // An output: filled with what no result is, NaN or an absurd index.
        let mut b = Bytes::zeroed(tensor_type(p.dtype, &p.shape).bytes().eval(&step.env))?;
        b.as_mut().fill(if p.dtype == DType::I32 { 0xA5 } else { 0xFF });
        Ok(b)
    };
    params.iter().zip(&entry.params).map(block).collect()
}

/// The graph's value of each parameter: by role and order, as kernels are built.
fn bind(graph: &Graph, params: &[ParamEntry]) -> Result<Vec<ValueId>, String> {
    let of = |want: fn(&Def) -> bool| graph.value_ids().filter(move |v| want(&graph.value(*v).def));
    let mut inputs = of(|d| matches!(d, Def::Input));
    let mut weights = of(|d| matches!(d, Def::Weight(_)));
    let mut states = of(|d| matches!(d, Def::State(_)));
    let mut outputs = graph.results.iter().copied();
    let mut bound = Vec::with_capacity(params.len());
    for p in params {
        let next = match p.role.as_str() {
            "input" => inputs.next(),
            "weight" => weights.next(),
            "output" => outputs.next(),
            _ => states.next(),
        };
        let v = next.ok_or_else(|| format!("it has no value for the parameter `{}`", p.name))?;
        let ty = graph.ty(v);
        let same = ty.dtype == p.dtype && ty.bytes() == tensor_type(p.dtype, &p.shape).bytes();
        if !same {
            return Err(format!("its `{}` is {ty}, the parameter `{}` another", graph.value(v).name, p.name));
        }
        bound.push(v);
    }
    Ok(bound)
}

/// Whether values of this type pass through a lossy format.
fn is_rounded(dtype: DType) -> bool {
    matches!(dtype, DType::Bf16 | DType::Packed(_))
}
