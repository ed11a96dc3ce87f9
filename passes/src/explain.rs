//! What a schedule is, as figures: kernels by kind of layer, launches, cache sizes.
//!
//! Figures are exact. Everything is counted from the schedule itself.

use crate::remark::Remark;
use dsc_ir::cost;
use dsc_ir::dtype::DType;
use dsc_ir::expr::{Env, Expr};
use dsc_ir::graph::{Def, StateKind, TensorType};
use dsc_ir::kernel::{Anchor, Kernel};
use dsc_ir::op::Op;
use dsc_ir::schedule::{Arg, Phase, Schedule, StateDecl};
use indexmap::IndexMap;
use serde::Serialize;
use std::collections::BTreeSet;

/// Facts of a layer that the schedule does not hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LayerFacts {
    /// `swa`, `full`, `reindex`, `reuse`, `hca`.
    pub role: String,
    /// Compression ratio.
    pub ratio: u32,
}

/// An exact number of bytes, perhaps a fraction with a power-of-two denominator.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exact(pub f64);

impl Serialize for Exact {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if self.0.fract() == 0.0 && self.0 < 9e15 { s.serialize_u64(self.0 as u64) } else { s.serialize_f64(self.0) }
    }
}

/// Everything.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    /// Model.
    pub model: String,
    /// Target architecture.
    pub target: String,
    /// Cache sizes.
    pub kv: Kv,
    /// By phase.
    pub phases: IndexMap<String, PhaseFacts>,
    /// Decisions of the passes, all phases, with the phase in front.
    pub remarks: Vec<PhaseRemark>,
}

/// A remark of a phase.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PhaseRemark {
    /// Phase.
    pub phase: String,
    /// The decision.
    #[serde(flatten)]
    pub remark: Remark,
}

/// Cache sizes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Kv {
    /// Bytes that each token of context adds.
    pub bytes_per_token: Exact,
    /// Bytes of each sequence that do not grow: rows of the windows.
    pub bytes_per_sequence: u64,
    /// Other state of a sequence: pending groups of compressors, n-gram history.
    pub other_bytes_per_sequence: u64,
    /// By layer.
    pub layers: Vec<KvLayer>,
}

/// Caches of one layer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KvLayer {
    /// Layer.
    pub layer: u32,
    /// Cache.
    pub name: String,
    /// Format.
    pub dtype: String,
    /// Bytes of a row, without padding.
    pub row_bytes: u64,
    /// Tokens per row (pages), or 0.
    pub ratio: u32,
    /// Bytes per token of context.
    pub bytes_per_token: Exact,
    /// Bytes that do not grow.
    pub bytes_per_sequence: u64,
}

/// One phase.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PhaseFacts {
    /// Launches of a step, memory copies included, collectives not.
    pub launches_per_step: u64,
    /// Collectives of a step.
    pub collectives_per_step: u64,
    /// Distinct kernels.
    pub distinct_kernels: u64,
    /// Layers with the same kernels.
    pub layer_kinds: Vec<LayerKind>,
    /// Kernels outside the layers: once per step.
    pub once: Vec<KernelFacts>,
    /// Flops and bytes of a step.
    pub total: Work,
}

/// Layers with the same role, ratio and kernels.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LayerKind {
    /// Role.
    pub role: String,
    /// Ratio.
    pub ratio: u32,
    /// Layer numbers.
    pub layers: Vec<u32>,
    /// Launches of one such layer.
    pub launches: u64,
    /// Collectives of one such layer.
    pub collectives: u64,
    /// Kernels in order.
    pub kernels: Vec<KernelFacts>,
}

/// Work, as an expression and at the sizes asked for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Work {
    /// Floating-point operations.
    pub flops: Count,
    /// Bytes read and written.
    pub bytes: Count,
}

/// A count.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Count {
    /// In the launch-time sizes.
    pub expression: String,
    /// At the sizes asked for.
    pub value: u64,
}

/// A kernel.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KernelFacts {
    /// Name.
    pub name: String,
    /// Anchor.
    pub anchor: String,
    /// Ops taken in, in order.
    pub ops: Vec<String>,
    /// Parameters, as `name: type`.
    pub params: Vec<String>,
    /// Floating-point operations.
    pub flops: Count,
    /// Bytes.
    pub bytes: Count,
}

fn count(e: &Expr, env: &Env) -> Count {
    Count { expression: e.to_string(), value: e.eval(env) }
}

/// Facts of one kernel.
pub fn kernel_facts(k: &Kernel, env: &Env) -> KernelFacts {
    let (flops, bytes) = cost::kernel(k);
    KernelFacts {
        name: k.name.clone(),
        anchor: k.anchor.name().to_string(),
        ops: k.graph.nodes.iter().map(|n| n.op.name().to_string()).collect(),
        params: k
            .params
            .iter()
            .map(|p| {
                let value = k.graph.value(p.value);
                format!("{} {}: {}", p.role.name(), value.name, value.ty)
            })
            .collect(),
        flops: count(&flops, env),
        bytes: count(&bytes, env),
    }
}

