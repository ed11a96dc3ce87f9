//! Conformance cases from a bundle: its GPU kernels on random inputs, with what its CPU kernels make of them.
//!
//! Inputs are those of [`crate::check`], which compares the CPU kernels with the interpreter, so a case that fails
//! points at the GPU kernel. Tolerances are stated at [`Rule`].

use super::case::{self, CaseError, Contents, Element, LaunchData, ParamData, Rule, Skipped};
use crate::bundle::{Bundle, BundleError};
use crate::check::compare;
use crate::check::inputs::{self, Step};
use crate::check::{blocks, graph_of, too_large};
use crate::cpu::Kernels;
use crate::executor::DeviceError;
use crate::memory::Bytes;
use dsc_ir::dtype::{DType, RowFormat};
use dsc_ir::expr::{Env, Expr};
use dsc_ir::graph::{Graph, ValueId};
use dsc_ir::manifest::{GpuCode, KernelEntry, ParamEntry};
use std::path::Path;

/// Share of floats that may lie outside where a kernel rounds or chooses before it is done.
const BEHIND_ROUNDING: f64 = 1e-3;
/// Share of packed values that may have a neighbouring code; see [`Rule::Codes`].
const AT_BOUNDARY: f64 = 1e-5;

/// Which cases to make.
#[derive(Debug, Clone)]
pub struct MakeOptions<'a> {
    /// GPU target of the bundle.
    pub target: &'a str,
    /// First part of the cases' names.
    pub prefix: &'a str,
    /// Seed of the inputs.
    pub seed: u64,
    /// CPU threads.
    pub threads: usize,
    /// Kernels whose parameters take more bytes are skipped.
    pub max_bytes: u64,
    /// Kernels that take more floating-point operations are skipped.
    pub max_flops: u64,
    /// Take PTX even where there is machine code.
    pub ptx: bool,
}

/// What became of one kernel and step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Made {
    /// A case of this name.
    Case(String),
    /// None.
    Skipped(Skipped),
}

impl Made {
    /// The reason for having none.
    pub fn skipped(self) -> Option<Skipped> {
        match self {
            Made::Case(_) => None,
            Made::Skipped(s) => Some(s),
        }
    }
}

/// Why no cases can be made.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// The bundle.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// CPU kernels or the machine.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The cases' folder.
    #[error(transparent)]
    Case(#[from] CaseError),
    /// The bundle contradicts itself.
    #[error("kernel `{kernel}`: {reason}")]
    Kernel {
        /// Name.
        kernel: String,
        /// What is wrong.
        reason: String,
    },
}

impl MakeError {
    /// Exit code of a command that fails with it.
    pub fn exit_code(&self) -> u8 {
        match self {
            MakeError::Bundle(e) => e.exit_code(),
            MakeError::Device(e) => e.exit_code(),
            MakeError::Case(_) => 3,
            MakeError::Kernel { .. } => 2,
        }
    }
}

/// Makes the cases of the kernels that `wanted` names into the folder `cases`; `progress` sees each as it comes.
/// Kernels without code for the target are passed over: the build knows why they have none.
///
/// # Errors
/// See [`MakeError`].
pub fn make(
    bundle: &Bundle,
    options: &MakeOptions<'_>,
    wanted: impl Fn(&str) -> bool,
    cases: &Path,
    mut progress: impl FnMut(&Made),
) -> Result<Vec<Made>, MakeError> {
    let code = |k: &'_ KernelEntry| k.gpu.get(options.target).cloned().filter(|_| wanted(&k.name));
    let codes: Vec<Option<GpuCode>> = bundle.manifest.kernels.iter().map(code).collect();
    let kernels = Kernels::compile(bundle, options.threads, |i| codes[i].is_some())?;
    let mut all = Vec::new();
    for (index, (entry, code)) in bundle.manifest.kernels.iter().zip(&codes).enumerate() {
        let Some(code) = code else { continue };
        let maker = Maker { bundle, options, kernels: &kernels, entry, index, code };
        for made in maker.kernel(cases)? {
            progress(&made);
            all.push(made);
        }
    }
    Ok(all)
}

struct Maker<'a> {
    bundle: &'a Bundle,
    options: &'a MakeOptions<'a>,
    kernels: &'a Kernels,
    entry: &'a KernelEntry,
    index: usize,
    code: &'a GpuCode,
}

