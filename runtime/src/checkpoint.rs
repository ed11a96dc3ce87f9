//! Checkpoints: safetensors files, mapped into memory, one or several with an index.
//!
//! Headers are checked by the safetensors crate: every tensor lies in the file, without holes or overlaps.

use memmap2::Mmap;
use safetensors::tensor::Metadata;
use safetensors::{Dtype, SafeTensors};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Name of a single file in a folder.
const SINGLE: &str = "model.safetensors";
/// Name of the index of several.
const INDEX: &str = "model.safetensors.index.json";
/// Longest index that is read.
const MAX_INDEX_BYTES: u64 = 256 << 20;

/// Why a checkpoint is refused.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// It cannot be read.
    #[error("cannot read the checkpoint `{}`: {reason}", path.display())]
    Read {
        /// The path.
        path: PathBuf,
        /// The system's reason.
        reason: std::io::Error,
    },
    /// A folder without tensors.
    #[error("the folder `{}` holds neither `{SINGLE}` nor `{INDEX}`", .0.display())]
    Empty(PathBuf),
    /// Not a safetensors file, or a damaged one.
    #[error("`{}` is no valid safetensors file: {reason}", path.display())]
    Header {
        /// The path.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A bad index.
    #[error("`{}`: {reason}", path.display())]
    Index {
        /// The path.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl CheckpointError {
    /// Exit code of a command that fails with it.
    pub fn exit_code(&self) -> u8 {
        match self {
            CheckpointError::Read { .. } | CheckpointError::Empty(_) => 3,
            CheckpointError::Header { .. } | CheckpointError::Index { .. } => 2,
        }
    }
}

struct Shard {
    map: Mmap,
    data: usize,
    metadata: Metadata,
}

/// A tensor of a checkpoint.
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'a> {
    /// Element type.
    pub dtype: Dtype,
    /// Sizes.
    pub shape: &'a [usize],
    /// Contents, little-endian.
    pub data: &'a [u8],
}

/// An open checkpoint.
pub struct Checkpoint {
    shards: Vec<Shard>,
    /// Shard of each tensor.
    tensors: BTreeMap<String, usize>,
}

impl Checkpoint {
    /// Opens a file, or a folder with one file or an index.
    ///
    /// # Errors
    /// Unreadable or malformed files.
    pub fn open(path: &Path) -> Result<Checkpoint, CheckpointError> {
        let meta = std::fs::metadata(path).map_err(|reason| CheckpointError::Read { path: path.into(), reason })?;
        if !meta.is_dir() {
            return Checkpoint::single(path);
        }
        let (single, index) = (path.join(SINGLE), path.join(INDEX));
        if index.exists() {
            Checkpoint::sharded(path, &index)
        } else if single.exists() {
            Checkpoint::single(&single)
        } else {
            Err(CheckpointError::Empty(path.into()))
        }
    }

    fn single(path: &Path) -> Result<Checkpoint, CheckpointError> {
        let shard = Shard::open(path)?;
        let tensors = shard.metadata.offset_keys().into_iter().map(|name| (name, 0)).collect();
        Ok(Checkpoint { shards: vec![shard], tensors })
    }

    fn sharded(dir: &Path, index: &Path) -> Result<Checkpoint, CheckpointError> {
        let fail = |reason: String| CheckpointError::Index { path: index.into(), reason };
        let map = weight_map(index)?;
        let mut order: BTreeMap<&str, usize> = BTreeMap::new();
        let mut shards = Vec::new();
        for file in map.values().collect::<BTreeSet<_>>() {
            let plain = Path::new(file).file_name().is_some_and(|n| n == file.as_str());
            if !plain || file.contains(['/', '\\']) {
                return Err(fail(format!("`{file}` is no plain file name")));
            }
            order.insert(file, shards.len());
            shards.push(Shard::open(&dir.join(file))?);
        }
        let mut tensors = BTreeMap::new();
        for (name, file) in &map {
            let at = order.get(file.as_str()).copied().unwrap_or(0);
            if shards[at].metadata.info(name).is_none() {
                return Err(fail(format!("tensor `{name}` is not in `{file}`")));
            }
            tensors.insert(name.clone(), at);
        }
        Ok(Checkpoint { shards, tensors })
    }

    /// Names of all tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<Tensor<'_>> {
        let shard = &self.shards[*self.tensors.get(name)?];
        let info = shard.metadata.info(name)?;
        let (from, to) = info.data_offsets;
        let data = shard.map.get(shard.data.checked_add(from)?..shard.data.checked_add(to)?)?;
        Some(Tensor { dtype: info.dtype, shape: &info.shape, data })
    }
}

impl Shard {
    fn open(path: &Path) -> Result<Shard, CheckpointError> {
        let read = |reason| CheckpointError::Read { path: path.into(), reason };
        let header = |reason: String| CheckpointError::Header { path: path.into(), reason };
        let file = File::open(path).map_err(read)?;
        if file.metadata().map_err(read)?.len() < 8 {
            return Err(header("it is shorter than a header's length".into()));
        }
        // SAFETY: the map is private and read only. Another process that truncates the file while it is mapped
        // would make reads fail with a signal; checkpoints are not changed in place while a model runs.
        #[allow(unsafe_code)] // the only way to map a file
        let map = unsafe { Mmap::map(&file) }.map_err(read)?;
        let (length, metadata) = SafeTensors::read_metadata(&map).map_err(|e| header(e.to_string()))?;
        Ok(Shard { map, data: length + 8, metadata })
    }
}

fn weight_map(index: &Path) -> Result<BTreeMap<String, String>, CheckpointError> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let read = |reason| CheckpointError::Read { path: index.into(), reason };
    let fail = |reason: String| CheckpointError::Index { path: index.into(), reason };
    if std::fs::metadata(index).map_err(read)?.len() > MAX_INDEX_BYTES {
        return Err(fail("it is too large".into()));
    }
    let text = std::fs::read(index).map_err(read)?;
    let parsed: Index = serde_json::from_slice(&text).map_err(|e| fail(e.to_string()))?;
    Ok(parsed.weight_map)
}
