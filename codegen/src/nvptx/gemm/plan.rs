//! How a gemm kernel runs: tiles, threads and shared memory. A pure function of what and where.

use super::desc::{GemmDesc, RowsHint};
use dsc_ir::target::Target;

/// Floats between rows of a tile in shared memory beyond its width: keeps rows 16-byte aligned and on other banks.
const PAD: u64 = 4;

/// Tiles and threads of a gemm kernel. A block computes `block_m` rows of `block_n` columns in steps of `block_k`;
/// a thread `thread_m` rows of `thread_n` columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemmPlan {
    /// Rows of a block.
    pub block_m: u64,
    /// Columns of a block.
    pub block_n: u64,
    /// Channels of a step.
    pub block_k: u64,
    /// Rows of a thread.
    pub thread_m: u64,
    /// Columns of a thread.
    pub thread_n: u64,
}

impl GemmPlan {
    /// The plan for a gemm on a target. It uses nothing that sm_75 lacks, so the target does not matter yet.
    pub fn new(desc: &GemmDesc, _target: &Target) -> GemmPlan {
        match desc.hint {
            // Weights are read once and barely reused: narrow tiles, so that many blocks read at once.
            RowsHint::Few => GemmPlan { block_m: 8, block_n: 32, block_k: 64, thread_m: 1, thread_n: 2 },
            // 32 products for 12 values read from shared memory.
            RowsHint::Many => GemmPlan { block_m: 128, block_n: 64, block_k: 16, thread_m: 8, thread_n: 4 },
        }
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        (self.block_m / self.thread_m * (self.block_n / self.thread_n)) as u32
    }

    /// Floats between rows (of one channel) of the tile of `x`.
    pub(super) fn x_stride(&self) -> u64 {
        self.block_m + PAD
    }

    /// Floats between rows of the tile of `w`.
    pub(super) fn w_stride(&self) -> u64 {
        self.block_n + PAD
    }

    /// Byte address of the tile of `w`; that of `x` starts at 0.
    pub(super) fn w_tile_at(&self) -> u64 {
        self.block_k * self.x_stride() * 4
    }

    /// Both tiles.
    pub fn smem_bytes(&self) -> u64 {
        self.block_k * (self.x_stride() + self.w_stride()) * 4
    }

    /// Column tiles of one output: tiles do not cross groups.
    pub(super) fn tiles_of(&self, desc: &GemmDesc, n: u64) -> u64 {
        desc.groups * (n / desc.groups).div_ceil(self.block_n)
    }

    /// Column tiles of all outputs.
    pub fn n_tiles(&self, desc: &GemmDesc) -> u64 {
        desc.outputs.iter().map(|o| self.tiles_of(desc, o.n)).sum()
    }
}
