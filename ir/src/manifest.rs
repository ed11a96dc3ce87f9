//! The manifest of a bundle: all that a runtime needs to know, as JSON. Code generator and runtime meet here.
//!
//! Sizes are [`Expr`] texts; dtypes are their names. Fields are written in declaration order, so equal inputs give
//! equal bytes.

use crate::dtype::DType;
use crate::expr::Expr;
use crate::graph::{Shard, StateKind, TensorType};
use crate::schedule::{Arg, Phase};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

/// Version of the format; a runtime refuses any other.
pub const FORMAT: u32 = 1;

/// File name of the manifest in a bundle.
pub const FILE: &str = "manifest.json";

/// A bundle's manifest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// Version of dsc that wrote it.
    pub dsc_version: String,
    /// Version of LLVM, where it took part.
    pub llvm_version: Option<String>,
    /// The model.
    pub model: Model,
    /// BLAKE3 of the resolved spec's text.
    pub spec_hash: String,
    /// Targets built, by architecture name.
    pub targets: IndexMap<String, TargetEntry>,
    /// Weights.
    pub weights: Vec<Weight>,
    /// States.
    pub states: Vec<State>,
    /// Kernels of all schedules.
    pub kernels: Vec<KernelEntry>,
    /// Schedules.
    pub schedules: Vec<ScheduleEntry>,
    /// Every other file of the bundle with its length and BLAKE3 hash, by path.
    pub files: IndexMap<String, FileEntry>,
}

/// Facts about the model that the runtime's interface needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Name.
    pub name: String,
    /// Token ids are below it.
    pub vocab_size: u64,
    /// Layers.
    pub num_hidden_layers: u32,
    /// Longest context in tokens.
    pub max_position_embeddings: u64,
    /// Tensor and expert parallel ranks the shapes are for.
    pub tp: u64,
    /// Expert parallel ranks.
    pub ep: u64,
    /// Rows at the end of each prompt that go through the layers after the last source in prefill; all, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_tail: Option<u64>,
    /// n-gram memory constants.
    pub engram: Option<EngramInfo>,
}

/// Constants of the n-gram memory, to check a tables file against.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngramInfo {
    /// Memory layers.
    pub layers: Vec<u32>,
    /// Largest n-gram.
    pub max_ngram: u64,
    /// Heads per order.
    pub heads: u64,
    /// Distinct compressed ids.
    pub compressed_vocab_size: u64,
    /// Token id whose compressed id is the pad.
    pub pad_token_id: u64,
    /// `layers * max_ngram` factors.
    pub multipliers: Vec<u64>,
    /// `layers * orders * heads` bucket counts.
    pub primes: Vec<u64>,
}

/// A target of the bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetEntry {
    /// Whether only this very architecture runs it (`sm_90a`), or any newer one too.
    pub exact_arch: bool,
    /// PTX ISA version times ten; 0 for `cpu`.
    pub ptx_isa: u32,
    /// Smallest CUDA driver, such as `580.65`; empty for `cpu`.
    pub min_driver: String,
}

/// A weight.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weight {
    /// Name without the layer.
    pub name: String,
    /// Layer.
    pub layer: Option<u32>,
    /// Checkpoint name without `.weight`/`.scale`; `{e}` stands for the expert number (then the first axis counts
    /// experts). `@engram.token_map` is the token map of the Engram tables file.
    pub tensor: String,
    /// Element type: what kernels read. `w.*`: all data first, then all scales; experts are stacked so within both parts.
    pub dtype: DType,
    /// Shape.
    pub shape: Vec<u64>,
    /// Split over ranks; `none`, `outer:N`, `inner:N`.
    pub shard: String,
}

/// A state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Name without the layer.
    pub name: String,
    /// Layer.
    pub layer: Option<u32>,
    /// Ring: positions a later step may read.
    pub keep: Option<u64>,
    /// Pages: tokens per entry.
    pub ratio: Option<u32>,
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Vec<Expr>,
}

/// A parameter of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParamEntry {
    /// Name.
    pub name: String,
    /// `input`, `weight`, `state`, `state_out`, `output`.
    pub role: String,
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Vec<Expr>,
}

