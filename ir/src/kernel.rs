//! Kernels: a few ops that run in one launch, around the anchor that decides the loop nest.

use crate::expr::Expr;
use crate::graph::{Def, Graph, ValueId};
use crate::op::Op;
use std::fmt;

/// What decides a kernel's loop nest; the other ops are applied on load (before it) or on store (after it).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Anchor {
    /// Chains of per-row ops alone.
    Row,
    /// Table lookups alone.
    Gather,
    /// Linears.
    Gemm,
    /// Linears of chosen experts.
    GroupedGemm,
    /// Index scores.
    IndexLogits,
    /// Selections.
    TopK,
    /// Attention.
    SparseAttention,
    /// Communication between ranks.
    Collective,
}

impl Anchor {
    /// Name in output.
    pub fn name(self) -> &'static str {
        match self {
            Anchor::Row => "row",
            Anchor::Gather => "gather",
            Anchor::Gemm => "gemm",
            Anchor::GroupedGemm => "grouped_gemm",
            Anchor::IndexLogits => "index_logits",
            Anchor::TopK => "topk",
            Anchor::SparseAttention => "sparse_attention",
            Anchor::Collective => "collective",
        }
    }

    /// The anchor an op needs.
    pub fn of(op: &Op) -> Anchor {
        match op {
            Op::Linear(_) | Op::GroupLinear(_) => Anchor::Gemm,
            Op::ExpertLinear(_) => Anchor::GroupedGemm,
            Op::IndexScores(_) => Anchor::IndexLogits,
            Op::TopK(_) | Op::CandidateBlocks(_) => Anchor::TopK,
            Op::SparseAttention(_) => Anchor::SparseAttention,
            Op::AllReduce(_) => Anchor::Collective,
            Op::Embed(_) | Op::TakeRows(_) | Op::EngramGather(_) => Anchor::Gather,
            Op::Repeat(_)
            | Op::OneHot(_)
            | Op::Add(_)
            | Op::MhcStats(_)
            | Op::MhcCoeffs(_)
            | Op::HeadCoeffs(_)
            | Op::Collapse(_)
            | Op::Expand(_)
            | Op::RmsNorm(_)
            | Op::Rope(_)
            | Op::Hadamard(_)
            | Op::Quantize(_)
            | Op::RingWrite(_)
            | Op::PageWrite(_)
            | Op::Pool(_)
            | Op::RouterTopK(_)
            | Op::RouterHash(_)
            | Op::LocalExperts(_)
            | Op::SwiGlu(_)
            | Op::ExpertSum(_)
            | Op::EngramHash(_)
            | Op::EngramInject(_) => Anchor::Row,
        }
    }
}

impl fmt::Display for Anchor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a parameter is to a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Read, from an earlier kernel or the launch.
    Input,
    /// Read-only weight.
    Weight,
    /// State that is read.
    State,
    /// State that is written (and perhaps read).
    StateOut,
    /// Written, for a later kernel or the caller.
    Output,
}

impl Role {
    /// Name in output.
    pub fn name(self) -> &'static str {
        match self {
            Role::Input => "input",
            Role::Weight => "weight",
            Role::State => "state",
            Role::StateOut => "state_out",
            Role::Output => "output",
        }
    }
}

/// A parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Param {
    /// The value of the kernel's graph.
    pub value: ValueId,
    /// Its role.
    pub role: Role,
}

/// One launch's worth of ops. Its graph is self-contained: what other kernels make are inputs, layer numbers are
/// dropped, so equal work in two layers is one kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct Kernel {
    /// Short name from its ops, unique in a schedule.
    pub name: String,
    /// Loop nest.
    pub anchor: Anchor,
    /// Rows: the first axis of what it computes.
    pub rows: Expr,
    /// The ops; `results` are the outputs.
    pub graph: Graph,
    /// Parameters in order: inputs, weights, states, outputs.
    pub params: Vec<Param>,
}

impl Kernel {
    /// Whether a value lives only inside the kernel.
    pub fn is_local(&self, v: ValueId) -> bool {
        matches!(self.graph.value(v).def, Def::Node { .. }) && !self.graph.results.contains(&v)
    }

    /// Index of a value among the parameters.
    pub fn param_index(&self, v: ValueId) -> Option<usize> {
        self.params.iter().position(|p| p.value == v)
    }
}
