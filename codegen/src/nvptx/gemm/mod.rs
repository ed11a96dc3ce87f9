//! Gemm kernels: `y_i[M, n_i] = x[M, k] · w_i[n_i, k]ᵀ` for any `M`, `n_i` and `k`, on every GPU from sm_75 on.
//!
//! [`GemmDesc`] says what, [`GemmPlan`] how, [`emit_gemm`] writes it. Operands are widened to f32 and multiplied and
//! added by `fma` in ascending `k`, one chain per element: the result does not depend on `M`, on the tile or on the
//! target. Weights are read in their storage format and decoded on the way to shared memory.
//!
//! Not here: ops before or after the linear, products of chosen experts, tensor cores.

mod desc;
mod emit;
mod load;
mod plan;

pub use desc::{GemmDesc, GemmOutput, RowOperand, RowsHint};
pub use plan::GemmPlan;

use super::machine::{Compiled, arch_number, compile, machine};
use super::{GpuKernel, NvptxError, check_symbol};
use dsc_ir::expr::{Expr, Sym};
use dsc_ir::kernel::Kernel;
use dsc_ir::target::Target;
use inkwell::context::Context;

/// Describes, plans and writes a kernel of linears. Rows of logits are taken to be few whatever the hint.
///
/// # Errors
/// The kernel holds something else, the target is unknown, or LLVM refuses the module.
pub fn emit_kernel(kernel: &Kernel, symbol: &str, target: &Target, hint: RowsHint) -> Result<GpuKernel, NvptxError> {
    let of_logits = kernel.rows.mentions(Sym::OutRows) && !kernel.rows.mentions(Sym::Tokens);
    let desc = GemmDesc::of_kernel(kernel, symbol, if of_logits { RowsHint::Few } else { hint })?;
    emit_gemm(&desc, &GemmPlan::new(&desc, target), target)
}

/// Writes the kernel of a gemm.
///
/// # Errors
/// The target is unknown, or LLVM refuses the module.
pub fn emit_gemm(desc: &GemmDesc, plan: &GemmPlan, target: &Target) -> Result<GpuKernel, NvptxError> {
    check_symbol(&desc.symbol)?;
    let machine = machine(target)?;
    let cx = Context::create();
    let module = emit::emit(&cx, desc, plan, arch_number(target).unwrap_or(0))?;
    module.set_triple(&machine.get_triple());
    module.set_data_layout(&machine.get_target_data().get_data_layout());
    let Compiled { ptx, llvm } = compile(&module, &machine, &desc.symbol)?;
    Ok(GpuKernel {
        ptx,
        llvm,
        symbol: desc.symbol.clone(),
        grid: [desc.rows.clone().ceil_div(plan.block_m), Expr::Const(plan.n_tiles(desc)), Expr::Const(1)],
        threads: plan.threads(),
        smem_dynamic_bytes: 0,
        smem_static_bytes: plan.smem_bytes(),
    })
}
