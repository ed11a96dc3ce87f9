//! Schedules: the launches of one phase on one target, with their buffers.

use crate::graph::{StateKind, TensorType, WeightSource};
use crate::kernel::Kernel;
use serde::{Deserialize, Serialize};

/// When a schedule runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Many rows of few sequences.
    Prefill,
    /// One row (or up to [`MAX_DECODE_ROWS`], for verification) of each sequence.
    Decode,
}

/// Most rows of one sequence in a decode step; rings have this many slots less one to spare.
pub const MAX_DECODE_ROWS: u64 = 8;

impl Phase {
    /// Both.
    pub const ALL: [Phase; 2] = [Phase::Prefill, Phase::Decode];

    /// Name in output.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
        }
    }
}

/// A weight of the model.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightDecl {
    /// Name without the layer.
    pub name: String,
    /// Layer.
    pub layer: Option<u32>,
    /// Origin in the checkpoint.
    pub source: WeightSource,
    /// Type as kernels read it.
    pub ty: TensorType,
}

/// A state of the model.
#[derive(Debug, Clone, PartialEq)]
pub struct StateDecl {
    /// Name without the layer.
    pub name: String,
    /// Layer.
    pub layer: Option<u32>,
    /// What it holds.
    pub kind: StateKind,
    /// Type.
    pub ty: TensorType,
}

/// A value that one launch makes and later ones read.
#[derive(Debug, Clone, PartialEq)]
pub struct Buffer {
    /// Name without the layer.
    pub name: String,
    /// Layer.
    pub layer: Option<u32>,
    /// Type.
    pub ty: TensorType,
    /// Memory it lives in; buffers of one slot are never alive together.
    pub slot: u32,
}

/// What a kernel parameter is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arg {
    /// A buffer of the schedule.
    Buffer(u32),
    /// A weight of the model.
    Weight(u32),
    /// A state of the model.
    State(u32),
    /// An input of the step: `step` or `out_rows`, and `tail_step` and `tail_rows` where only the end of a prompt goes on.
    Input(String),
}

/// One launch.
#[derive(Debug, Clone, PartialEq)]
pub struct Launch {
    /// Kernel of the schedule.
    pub kernel: u32,
    /// One per parameter.
    pub args: Vec<Arg>,
    /// Layer that the launch counts for.
    pub layer: Option<u32>,
}

/// A value that callers may read after a launch, before its buffer is used again.
#[derive(Debug, Clone, PartialEq)]
pub struct Probe {
    /// `logits`, `topk`, `moe_experts`, `engram_rows`.
    pub name: String,
    /// Layer.
    pub layer: Option<u32>,
    /// Buffer.
    pub buffer: u32,
    /// Launch that makes it.
    pub after: u32,
}

/// The launches of a phase.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// Phase.
    pub phase: Phase,
    /// Target architecture the choices were made for.
    pub target: String,
    /// Weights, alike in all schedules of a model.
    pub weights: Vec<WeightDecl>,
    /// States, likewise.
    pub states: Vec<StateDecl>,
    /// Values between launches.
    pub buffers: Vec<Buffer>,
    /// Distinct kernels.
    pub kernels: Vec<Kernel>,
    /// In order.
    pub launches: Vec<Launch>,
    /// Values of interest.
    pub probes: Vec<Probe>,
}