impl Maker<'_> {
    fn fail(&self, reason: String) -> MakeError {
        MakeError::Kernel { kernel: self.entry.name.clone(), reason }
    }

    fn kernel(&self, cases: &Path) -> Result<Vec<Made>, MakeError> {
        let (graph, params) = graph_of(self.bundle, self.entry).map_err(|e| self.fail(e))?;
        let mut all = Vec::new();
        for step in inputs::steps(&graph) {
            let name = format!("{}.{}.{}", self.options.prefix, self.entry.name, step.name);
            let reason = match too_large(self.entry, &step, self.options.max_bytes, self.options.max_flops) {
                None if !self.kernels.has(self.index) => Some("it has no CPU code".into()),
                reason => reason,
            };
            all.push(match reason {
                Some(reason) => Made::Skipped(Skipped { name, reason }),
                None => {
                    self.case(&name, &graph, &params, &step, cases)?;
                    Made::Case(name)
                }
            });
        }
        Ok(all)
    }

    fn case(&self, name: &str, graph: &Graph, values: &[ValueId], step: &Step, cases: &Path) -> Result<(), MakeError> {
        let (options, entry, code) = (self.options, self.entry, self.code);
        let vocab = self.bundle.manifest.model.vocab_size;
        let made = inputs::values(graph, step, vocab, options.seed).map_err(|e| self.fail(e))?;
        let mut memory = blocks(entry, values, &made, step)?;
        let before = self.contents(graph, values, &memory);
        self.kernels.call(entry, self.index, &mut memory, &step.env)?;
        let rule = compare::Rule::of(graph);
        let params: Vec<ParamData> = entry
            .params
            .iter()
            .zip(before.into_iter().zip(&memory))
            .map(|(p, (input, after))| param(p, input, after, &rule, &step.env))
            .collect();
        let file = code.cubin.as_ref().filter(|_| !options.ptx).unwrap_or(&code.ptx);
        let size = |e: &Expr| u32::try_from(e.eval(&step.env)).map_err(|_| self.fail(format!("a grid of {e} blocks")));
        let [x, y, z] = &code.grid;
        let smem = code.smem_dynamic_bytes;
        let launch = LaunchData {
            name,
            code: self.bundle.bytes(file)?,
            symbol: &code.symbol,
            grid: [size(x)?, size(y)?, size(z)?],
            threads: code.threads,
            smem_dynamic_bytes: u32::try_from(smem).map_err(|_| self.fail(format!("{smem} bytes of shared memory")))?,
            dims: step.env.dims(),
            note: &format!("{}; expected: the CPU kernel's results on the same inputs", entry.ops.join(", ")),
        };
        case::write(cases, &launch, &params)?;
        Ok(())
    }

    /// Contents of the parameters before the launch, by recipe where one gives exactly these bytes.
    fn contents(&self, graph: &Graph, values: &[ValueId], memory: &[Bytes]) -> Vec<Option<Contents>> {
        let one = |((v, p), bytes): ((&ValueId, &ParamEntry), &Bytes)| {
            let bytes = bytes.as_ref();
            if p.role == "output" && p.dtype != DType::I32 {
                return None;
            }
            let recipe = inputs::recipe(graph, *v, self.options.seed);
            let same = recipe.filter(|r| r.make(bytes.len() as u64).is_ok_and(|made| made.as_ref() == bytes));
            Some(same.map_or_else(|| Contents::Bytes(bytes.to_vec()), Contents::Random))
        };
        values.iter().zip(&self.entry.params).zip(memory).map(one).collect()
    }
}

fn param(p: &ParamEntry, input: Option<Contents>, after: &Bytes, rule: &compare::Rule, env: &Env) -> ParamData {
    let is_result = matches!(p.role.as_str(), "output" | "state_out");
    let expected = is_result.then(|| {
        let (element, rule) = tolerance(p, rule, env);
        (after.as_ref().to_vec(), element, rule)
    });
    ParamData { name: p.name.clone(), bytes: after.len() as u64, input, expected }
}

fn tolerance(p: &ParamEntry, rule: &compare::Rule, env: &Env) -> (Element, Rule) {
    let row = p.shape.iter().skip(1).map(|e| e.eval(env)).product::<u64>().max(1);
    let outside = if rule.discontinuous { BEHIND_ROUNDING } else { 0.0 };
    let sum = Rule::Sum { products: rule.contraction, row, outside };
    match p.dtype {
        DType::F32 | DType::Packed(RowFormat::F32) => (Element::F32, sum),
        DType::Bf16 | DType::Packed(RowFormat::Bf16) => (Element::Bf16, sum),
        DType::I32 => (Element::I32, Rule::Exact),
        DType::Packed(_) => {
            let channels = p.shape.last().map_or(1, |e| e.eval(env));
            (Element::U8, Rule::Codes { dtype: p.dtype, channels, outside: AT_BOUNDARY })
        }
        DType::Weight(_) => (Element::U8, Rule::Exact),
    }
}
