//! Row kernels: a loop program of one row, run by one thread block per row.
//!
//! - The grid has one block per row; block `i` computes row `i`.
//! - Parameters: one pointer (device memory, 16-byte aligned) per parameter of the program, then `n_tokens`,
//!   `n_seqs`, `n_context`, `n_out_rows`, `n_tail_rows` as `i64`.
//! - Scratch areas lie in shared memory, statically if they fit 48 KiB, else sized at launch.
//! - `Lanes` iterations go to threads round robin. `Reduce` sums a thread's iterations in order, then warps by
//!   butterfly, then warps in order: the result depends on the number of threads, never on the number of rows.
//!
//! Not here: `Dense`, which row kernels of this backend do not hold.

mod emit;
mod plan;
mod reduce;

pub use plan::RowPlan;

use super::machine::{Compiled, arch_number, compile, machine};
use super::{GpuKernel, NvptxError, check_symbol};
use crate::loops::{self, Func};
use dsc_ir::expr::Expr;
use dsc_ir::target::Target;
use inkwell::context::Context;

/// Writes the kernel of a loop program.
///
/// # Errors
/// The target is unknown, the program is malformed or holds `Dense`, or LLVM refuses the module.
pub fn emit_row(func: &Func, target: &Target, plan: &RowPlan) -> Result<GpuKernel, NvptxError> {
    loops::verify(func)?;
    check_symbol(&func.name)?;
    let machine = machine(target)?;
    let cx = Context::create();
    let module = emit::emit(&cx, func, plan, arch_number(target).unwrap_or(0))?;
    module.set_triple(&machine.get_triple());
    module.set_data_layout(&machine.get_target_data().get_data_layout());
    let Compiled { ptx, llvm } = compile(&module, &machine, &func.name)?;
    Ok(GpuKernel {
        ptx,
        llvm,
        symbol: func.name.clone(),
        grid: [plan.rows.clone(), Expr::Const(1), Expr::Const(1)],
        threads: plan.threads,
        smem_dynamic_bytes: plan.smem_dynamic_bytes(),
        smem_static_bytes: plan.smem_static_bytes(),
    })
}
