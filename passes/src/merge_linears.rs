//! `merge-linears`: one product for all linears over one operand, their weights side by side along N.
//!
//! ```text
//! %a = linear(%x, %w1)         ==>     %a, %b = linear(%x, %w1, %w2)
//! %b = linear(%x, %w2)
//! ```
//!
//! Legal when operand and weight format agree; mixed formats stay apart, since one loop reads one format.
//! The same for linears of chosen experts with the same routing.

use crate::Probed;
use crate::remark::Remarks;
use crate::rewrite::Rewriter;
use dsc_ir::graph::{Graph, Node, NodeId, TypeError, ValueId};
use dsc_ir::op::{self, Op};
use indexmap::IndexMap;
use std::collections::HashMap;

const NAME: &str = "merge-linears";

/// Operands that must agree, and the first weight.
fn key(graph: &Graph, node: &Node) -> Option<(Vec<ValueId>, dsc_ir::dtype::DType)> {
    let first = match node.op {
        Op::Linear(_) => 1,
        Op::ExpertLinear(_) => 2,
        _ => return None,
    };
    Some((node.inputs[..first].to_vec(), graph.ty(node.inputs[first]).dtype))
}

/// Runs the pass.
///
/// # Errors
/// None on a verified graph.
pub fn run(graph: &Graph, probes: &mut [Probed], remarks: &mut Remarks) -> Result<Graph, TypeError> {
    let mut sites: IndexMap<_, Vec<NodeId>> = IndexMap::new();
    let mut operands: HashMap<Vec<ValueId>, Vec<String>> = HashMap::new();
    for n in graph.node_ids() {
        if let Some(k) = key(graph, graph.node(n)) {
            operands.entry(k.0.clone()).or_default().push(k.1.to_string());
            sites.entry(k).or_default().push(n);
        }
    }
    let mut leader: HashMap<NodeId, Vec<NodeId>> = HashMap::new();
    let mut follower: HashMap<NodeId, NodeId> = HashMap::new();
    for ((inputs, format), nodes) in &sites {
        let (first, rest) = (nodes[0], &nodes[1..]);
        let layer = graph.node(first).layer;
        let what = format!("{} linears of {}", nodes.len(), graph.value(inputs[0]).name);
        if !rest.is_empty() {
            let saved = graph.ty(inputs[0]).bytes() * dsc_ir::expr::Expr::Const(rest.len() as u64);
            remarks.taken(NAME, layer, what, format!("one operand, all weights {format}"), saved.to_string());
            leader.insert(first, nodes.clone());
            follower.extend(rest.iter().map(|n| (*n, first)));
        } else if operands[inputs].len() > 1 {
            let others = operands[inputs].iter().find(|f| **f != format.to_string());
            if let Some(other) = others {
                remarks.refused(NAME, layer, what, format!("other linears of it have {other} weights, this {format}"));
            }
        }
    }
    let mut r = Rewriter::new(graph);
    for n in graph.node_ids() {
        if follower.contains_key(&n) {
            continue;
        }
        match leader.get(&n) {
            None => r.copy(n)?,
            Some(nodes) => merge(graph, &mut r, nodes)?,
        }
    }
    r.finish(probes)
}

/// Emits the merged node in place of the first one.
fn merge(graph: &Graph, r: &mut Rewriter<'_>, nodes: &[NodeId]) -> Result<(), TypeError> {
    let first = graph.node(nodes[0]);
    let shared = if matches!(first.op, Op::ExpertLinear(_)) { 2 } else { 1 };
    let mut inputs = first.inputs[..shared].iter().map(|v| r.get(*v)).collect::<Result<Vec<_>, _>>()?;
    let mut heads = Vec::new();
    let mut outputs = Vec::new();
    for n in nodes {
        let node = graph.node(*n);
        for w in &node.inputs[shared..] {
            inputs.push(r.get(*w)?);
        }
        if let Op::Linear(l) = &node.op {
            heads.extend(l.heads.iter().copied());
        }
        outputs.extend(node.outputs.iter().copied());
    }
    let op: Op = match first.op {
        Op::ExpertLinear(_) => op::ExpertLinear {}.into(),
        _ => op::Linear { heads }.into(),
    };
    let names: Vec<(String, _)> = outputs.iter().map(|v| (graph.value(*v).name.clone(), graph.ty(*v).dtype)).collect();
    let named: Vec<(&str, _)> = names.iter().map(|(n, d)| (n.as_str(), *d)).collect();
    let made = r.new.add(op, first.layer, &inputs, &named)?;
    for (old, new) in outputs.into_iter().zip(made) {
        r.set(old, new);
    }
    Ok(())
}