/// CPU code of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuCode {
    /// CLIF text, relative to the bundle.
    pub file: String,
    /// Symbol in it, without the `%`.
    pub symbol: String,
    /// Scratch memory of a call.
    pub scratch_bytes: u64,
    /// Rows the function works on at a time; work is best split at multiples of it.
    pub row_block: u64,
}

/// GPU code of a kernel for one target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuCode {
    /// PTX text, relative to the bundle.
    pub ptx: String,
    /// Machine code, where `ptxas` ran.
    pub cubin: Option<String>,
    /// Symbol.
    pub symbol: String,
    /// Blocks, as expressions: x, y, z.
    pub grid: [Expr; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory in bytes.
    pub smem_dynamic_bytes: u64,
    /// Static shared memory in bytes.
    pub smem_static_bytes: u64,
    /// Registers of a thread, where `ptxas` ran.
    pub registers: Option<u32>,
    /// Spilled bytes, where `ptxas` ran.
    pub spill_bytes: Option<u64>,
}

/// A kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelEntry {
    /// Unique name.
    pub name: String,
    /// Anchor.
    pub anchor: String,
    /// Ops in order.
    pub ops: Vec<String>,
    /// Rows of its work.
    pub rows: Expr,
    /// Parameters in order.
    pub params: Vec<ParamEntry>,
    /// Floating-point operations.
    pub flops: Expr,
    /// Bytes read and written.
    pub bytes: Expr,
    /// File with the kernel's op graph in text form, relative to the bundle: its meaning.
    pub graph: String,
    /// CPU code.
    pub cpu: Option<CpuCode>,
    /// GPU code by target.
    pub gpu: IndexMap<String, GpuCode>,
}

/// A buffer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BufferEntry {
    /// Name without the layer.
    pub name: String,
    /// Layer.
    pub layer: Option<u32>,
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Vec<Expr>,
    /// Memory it shares with others that are never alive together.
    pub slot: u32,
}

/// A launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchEntry {
    /// Index into the manifest's kernels.
    pub kernel: u32,
    /// One per parameter.
    pub args: Vec<Arg>,
    /// Layer.
    pub layer: Option<u32>,
}

/// A probe; see [`crate::schedule::Probe`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeEntry {
    /// Name.
    pub name: String,
    /// Layer.
    pub layer: Option<u32>,
    /// Buffer.
    pub buffer: u32,
    /// Launch.
    pub after: u32,
}

/// A schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleEntry {
    /// Phase.
    pub phase: Phase,
    /// Target whose cost model made the choices; `cpu` runs any of them.
    pub target: String,
    /// Buffers.
    pub buffers: Vec<BufferEntry>,
    /// Launches in order.
    pub launches: Vec<LaunchEntry>,
    /// Values of interest.
    pub probes: Vec<ProbeEntry>,
}

/// A file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Length in bytes.
    pub bytes: u64,
    /// BLAKE3 of its content, in hex.
    pub blake3: String,
}

impl Manifest {
    /// JSON text, ending in a newline.
    ///
    /// # Errors
    /// Never in practice; serde's interface has it.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self).map(|s| s + "\n")
    }

    /// Reads JSON text.
    ///
    /// # Errors
    /// Malformed text, unknown or missing fields.
    pub fn from_json(text: &str) -> Result<Manifest, serde_json::Error> {
        serde_json::from_str(text)
    }
}

/// Text form of a split.
pub fn shard_text(shard: Shard) -> String {
    match shard {
        Shard::None => "none".into(),
        Shard::Outer(n) => format!("outer:{n}"),
        Shard::Inner(n) => format!("inner:{n}"),
    }
}

/// `keep` and `ratio` of a state.
pub fn state_fields(kind: StateKind) -> (Option<u64>, Option<u32>) {
    match kind {
        StateKind::Ring { keep } => (Some(keep), None),
        StateKind::Pages { ratio } => (None, Some(ratio)),
    }
}

/// A type from a dtype and shape of a manifest.
pub fn tensor_type(dtype: DType, shape: &[Expr]) -> TensorType {
    TensorType { dtype, shape: shape.to_vec() }
}
