//! `place-quantisation`: packs the operands of quantised linears, by the `numerics` switches.
//!
//! ```text
//! %q = linear(%x, %w)          ==>     %x8 = quantize(%x) {format = fp8}
//! %k = linear(%x, %w2)                 %q = linear(%x8, %w) ; %k = linear(%x8, %w2)
//! ```
//!
//! Legal for linears whose weights are stored in a quantised format. One packed copy serves every linear of the
//! same operand.

use crate::remark::Remarks;
use crate::rewrite::Rewriter;
use crate::{Numerics, Probed};
use dsc_ir::dtype::{DType, RowFormat, WeightFormat};
use dsc_ir::graph::{Graph, Node, TypeError, ValueId};
use dsc_ir::op::{self, Op};
use std::collections::HashMap;

const NAME: &str = "place-quantisation";

/// Whether this node's first operand is to be packed.
fn wants(graph: &Graph, node: &Node, numerics: &Numerics) -> bool {
    let first_weight = match node.op {
        Op::Linear(_) | Op::GroupLinear(_) => 1,
        Op::ExpertLinear(_) => 2,
        _ => return false,
    };
    let switch = if matches!(node.op, Op::GroupLinear(_)) { numerics.wo_a_fp8 } else { numerics.linear_inputs_fp8 };
    let quantised =
        |v: &ValueId| matches!(graph.ty(*v).dtype, DType::Weight(WeightFormat::Fp8 { .. } | WeightFormat::Fp4));
    let plain = matches!(graph.ty(node.inputs[0]).dtype, DType::F32 | DType::Bf16);
    switch && plain && node.inputs[first_weight..].iter().all(quantised)
}

/// Runs the pass.
///
/// # Errors
/// An operand that its format cannot pack.
pub fn run(
    graph: &Graph,
    probes: &mut [Probed],
    numerics: &Numerics,
    remarks: &mut Remarks,
) -> Result<Graph, TypeError> {
    let mut r = Rewriter::new(graph);
    let mut packed: HashMap<ValueId, ValueId> = HashMap::new();
    let format = RowFormat::Fp8;
    for n in graph.node_ids() {
        let node = graph.node(n);
        if !wants(graph, node, numerics) {
            r.copy(n)?;
            continue;
        }
        let x = node.inputs[0];
        let q = match packed.get(&x) {
            Some(q) => *q,
            None => {
                let name = format!("{}.fp8", graph.value(x).name);
                let new_x = r.get(x)?;
                let made =
                    r.new.add(op::Quantize { format }, node.layer, &[new_x], &[(&name, DType::Packed(format))])?;
                remarks.taken(
                    NAME,
                    node.layer,
                    format!("quantize {}", graph.value(x).name),
                    "operand of linears with quantised weights, by `numerics`".into(),
                    String::new(),
                );
                packed.insert(x, made[0]);
                made[0]
            }
        };
        let mut inputs = node.inputs.iter().map(|v| r.get(*v)).collect::<Result<Vec<_>, _>>()?;
        inputs[0] = q;
        r.copy_with(n, &inputs)?;
    }
    r.finish(probes)
}
