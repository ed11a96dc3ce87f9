//! Well-formedness of graphs: single assignment, types as inferred, states written only by their ops.
//!
//! Passes run it between each other; what consumes a graph asks for a [`Verified`] one.

use crate::dtype::DType;
use crate::expr::{Expr, Sym};
use crate::graph::{Def, Graph, NodeId, StateKind, TensorType, TypeError, Value, ValueId};
use crate::infer;
use crate::op::{Op, Select};
use std::collections::BTreeMap;

/// A graph that passed [`verify`].
#[derive(Debug, Clone, Copy)]
pub struct Verified<'g> {
    graph: &'g Graph,
}

impl<'g> Verified<'g> {
    /// The graph.
    pub fn graph(&self) -> &'g Graph {
        self.graph
    }
}

impl std::ops::Deref for Verified<'_> {
    type Target = Graph;
    fn deref(&self) -> &Graph {
        self.graph
    }
}

/// Checks a whole graph.
///
/// # Errors
/// All findings.
pub fn verify(graph: &Graph) -> Result<Verified<'_>, Vec<TypeError>> {
    let mut errors = Vec::new();
    check_values(graph, &mut errors);
    for id in graph.node_ids() {
        if let Err(e) = node(graph, id) {
            errors.push(e);
        }
    }
    for r in &graph.results {
        match graph.values.get(r.idx()).map(|v| &v.def) {
            None => errors.push(TypeError::new(format!("result %{} does not exist", r.0))),
            Some(Def::State(_)) => errors.push(TypeError::new(format!("result %{} is a state", r.0))),
            Some(Def::Input | Def::Weight(_) | Def::Node { .. }) => {}
        }
    }
    if errors.is_empty() { Ok(Verified { graph }) } else { Err(errors) }
}

/// Checks one node: operands defined before it, results its own, types as inferred.
///
/// # Errors
/// The first finding.
pub fn node(graph: &Graph, id: NodeId) -> Result<(), TypeError> {
    let Some(node) = graph.nodes.get(id.idx()) else {
        return Err(TypeError::new(format!("node {} does not exist", id.0)));
    };
    let fail = |m: String| Err(TypeError::new(format!("node {} (`{}`): {m}", id.0, node.op.name())));
    for v in &node.inputs {
        match graph.values.get(v.idx()).map(|v| &v.def) {
            None => return fail(format!("operand %{} does not exist", v.0)),
            Some(Def::Node { node: from, .. }) if from.0 >= id.0 => {
                return fail(format!("operand %{} is not defined before it", v.0));
            }
            Some(_) => {}
        }
    }
    check_results(graph, id).or_else(fail)?;
    let types: Vec<&TensorType> = node.inputs.iter().map(|v| graph.ty(*v)).collect();
    let shapes = infer::shapes(&node.op, &types)?;
    if shapes.len() != node.outputs.len() {
        return fail(format!("has {} results, not {}", shapes.len(), node.outputs.len()));
    }
    for (i, (v, shape)) in node.outputs.iter().zip(shapes).enumerate() {
        let ty = graph.ty(*v);
        if ty.shape != shape {
            let inferred = TensorType::new(ty.dtype, shape);
            return fail(format!("result %{} is {ty}, but {inferred} is inferred", v.0));
        }
        infer::check_output(&node.op, i, ty)?;
    }
    if has_zero_ratio(&node.op) {
        return fail("entries of 0 tokens".into());
    }
    check_states(graph, id).or_else(fail)
}

fn has_zero_ratio(op: &Op) -> bool {
    match op {
        Op::PageWrite(o) => o.ratio == 0,
        Op::Pool(o) => o.ratio == 0,
        Op::IndexScores(o) => o.ratio == 0,
        Op::TopK(o) => o.ratio == 0,
        Op::CandidateBlocks(o) => o.ratio == 0 || o.block == 0,
        Op::SparseAttention(o) => o.ratio == 0 && o.select != Select::None,
        _ => false,
    }
}

fn check_results(graph: &Graph, id: NodeId) -> Result<(), String> {
    let node = graph.node(id);
    for (i, v) in node.outputs.iter().enumerate() {
        let Some(value) = graph.values.get(v.idx()) else {
            return Err(format!("result %{} does not exist", v.0));
        };
        if value.def != (Def::Node { node: id, output: i as u32 }) {
            return Err(format!("result %{} is defined elsewhere", v.0));
        }
        if value.layer != node.layer {
            return Err(format!("result %{} (`{}`) belongs to another layer", v.0, value.name));
        }
    }
    Ok(())
}

