//! Weights: read from a checkpoint or made from a seed, each packed once into the layout its kernels read.

mod engram;
mod names;
mod pack;
pub(crate) mod random;
mod shard;

pub use engram::EngramTables;

use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::memory::{Bytes, OutOfMemory};
use dsc_ir::expr::Expr;
use dsc_ir::graph::TensorType;
use dsc_ir::manifest::{Manifest, Weight};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Tensor name of the n-gram memory's token map.
pub const TOKEN_MAP: &str = "@engram.token_map";

/// Why weights are refused.
#[derive(Debug, thiserror::Error)]
pub enum WeightError {
    /// The checkpoint itself.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A tensor that the model needs is not there.
    #[error("the checkpoint has no tensor `{0}`")]
    Missing(String),
    /// A tensor of another shape.
    #[error("tensor `{tensor}` has shape {got:?}, the model needs {want:?}")]
    Shape {
        /// Its name.
        tensor: String,
        /// Shape the model needs.
        want: Vec<u64>,
        /// Shape it has.
        got: Vec<usize>,
    },
    /// A tensor of a dtype that cannot be stored without loss.
    #[error("tensor `{tensor}` is {got}, the model needs {want}")]
    Dtype {
        /// Its name.
        tensor: String,
        /// What the model needs.
        want: String,
        /// What it is.
        got: String,
    },
    /// Values that a kernel could not use.
    #[error("tensor `{tensor}`: {reason}")]
    Value {
        /// Its name.
        tensor: String,
        /// What is wrong.
        reason: String,
    },
    /// The Engram tables file.
    #[error("{0}")]
    Engram(String),
    /// A file that cannot be read.
    #[error("cannot read `{path}`: {reason}")]
    Read {
        /// The path.
        path: String,
        /// The system's reason.
        reason: String,
    },
    /// What follows `--weights` is neither a path nor a seed.
    #[error("`random:` needs a seed, an integer from 0 on, not `{0}`")]
    Seed(String),
    /// Memory.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
}

impl WeightError {
    /// Exit code of a command that fails with it.
    pub fn exit_code(&self) -> u8 {
        match self {
            WeightError::Checkpoint(e) => e.exit_code(),
            WeightError::Read { .. } | WeightError::Memory(_) => 3,
            _ => 2,
        }
    }
}

enum Source {
    Checkpoint(Checkpoint),
    Random(u64),
}

/// Where a model's weights come from.
pub struct WeightStore {
    source: Source,
    tables: Option<EngramTables>,
    compressed_vocab: u64,
    experts: BTreeMap<Option<u32>, u64>,
    /// Ranks that experts are split over.
    expert_ranks: u64,
    used: BTreeSet<String>,
}

impl WeightStore {
    /// Opens `random:SEED` or a checkpoint's path, with the Engram tables where the model has an n-gram memory.
    ///
    /// # Errors
    /// Unreadable or malformed files, tables that contradict the model, or missing ones with a checkpoint.
    pub fn open(spec: &str, tables: Option<&Path>, manifest: &Manifest) -> Result<WeightStore, WeightError> {
        let source = match spec.strip_prefix("random:") {
            Some(seed) => Source::Random(seed.parse().map_err(|_| WeightError::Seed(seed.into()))?),
            None => Source::Checkpoint(Checkpoint::open(Path::new(spec))?),
        };
        let info = manifest.model.engram.as_ref();
        let tables = match (info, tables) {
            (Some(info), Some(path)) => Some(EngramTables::read(path, info, manifest.model.vocab_size)?),
            (Some(_), None) if matches!(source, Source::Checkpoint(_)) => {
                return Err(WeightError::Engram(
                    "this model has an n-gram memory: give its token map with --engram-tables FILE.json".into(),
                ));
            }
            _ => None,
        };
        let compressed_vocab = info.map_or(1, |i| i.compressed_vocab_size);
        let experts = manifest.weights.iter().filter(|w| w.tensor.contains("{e}"));
        let expert_ranks = manifest.model.ep.max(1);
        let all = |w: &Weight| Some((w.layer, w.shape.first()?.saturating_mul(expert_ranks)));
        let experts = experts.filter_map(all).collect();
        Ok(WeightStore { source, tables, compressed_vocab, experts, expert_ranks, used: BTreeSet::new() })
    }

    /// A weight, packed.
    ///
    /// # Errors
    /// A missing or unsuitable tensor.
    pub fn load(&mut self, w: &Weight) -> Result<Bytes, WeightError> {
        if w.tensor == TOKEN_MAP {
            return self.token_map(w);
        }
        // Integer weights are expert numbers: kernels index by them.
        let experts = self.experts.get(&w.layer).copied();
        match &self.source {
            Source::Checkpoint(c) => pack::pack(c, w, experts, &mut self.used),
            Source::Random(seed) => random::weight(*seed, w, experts),
        }
    }

    /// How a weight is made where it is used, for weights of random floats or codes.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))] // for GPUs
    pub(crate) fn fill(&self, w: &Weight) -> Option<random::Fill> {
        match &self.source {
            Source::Random(seed) => random::fill(*seed, w),
            Source::Checkpoint(_) => None,
        }
    }

    /// Tensors of the checkpoint that no weight was packed from.
    pub fn unused(&self) -> Vec<&str> {
        match &self.source {
            Source::Checkpoint(c) => c.names().filter(|n| !self.used.contains(*n)).collect(),
            Source::Random(_) => Vec::new(),
        }
    }

    fn token_map(&self, w: &Weight) -> Result<Bytes, WeightError> {
        let n = w.shape.iter().product::<u64>();
        let mut out = Bytes::zeroed(n.saturating_mul(4))?;
        for (id, cell) in out.as_mut().chunks_exact_mut(4).enumerate() {
            let compressed = match &self.tables {
                Some(t) => t.token_map.get(id).copied().unwrap_or(0),
                None => (id as u64 % self.compressed_vocab.max(1)) as i32,
            };
            cell.copy_from_slice(&compressed.to_le_bytes());
        }
        Ok(out)
    }
}

/// Type of a weight.
pub fn weight_type(w: &Weight) -> TensorType {
    TensorType::new(w.dtype, w.shape.iter().map(|s| Expr::Const(*s)))
}

/// Bytes of a packed weight.
pub fn weight_bytes(w: &Weight) -> u64 {
    weight_type(w).bytes().as_const().unwrap_or(u64::MAX)
}
