//! PTX for NVIDIA GPUs, through LLVM.
//!
//! - [`row`]: one thread block per row, from a loop program;
//! - [`gemm`]: tiled products of rows with weights in their storage formats;
//! - `builder`, `instr`, `math` and `arith`: LLVM IR, one PTX instruction at a time;
//! - `machine`: checked targets and the way from a module to PTX.
//!
//! Every emitter makes its own LLVM context, so kernels can be emitted on many threads. LLVM ends the process on an
//! operation it cannot select; therefore only `builder` and `instr` write IR, with operations known to be
//! selectable, and `machine` refuses a module that calls anything else.

mod arith;
mod builder;
pub mod gemm;
mod instr;
mod machine;
mod math;
pub mod row;

use crate::loops::LoopError;
use dsc_ir::expr::Expr;

/// Shared memory that a kernel may hold statically on every architecture.
/// Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
pub(crate) const STATIC_SMEM_LIMIT: u64 = 48 * 1024;

/// A kernel in PTX, with what a launch needs to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuKernel {
    /// PTX text of a module that holds this kernel alone.
    pub ptx: String,
    /// The optimised LLVM IR that the PTX was made from.
    pub llvm: String,
    /// Entry point.
    pub symbol: String,
    /// Blocks: x, y, z.
    pub grid: [Expr; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Shared memory to ask for at launch.
    pub smem_dynamic_bytes: u64,
    /// Shared memory that the module declares.
    pub smem_static_bytes: u64,
}

/// Why a kernel has no PTX.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NvptxError {
    /// The target is not one of the GPUs that LLVM knows.
    #[error("no PTX for target `{target}`: {reason}")]
    Target {
        /// Name of the target.
        target: String,
        /// What does not fit.
        reason: String,
    },
    /// The kernel needs something that this emitter cannot do.
    #[error("kernel `{kernel}` cannot be emitted as PTX: {}", .lacking.join("; "))]
    Unsupported {
        /// Symbol.
        kernel: String,
        /// Everything that is missing.
        lacking: Vec<String>,
    },
    /// The kernel's scratch memory does not fit.
    #[error("kernel `{kernel}` needs {needed} bytes of shared memory, the target has {limit}")]
    SharedMemory {
        /// Symbol.
        kernel: String,
        /// Bytes it needs.
        needed: u64,
        /// Bytes a block may have.
        limit: u64,
    },
    /// The loop program is malformed.
    #[error(transparent)]
    Loops(#[from] LoopError),
    /// The module calls a function that LLVM could not turn into PTX.
    #[error("kernel `{kernel}` calls `{function}`, which has no PTX")]
    Forbidden {
        /// Symbol.
        kernel: String,
        /// The function.
        function: String,
    },
    /// LLVM refused the module.
    #[error("LLVM refused kernel `{kernel}`: {message}")]
    Llvm {
        /// Symbol.
        kernel: String,
        /// What LLVM said.
        message: String,
    },
}

/// Whether PTX takes `symbol` as it is.
fn check_symbol(symbol: &str) -> Result<(), NvptxError> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !symbol.is_empty() && symbol.chars().all(word) && !symbol.starts_with(|c: char| c.is_ascii_digit()) {
        return Ok(());
    }
    Err(NvptxError::Unsupported { kernel: symbol.into(), lacking: vec!["its name is no PTX identifier".into()] })
}