/// Operands that are read as rings or pages, the latter with their ratio.
fn state_operands(op: &Op) -> Vec<(usize, Option<u32>)> {
    match op {
        Op::RingWrite(_) => vec![(0, None)],
        Op::PageWrite(o) => vec![(0, Some(o.ratio))],
        Op::Pool(_) => vec![(2, None), (3, None)],
        Op::IndexScores(o) => vec![(2, Some(o.ratio))],
        Op::SparseAttention(o) if o.select == Select::None => vec![(2, None)],
        Op::SparseAttention(o) => vec![(2, None), (4 + usize::from(o.sink), Some(o.ratio))],
        Op::EngramHash(_) => vec![(2, None)],
        _ => Vec::new(),
    }
}

fn check_states(graph: &Graph, id: NodeId) -> Result<(), String> {
    let node = graph.node(id);
    let uses = state_operands(&node.op);
    for (i, v) in node.inputs.iter().enumerate() {
        let want = uses.iter().find(|(at, _)| *at == i).map(|(_, ratio)| *ratio);
        let written = i == 0 && node.op.writes_state();
        match (&graph.value(*v).def, want) {
            (Def::State(_), None) => return Err(format!("operand {i} (%{}) is a state, which it cannot read", v.0)),
            (Def::State(StateKind::Ring { .. }), Some(None)) => {}
            (Def::State(StateKind::Pages { ratio }), Some(Some(want))) if *ratio == want => {}
            (Def::State(kind), Some(_)) => return Err(format!("operand {i} (%{}) does not suit {kind:?}", v.0)),
            (Def::Input | Def::Weight(_) | Def::Node { .. }, _) if written => {
                return Err(format!("writes %{}, which is no state", v.0));
            }
            (Def::Input | Def::Weight(_) | Def::Node { .. }, _) => {}
        }
    }
    Ok(())
}

fn check_values(graph: &Graph, errors: &mut Vec<TypeError>) {
    let mut names: BTreeMap<(&str, Option<u32>), ValueId> = BTreeMap::new();
    for id in graph.value_ids() {
        let value = graph.value(id);
        let mut fail = |m: String| errors.push(TypeError::new(format!("%{} (`{}`): {m}", id.0, value.name)));
        if value.name.is_empty() {
            fail("has no name".into());
        } else if let Some(other) = names.insert((&value.name, value.layer), id) {
            fail(format!("has the name of %{}", other.0));
        }
        if let Err(m) = check_value(graph, id, value) {
            fail(m);
        }
    }
}

fn check_value(graph: &Graph, id: ValueId, value: &Value) -> Result<(), String> {
    let ty = &value.ty;
    let rows = matches!(ty.dtype, DType::Packed(_) | DType::Weight(_));
    if rows && ty.shape.last().and_then(Expr::as_const).is_none() {
        return Err(format!("the last axis of {ty} must be constant"));
    }
    match &value.def {
        Def::Input => Ok(()),
        Def::Weight(_) if ty.shape.iter().all(|e| e.as_const().is_some()) => Ok(()),
        Def::Weight(_) => Err(format!("a weight has constant sizes, not {ty}")),
        Def::State(kind) => check_state(*kind, ty),
        Def::Node { node, output } => {
            let from = graph.nodes.get(node.idx()).and_then(|n| n.outputs.get(*output as usize));
            if from == Some(&id) { Ok(()) } else { Err("its node does not define it".into()) }
        }
    }
}

fn check_state(kind: StateKind, ty: &TensorType) -> Result<(), String> {
    let [seqs, slots, Expr::Const(_)] = &ty.shape[..] else {
        return Err(format!("a state has a sequence, slot and channel axis, unlike {ty}"));
    };
    if *seqs != Expr::Sym(Sym::Seqs) {
        return Err(format!("the first axis of a state is n_seqs, unlike {ty}"));
    }
    match kind {
        StateKind::Ring { keep } => match slots.as_const() {
            Some(n) if n >= keep.max(1) => Ok(()),
            _ => Err(format!("a ring that keeps {keep} has too few slots in {ty}")),
        },
        StateKind::Pages { ratio } if *slots == Expr::Sym(Sym::Context).ceil_div(u64::from(ratio)) => Ok(()),
        StateKind::Pages { ratio } => Err(format!("pages of ratio {ratio} do not have the type {ty}")),
    }
}
