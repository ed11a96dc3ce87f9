//! Which plan a kernel gets on a GPU.
//!
//! Kernels without products go through loop programs, one thread block per row; products through [`nvptx::gemm`].

use crate::lower::{self, LowerOptions};
use crate::nvptx::row::{RowPlan, emit_row};
use crate::nvptx::{self, GpuKernel};
use dsc_ir::kernel::{Anchor, Kernel};
use dsc_ir::target::Target;

/// PTX of a kernel.
///
/// # Errors
/// Why there is none, for a person.
pub fn emit(kernel: &Kernel, symbol: &str, target: &Target) -> Result<GpuKernel, String> {
    match kernel.anchor {
        Anchor::Row | Anchor::Gather | Anchor::TopK | Anchor::IndexLogits | Anchor::SparseAttention => {
            row(kernel, symbol, target)
        }
        Anchor::Gemm => gemm(kernel, symbol, target),
        Anchor::GroupedGemm | Anchor::Collective => Err(format!("there is no plan for the anchor `{}` yet", kernel.anchor)),
    }
}

fn row(kernel: &Kernel, symbol: &str, target: &Target) -> Result<GpuKernel, String> {
    let options = LowerOptions { row_block: 1, dense: false };
    let func = lower::lower(kernel, symbol, &options).map_err(|e| e.to_string())?;
    let plan = RowPlan::new(&func, kernel.rows.clone(), target).map_err(|e| e.to_string())?;
    emit_row(&func, target, &plan).map_err(|e| e.to_string())
}

fn gemm(kernel: &Kernel, symbol: &str, target: &Target) -> Result<GpuKernel, String> {
    nvptx::gemm::emit_kernel(kernel, symbol, target).map_err(|e| e.to_string())
}
