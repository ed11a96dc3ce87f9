//! Lowering: the ops of a kernel to one loop program.
//!
//! One generator serves every kernel: it walks the ops in program order and writes, for each, loops over the rows
//! of the block. Operands are read and results written through `view`, which knows where a value lives (a
//! parameter, or scratch for what never leaves the kernel) and how its dtype is stored, so that a value reads the
//! same whether it was just computed or comes from another kernel.
//!
//! Sums run in ascending index, or in the order of [`crate::loops::Stmt::Dense`]; both depend on positions and
//! sizes alone, never on the row block or on how a prompt is split over steps.

mod attention;
mod codec;
mod cx;
mod engram;
mod index;
mod lanes;
mod linear;
mod math;
mod mix;
mod norm;
mod pointwise;
mod quantize;
mod router;
mod select;
mod slice;
mod state;
mod view;

use crate::loops::{self, Func};
use cx::Cx;
use dsc_ir::graph::Node;
use dsc_ir::kernel::Kernel;
use dsc_ir::op::Op;

/// How a kernel is lowered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LowerOptions {
    /// Most rows of a block; also the rows that scratch has room for.
    pub row_block: u64,
    /// Whether the backend has the dense micro-kernel and runs lanes one after the other (a CPU).
    /// Without it linears are loops of their own, and loops are flattened so that lanes are many.
    pub dense: bool,
    /// Bytes that scratch should keep to where lanes run side by side. Heads are then done in groups; what still does
    /// not fit is for the backend to refuse.
    pub scratch_limit: Option<u64>,
}

impl LowerOptions {
    /// For a CPU, in blocks of at most this many rows.
    pub fn cpu(row_block: u64) -> LowerOptions {
        LowerOptions { row_block, dense: true, scratch_limit: None }
    }

    /// A row at a time for lanes side by side, with this much scratch.
    pub fn lanes(scratch_limit: Option<u64>) -> LowerOptions {
        LowerOptions { row_block: 1, dense: false, scratch_limit }
    }
}

/// A kernel that cannot be lowered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("kernel `{kernel}`: {message}")]
pub struct LowerError {
    /// Name of the kernel.
    pub kernel: String,
    /// What stands in the way.
    pub message: String,
}

/// Writes the loop program of a kernel.
///
/// # Errors
/// A value that fits neither a parameter nor scratch, an op the backend computes otherwise, or a loop program
/// that does not verify.
pub fn lower(kernel: &Kernel, symbol: &str, opts: &LowerOptions) -> Result<Func, LowerError> {
    let by_rows = opts.row_block <= 1 && !opts.dense;
    let func = match by_rows.then(|| slice::Plan::of(kernel)).flatten() {
        Some(plan) => slice::lower(kernel, symbol, opts, &plan)?,
        None => {
            let mut cx = Cx::new(kernel, symbol, opts, kernel.graph.node_ids());
            kernel.graph.node_ids().try_for_each(|id| slice::one(&mut cx, kernel, id))?;
            cx.finish()
        }
    };
    loops::verify(&func).map_err(|e| LowerError { kernel: kernel.name.clone(), message: e.to_string() })?;
    Ok(func)
}

fn node(cx: &mut Cx<'_>, n: &Node) -> Result<(), LowerError> {
    match &n.op {
        Op::Embed(_) => pointwise::embed(cx, n),
        Op::Repeat(o) => pointwise::repeat(cx, n, o),
        Op::OneHot(o) => pointwise::one_hot(cx, n, o),
        Op::TakeRows(_) => pointwise::take_rows(cx, n),
        Op::Add(_) => pointwise::add(cx, n),
        Op::SwiGlu(o) => pointwise::swiglu(cx, n, o),
        Op::ExpertSum(o) => pointwise::expert_sum(cx, n, o),
        Op::AllReduce(o) => pointwise::all_reduce(cx, n, o),
        Op::MhcStats(o) => mix::stats(cx, n, o),
        Op::MhcCoeffs(o) => mix::coeffs(cx, n, o),
        Op::HeadCoeffs(o) => mix::head_coeffs(cx, n, o),
        Op::Collapse(_) => mix::collapse(cx, n),
        Op::Expand(_) => mix::expand(cx, n),
        Op::RmsNorm(o) => norm::rms_norm(cx, n, o),
        Op::Rope(o) => norm::rope(cx, n, o),
        Op::Hadamard(_) => norm::hadamard(cx, n),
        Op::Quantize(o) => quantize::quantize(cx, n, o),
        Op::Linear(_) => linear::linear(cx, n),
        Op::GroupLinear(o) => linear::group_linear(cx, n, o),
        Op::ExpertLinear(_) => linear::expert_linear(cx, n),
        Op::RingWrite(_) => state::ring_write(cx, n),
        Op::PageWrite(o) => state::page_write(cx, n, o),
        Op::Pool(o) => state::pool(cx, n, o),
        Op::IndexScores(o) => index::index_scores(cx, n, o),
        Op::TopK(o) => select::top_k(cx, n, o),
        Op::CandidateBlocks(o) => select::candidate_blocks(cx, n, o),
        Op::SparseAttention(o) => attention::sparse_attention(cx, n, o),
        Op::RouterTopK(o) => router::top_k(cx, n, o),
        Op::RouterHash(o) => router::hash(cx, n, o),
        Op::LocalExperts(_) => router::local(cx, n),
        Op::EngramHash(o) => engram::hash(cx, n, o),
        Op::EngramGather(o) => engram::gather(cx, n, o),
        Op::EngramInject(o) => engram::inject(cx, n, o),
    }
}
