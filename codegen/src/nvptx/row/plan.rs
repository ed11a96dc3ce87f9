//! How a row kernel runs: threads and shared memory. A pure function of the program and the target.

use super::super::builder::BlockShape;
use super::super::{NvptxError, STATIC_SMEM_LIMIT};
use crate::loops::{Acc, Combine, Func, Inst, Stmt, Var};
use dsc_ir::expr::Expr;
use dsc_ir::target::Target;
use std::collections::HashMap;

/// Threads of a block where the trip counts are known only at launch.
const USUAL_THREADS: u32 = 256;
/// Most threads of a block: 128 registers remain for each.
const MOST_THREADS: u32 = 512;
/// Iterations a thread should find in the longest parallel loop: enough to hide a load's latency behind others.
const ITERATIONS_PER_THREAD: i64 = 4;
/// Bytes a warp leaves for the others in a reduction, for each value: an f32 and an index, or an i64.
pub(super) const PARTIAL_BYTES: u64 = 8;

/// Threads and shared memory of a row kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowPlan {
    /// Rows of the kernel's domain: blocks of the grid.
    pub rows: Expr,
    /// Threads of a block, a multiple of 32.
    pub threads: u32,
    /// Byte address of each scratch area.
    pub scratch_at: Vec<u64>,
    /// Byte address of the partial results of reductions.
    pub partials_at: u64,
    /// All of it.
    pub smem_bytes: u64,
}

impl RowPlan {
    /// The plan for a program over `rows`.
    ///
    /// # Errors
    /// The scratch areas do not fit a block's shared memory, or the program wants several rows at once.
    pub fn new(func: &Func, rows: Expr, target: &Target) -> Result<RowPlan, NvptxError> {
        if func.row_block != 1 {
            let lacking = vec![format!("blocks of {} rows (one block computes one row)", func.row_block)];
            return Err(NvptxError::Unsupported { kernel: func.name.clone(), lacking });
        }
        let mut scan = Scan::default();
        scan.block(&func.body);
        let threads = threads_for(&scan);
        let mut at = 0;
        let mut scratch_at = Vec::with_capacity(func.scratch.len());
        for area in &func.scratch {
            scratch_at.push(at);
            at += area.bytes.next_multiple_of(16);
        }
        let n_warps = u64::from(threads / 32);
        let partials = if n_warps > 1 { scan.most_accs * n_warps * PARTIAL_BYTES } else { 0 };
        let smem_bytes = at + partials.next_multiple_of(16);
        let limit = target.machine.smem_per_block_bytes;
        if smem_bytes > limit {
            return Err(NvptxError::SharedMemory { kernel: func.name.clone(), needed: smem_bytes, limit });
        }
        Ok(RowPlan { rows, threads, scratch_at, partials_at: at, smem_bytes })
    }

    /// Warps of a block.
    pub fn n_warps(&self) -> u32 {
        self.threads / 32
    }

    /// The block, with 128 registers for a thread.
    pub(in crate::nvptx) fn shape(&self) -> BlockShape {
        BlockShape { threads: self.threads, resident: (MOST_THREADS / self.threads).max(1) }
    }

    /// Bytes that the module declares.
    pub fn smem_static_bytes(&self) -> u64 {
        if self.smem_bytes <= STATIC_SMEM_LIMIT { self.smem_bytes } else { 0 }
    }

    /// Bytes that a launch asks for.
    pub fn smem_dynamic_bytes(&self) -> u64 {
        self.smem_bytes - self.smem_static_bytes()
    }
}

fn threads_for(scan: &Scan) -> u32 {
    if scan.symbolic_trip {
        return USUAL_THREADS;
    }
    let wanted = (scan.longest / ITERATIONS_PER_THREAD).clamp(1, i64::from(MOST_THREADS)) as u32;
    wanted.next_power_of_two().clamp(32, MOST_THREADS)
}

/// What a program's parallel loops look like.
#[derive(Default)]
struct Scan {
    known: HashMap<Var, i64>,
    longest: i64,
    symbolic_trip: bool,
    most_accs: u64,
}

impl Scan {
    fn block(&mut self, stmts: &[Stmt]) {
        for s in stmts {
            match s {
                Stmt::Let(v, Inst::ConstI(c)) => {
                    self.known.insert(*v, *c);
                }
                Stmt::Let(..) | Stmt::Store { .. } | Stmt::Dense { .. } => {}
                Stmt::For { body, .. } | Stmt::If { body, .. } => self.block(body),
                Stmt::Lanes { n, .. } => self.trip(*n),
                Stmt::Reduce { n, accs, .. } => {
                    self.trip(*n);
                    self.most_accs = self.most_accs.max(accs.len() as u64);
                }
            }
        }
    }

    fn trip(&mut self, n: Var) {
        match self.known.get(&n) {
            Some(c) => self.longest = self.longest.max(*c),
            None => self.symbolic_trip = true,
        }
    }
}

/// Whether a reduction carries an index beside its value.
pub(super) fn has_index(acc: &Acc) -> bool {
    acc.combine == Combine::ArgMax
}
