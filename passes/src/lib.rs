//! dsc-passes: from the op graph of a step to the kernel schedule of a phase.
//!
//! A straight line of passes ([`pipeline::PASSES`]), each leaving [`remark::Remarks`] for what it did and what it
//! left. Passes read shapes, accesses and target data; they touch no device, no file, no clock.

pub mod explain;
pub mod extract;
pub mod fuse;
pub mod merge_linears;
pub mod pipeline;
pub mod place_quantisation;
pub mod remark;
pub mod rewrite;

use dsc_ir::graph::ValueId;

/// A value that a caller wants to see after the step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probed {
    /// Name, such as `logits`.
    pub name: String,
    /// Layer.
    pub layer: Option<u32>,
    /// The value.
    pub value: ValueId,
}

/// Rounding switches that passes apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numerics {
    /// Operands of FP8 and FP4 linears become FP8 per 32 channels.
    pub linear_inputs_fp8: bool,
    /// The grouped output projection's operand too.
    pub wo_a_fp8: bool,
}