/// Facts of one phase at the given sizes.
pub fn phase_facts(s: &Schedule, layers: &[LayerFacts], env: &Env) -> PhaseFacts {
    let facts: Vec<KernelFacts> = s.kernels.iter().map(|k| kernel_facts(k, env)).collect();
    let work: Vec<(Expr, Expr)> = s.kernels.iter().map(cost::kernel).collect();
    let collective = |k: u32| s.kernels[k as usize].anchor == Anchor::Collective;
    let mut by_layer: Vec<Vec<u32>> = vec![Vec::new(); layers.len()];
    let mut once = Vec::new();
    let mut total = (Expr::Const(0), Expr::Const(0));
    for l in &s.launches {
        let (f, b) = &work[l.kernel as usize];
        total = (total.0 + f.clone(), total.1 + b.clone());
        match l.layer.and_then(|l| by_layer.get_mut(l as usize)) {
            Some(list) => list.push(l.kernel),
            None => once.push(l.kernel),
        }
    }
    let mut kinds: IndexMap<(LayerFacts, Vec<u32>), Vec<u32>> = IndexMap::new();
    for (l, kernels) in by_layer.into_iter().enumerate() {
        kinds.entry((layers[l].clone(), kernels)).or_default().push(l as u32);
    }
    let layer_kinds = kinds
        .into_iter()
        .map(|((layer, kernels), numbers)| LayerKind {
            role: layer.role,
            ratio: layer.ratio,
            layers: numbers,
            launches: kernels.iter().filter(|k| !collective(**k)).count() as u64,
            collectives: kernels.iter().filter(|k| collective(**k)).count() as u64,
            kernels: kernels.iter().map(|k| facts[*k as usize].clone()).collect(),
        })
        .collect();
    let collectives = s.launches.iter().filter(|l| collective(l.kernel)).count() as u64;
    PhaseFacts {
        launches_per_step: s.launches.len() as u64 - collectives,
        collectives_per_step: collectives,
        distinct_kernels: s.kernels.len() as u64,
        layer_kinds,
        once: once.iter().map(|k| facts[*k as usize].clone()).collect(),
        total: Work { flops: count(&total.0, env), bytes: count(&total.1, env) },
    }
}

/// States that attentions and index scores read.
fn cache_states(s: &Schedule) -> BTreeSet<u32> {
    let mut caches = BTreeSet::new();
    for launch in &s.launches {
        let k = &s.kernels[launch.kernel as usize];
        for n in &k.graph.nodes {
            if !matches!(n.op, Op::SparseAttention(_) | Op::IndexScores(_)) {
                continue;
            }
            for v in n.inputs.iter().filter(|v| matches!(k.graph.value(**v).def, Def::State(_))) {
                if let Some(Arg::State(i)) = k.param_index(*v).and_then(|p| launch.args.get(p)) {
                    caches.insert(*i);
                }
            }
        }
    }
    caches
}

fn row_bytes(ty: &TensorType) -> u64 {
    match ty.dtype {
        // The scales of 64-channel groups are padded to 8 bytes in the published row; that pad is part of the format.
        DType::Packed(f) => f.row_bytes(ty.channels()),
        dtype => dtype.row_bytes(ty.channels()),
    }
}

/// Cache sizes of the model.
pub fn kv(s: &Schedule) -> Kv {
    let caches = cache_states(s);
    let mut layers = Vec::new();
    let mut other = 0;
    for (i, state) in s.states.iter().enumerate() {
        let row = row_bytes(&state.ty);
        match (caches.contains(&(i as u32)), state.kind) {
            (false, StateKind::Ring { keep }) => other += keep * row,
            (_, kind) => layers.push(kv_layer(state, kind, row)),
        }
    }
    Kv {
        bytes_per_token: Exact(layers.iter().map(|l: &KvLayer| l.bytes_per_token.0).sum()),
        bytes_per_sequence: layers.iter().map(|l| l.bytes_per_sequence).sum(),
        other_bytes_per_sequence: other,
        layers,
    }
}

fn kv_layer(state: &StateDecl, kind: StateKind, row: u64) -> KvLayer {
    let (ratio, per_token, per_sequence) = match kind {
        StateKind::Ring { keep } => (0, 0.0, keep * row),
        StateKind::Pages { ratio } => (ratio, row as f64 / f64::from(ratio.max(1)), 0),
    };
    KvLayer {
        layer: state.layer.unwrap_or(0),
        name: state.name.clone(),
        dtype: state.ty.dtype.to_string(),
        row_bytes: row,
        ratio,
        bytes_per_token: Exact(per_token),
        bytes_per_sequence: per_sequence,
    }
}

/// Sizes of a step at a batch of sequences with a context, for a phase: a decode step has one row a sequence, a
/// prefill the whole context of each, of which the layers after the last source may see the last `tail` rows alone.
pub fn env(phase: Phase, batch: u64, context: u64, tail: Option<u64>) -> Env {
    let n_tokens = match phase {
        Phase::Decode => batch,
        Phase::Prefill => batch * context,
    };
    let n_tail_rows = batch * tail.unwrap_or(context).min(context);
    Env { n_tokens, n_seqs: batch, n_context: context, n_out_rows: batch, n_tail_rows }
}
