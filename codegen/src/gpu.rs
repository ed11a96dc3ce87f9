//! Which plan a kernel gets on a GPU.
//!
//! Kernels that are linears and nothing else go through [`nvptx::gemm`], in tiles; all others through loop programs,
//! one thread block per row.

use crate::lower::{self, LowerOptions};
use crate::nvptx::row::{RowPlan, emit_row};
use crate::nvptx::{self, GpuKernel, NvptxError};
use dsc_ir::kernel::{Anchor, Kernel};
use dsc_ir::target::Target;

pub use crate::nvptx::gemm::RowsHint;

/// PTX of a kernel that either phase may launch.
///
/// # Errors
/// Why there is none, for a person.
pub fn emit(kernel: &Kernel, symbol: &str, target: &Target) -> Result<GpuKernel, String> {
    emit_for(kernel, symbol, target, RowsHint::Many)
}

/// PTX of a kernel whose launches usually have few or many rows of tokens; rows of logits are always few. The hint
/// moves work between blocks and never changes a result.
///
/// # Errors
/// As [`emit`].
pub fn emit_for(kernel: &Kernel, symbol: &str, target: &Target, hint: RowsHint) -> Result<GpuKernel, String> {
    match kernel.anchor {
        Anchor::Gemm => match nvptx::gemm::emit_kernel(kernel, symbol, target, hint) {
            Err(NvptxError::Unsupported { .. }) => row(kernel, symbol, target),
            made => made.map_err(|e| e.to_string()),
        },
        Anchor::Row
        | Anchor::Gather
        | Anchor::TopK
        | Anchor::IndexLogits
        | Anchor::SparseAttention
        | Anchor::GroupedGemm
        | Anchor::Collective => row(kernel, symbol, target),
    }
}

/// Shared memory that scratch leaves to the partial results of reductions.
const FOR_REDUCTIONS: u64 = 1024;

fn row(kernel: &Kernel, symbol: &str, target: &Target) -> Result<GpuKernel, String> {
    let limit = target.machine.smem_per_block_bytes.saturating_sub(FOR_REDUCTIONS);
    let options = LowerOptions::lanes(Some(limit));
    let func = lower::lower(kernel, symbol, &options).map_err(|e| e.to_string())?;
    let plan = RowPlan::new(&func, kernel.rows.clone(), target).map_err(|e| e.to_string())?;
    emit_row(&func, target, &plan).map_err(|e| e.to_string())
}
