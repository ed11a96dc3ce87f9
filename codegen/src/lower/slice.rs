//! Slices: a kernel whose rows are lines side by side (heads of an attention, chosen experts) is computed a few lines
//! at a time, so that what lies between its ops need not hold them all.
//!
//! The ops around the attention or the experts that treat each line by itself run in one loop with it. A sum over
//! experts is carried from one to the next, in the order that the sum is defined in.

use super::cx::Cx;
use super::pointwise::rank_of;
use super::view::View;
use super::{LowerError, LowerOptions, node};
use crate::loops::{Cmp, Func, IOp, Mem, Place, Var};
use dsc_ir::graph::{Def, Graph, Node, NodeId, ValueId};
use dsc_ir::kernel::Kernel;
use dsc_ir::op::Op;
use std::collections::HashSet;
use std::rc::Rc;

/// Which nodes of a kernel run slice by slice.
#[derive(Debug)]
pub struct Plan {
    /// Run once, ahead of the slices.
    before: Vec<NodeId>,
    /// Run for every slice.
    cut: Vec<NodeId>,
    /// Run once, after the slices.
    after: Vec<NodeId>,
    /// Lines of a row.
    of: u64,
    /// The sum over all lines, one of `after`.
    sum: Option<NodeId>,
    /// Values of which a slice has its lines alone.
    values: Rc<CutValues>,
}

#[derive(Debug, Default)]
struct CutValues {
    /// Read or written by lines.
    touched: HashSet<ValueId>,
    /// Computed by them.
    made: HashSet<ValueId>,
}

/// Lines `first .. first + lines` of a row.
#[derive(Debug, Clone)]
pub struct Slice {
    /// First line.
    pub first: Var,
    /// Lines.
    pub lines: u64,
    values: Rc<CutValues>,
}

impl Slice {
    /// Whether its lines of a value are a part of the row.
    pub fn cuts(&self, v: ValueId) -> bool {
        self.values.touched.contains(&v)
    }

    /// Whether it computes a value.
    pub fn makes(&self, v: ValueId) -> bool {
        self.values.made.contains(&v)
    }
}

/// Lines of a row of a value: its second axis, where there is a third.
fn lines_of(graph: &Graph, v: ValueId) -> Option<u64> {
    match graph.ty(v).shape.as_slice() {
        [_, lines, _, ..] if matches!(graph.value(v).def, Def::Input | Def::Node { .. }) => lines.as_const(),
        _ => None,
    }
}

/// The value whose lines an op works through.
fn anchor_value(node: &Node) -> Option<ValueId> {
    match node.op {
        Op::SparseAttention(_) | Op::ExpertLinear(_) => node.outputs.first().copied(),
        _ => None,
    }
}

/// Whether an op treats each line by itself.
fn is_linewise(op: &Op) -> bool {
    matches!(op, Op::Rope(_) | Op::RmsNorm(_) | Op::Hadamard(_) | Op::Quantize(_) | Op::SwiGlu(_) | Op::Add(_))
}

impl Plan {
    /// The slices of a kernel; none where it has nothing to cut, or where a value or a state is needed whole.
    pub fn of(kernel: &Kernel) -> Option<Plan> {
        let graph = &kernel.graph;
        let nodes: Vec<NodeId> = graph.node_ids().collect();
        let anchors: Vec<ValueId> = nodes.iter().filter_map(|id| anchor_value(graph.node(*id))).collect();
        let of = lines_of(graph, *anchors.first()?).filter(|of| *of > 1)?;
        if anchors.iter().any(|v| lines_of(graph, *v) != Some(of)) {
            return None;
        }
        let cut = grow(graph, &nodes, of);
        let made: HashSet<ValueId> = cut.iter().flat_map(|id| graph.node(*id).outputs.clone()).collect();
        let sums: Vec<NodeId> = nodes.iter().copied().filter(|id| sums_up(graph.node(*id), &made)).collect();
        let sum = match sums.as_slice() {
            [] => None,
            [one] => Some(*one),
            _ => return None,
        };
        let touched = cut.iter().flat_map(|id| {
            let node = graph.node(*id);
            node.inputs.iter().chain(&node.outputs).copied().filter(|v| lines_of(graph, *v) == Some(of))
        });
        let values = Rc::new(CutValues { touched: touched.collect(), made });
        let (before, after) = around(graph, &nodes, &cut, &values.made)?;
        let read = cut.iter().flat_map(|id| &graph.node(*id).inputs);
        let ids = sum.and_then(|id| graph.node(id).inputs.get(1));
        let (before, after) = deferred(graph, before, after, read.chain(ids).copied().collect());
        let plan = Plan { before, cut, after, of, sum, values };
        plan.holds(kernel).then_some(plan)
    }

    /// Whether nothing but the sum needs a local value whole, and no state changes between its uses.
    fn holds(&self, kernel: &Kernel) -> bool {
        let graph = &kernel.graph;
        let is_whole = |v: &ValueId| self.values.made.contains(v) && kernel.param_index(*v).is_none();
        let outside = self.before.iter().chain(&self.after).map(|id| (id, graph.node(*id)));
        let needs_whole = outside.clone().any(|(id, node)| {
            let from = usize::from(Some(*id) == self.sum);
            node.inputs.iter().skip(from).any(is_whole)
        });
        let written: HashSet<ValueId> =
            graph.nodes.iter().filter(|n| n.op.writes_state()).filter_map(|n| n.inputs.first().copied()).collect();
        let reads = self.cut.iter().flat_map(|id| &graph.node(*id).inputs);
        !needs_whole && !reads.into_iter().any(|v| written.contains(v))
    }

    /// The nodes in the order they are lowered in.
    pub fn order(&self) -> impl Iterator<Item = NodeId> {
        self.before.iter().chain(&self.cut).chain(&self.after).copied()
    }

    /// Whether lines cost nothing to be done one at a time: experts share nothing.
    fn is_free(&self, graph: &Graph) -> bool {
        self.cut.iter().all(|id| !matches!(graph.node(*id).op, Op::SparseAttention(_)))
    }
}

/// The nodes of the slices: attentions and expert linears, and what hangs on them line by line.
fn grow(graph: &Graph, nodes: &[NodeId], of: u64) -> Vec<NodeId> {
    let is_line = |v: &ValueId| lines_of(graph, *v) == Some(of);
    let mut cut: HashSet<NodeId> = nodes.iter().copied().filter(|id| anchor_value(graph.node(*id)).is_some()).collect();
    loop {
        let values = |pick: fn(&Node) -> &Vec<ValueId>| -> HashSet<ValueId> {
            cut.iter().flat_map(|id| pick(graph.node(*id)).clone()).filter(|v| is_line(v)).collect()
        };
        let (read, made) = (values(|n| &n.inputs), values(|n| &n.outputs));
        let joins = |id: &&NodeId| {
            let node = graph.node(**id);
            let touches = node.inputs.iter().any(|v| made.contains(v)) || node.outputs.iter().any(|v| read.contains(v));
            !cut.contains(id) && is_linewise(&node.op) && node.outputs.iter().all(is_line) && touches
        };
        let more: Vec<NodeId> = nodes.iter().filter(joins).copied().collect();
        if more.is_empty() {
            break;
        }
        cut.extend(more);
    }
    nodes.iter().copied().filter(|id| cut.contains(id)).collect()
}

/// Whether a node sums what slices make over all lines.
fn sums_up(node: &Node, made: &HashSet<ValueId>) -> bool {
    matches!(node.op, Op::ExpertSum(_)) && node.inputs.first().is_some_and(|v| made.contains(v))
}

/// The other nodes, ahead of the slices or after them; none where one would have to be both.
fn around(
    graph: &Graph,
    nodes: &[NodeId],
    cut: &[NodeId],
    made: &HashSet<ValueId>,
) -> Option<(Vec<NodeId>, Vec<NodeId>)> {
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let mut late: HashSet<ValueId> = HashSet::new();
    for id in nodes {
        let node = graph.node(*id);
        let waits = node.inputs.iter().any(|v| late.contains(v));
        if cut.contains(id) {
            if waits {
                return None;
            }
        } else if waits || node.inputs.iter().any(|v| made.contains(v)) {
            late.extend(&node.outputs);
            after.push(*id);
        } else {
            before.push(*id);
        }
    }
    Some((before, after))
}

/// Moves what slices do not need behind them, where its results take no room from theirs. State is left alone.
fn deferred(
    graph: &Graph,
    before: Vec<NodeId>,
    after: Vec<NodeId>,
    mut needed: HashSet<ValueId>,
) -> (Vec<NodeId>, Vec<NodeId>) {
    if graph.nodes.iter().any(|n| n.op.writes_state()) {
        return (before, after);
    }
    let mut ahead = HashSet::new();
    for id in before.iter().rev() {
        let node = graph.node(*id);
        if node.outputs.iter().any(|v| needed.contains(v)) {
            needed.extend(&node.inputs);
            ahead.insert(*id);
        }
    }
    let (ahead, later): (Vec<NodeId>, Vec<NodeId>) = before.into_iter().partition(|id| ahead.contains(id));
    (ahead, [later, after].concat())
}

/// The loop program of a kernel in slices as large as scratch allows.
pub fn lower(kernel: &Kernel, symbol: &str, opts: &LowerOptions, plan: &Plan) -> Result<Func, LowerError> {
    let mut lines = if plan.is_free(&kernel.graph) { 1 } else { plan.of };
    loop {
        let func = attempt(kernel, symbol, opts, plan, lines)?;
        let fits = opts.scratch_limit.is_none_or(|limit| func.scratch_bytes() <= limit);
        match (1..lines).rev().find(|l| plan.of.is_multiple_of(*l)) {
            Some(fewer) if !fits => lines = fewer,
            _ => return Ok(func),
        }
    }
}

fn attempt(kernel: &Kernel, symbol: &str, opts: &LowerOptions, plan: &Plan, lines: u64) -> Result<Func, LowerError> {
    let mut cx = Cx::new(kernel, symbol, opts, plan.order());
    let run = |cx: &mut Cx<'_>, ids: &[NodeId]| ids.iter().try_for_each(|id| one(cx, kernel, *id));
    run(&mut cx, &plan.before)?;
    let mut total = plan.sum.map(|id| Total::new(&mut cx, kernel.graph.node(id))).transpose()?;
    let (zero, n) = (cx.b.int(0), cx.b.int(plan.of / lines));
    let i = cx.b.open_for();
    let first = match &total {
        Some(total) => total.line(&mut cx, i),
        None => cx.b.imul_c(i, lines as i64),
    };
    cx.open_slice(Slice { first, lines, values: plan.values.clone() });
    run(&mut cx, &plan.cut)?;
    if let Some(total) = &total {
        total.add(&mut cx, i)?;
    }
    cx.close_slice();
    // The sum has all of it.
    total.iter().filter_map(|total| total.node.inputs.first()).for_each(|y| cx.drop_value(*y));
    cx.b.close_for(i, zero, n);
    for id in &plan.after {
        match total.take_if(|_| plan.sum == Some(*id)) {
            Some(total) => {
                cx.begin(*id)?;
                total.finish(&mut cx)?;
                cx.end(*id);
            }
            None => one(&mut cx, kernel, *id)?,
        }
    }
    Ok(cx.finish())
}

/// Lowers one node.
pub fn one(cx: &mut Cx<'_>, kernel: &Kernel, id: NodeId) -> Result<(), LowerError> {
    cx.begin(id)?;
    node(cx, kernel.graph.node(id))?;
    cx.end(id);
    Ok(())
}

/// A sum over experts that grows slice by slice.
struct Total<'k> {
    node: &'k Node,
    /// Slots in ascending expert id.
    order: (u64, Place),
    /// The sum so far, f32.
    sum: (u64, Place),
}

impl<'k> Total<'k> {
    fn new(cx: &mut Cx<'_>, node: &'k Node) -> Result<Total<'k>, LowerError> {
        let ids = cx.input(node, 1)?;
        let (k, d) = (ids.row_channels(), cx.shape(node, 0).last().copied().unwrap_or(0));
        let total = Total { node, order: cx.reserve("order", 4 * k), sum: cx.reserve("sum", 4 * d) };
        let order = total.order.1;
        cx.rows(|b, at| {
            let (ids, count) = (ids.row(b, at), b.int(k));
            b.lanes(count, |b, j| {
                let rank = rank_of(b, &ids, k, j);
                let to = b.imul_c(rank, 4);
                b.store(order, to, Mem::I32, j);
            });
        });
        Ok(total)
    }

    /// The `i`-th line to be summed.
    fn line(&self, cx: &mut Cx<'_>, i: Var) -> Var {
        let at = cx.b.imul_c(i, 4);
        let line = cx.b.load(self.order.1, at, Mem::I32);
        let zero = cx.b.int(0);
        cx.b.i(IOp::Max, line, zero)
    }

    fn add(&self, cx: &mut Cx<'_>, i: Var) -> Result<(), LowerError> {
        let y = cx.input(self.node, 0)?;
        let sum = View::panel(self.sum.1, y.channels);
        cx.rows(|b, at| {
            let (zero, d) = (b.int(0), b.int(y.channels));
            let (y, sum) = (y.row(b, at), sum.line(b, zero));
            let is_first = b.cmp(Cmp::Eq, i, zero);
            b.lanes(d, |b, c| {
                let (v, so_far) = (y.load(b, c), sum.load(b, c));
                let more = b.fadd(so_far, v);
                let next = b.select(is_first, v, more);
                sum.store(b, c, next);
            });
        });
        Ok(())
    }

    fn finish(self, cx: &mut Cx<'_>) -> Result<(), LowerError> {
        let out = cx.output(self.node, 0)?;
        let shared = if self.node.inputs.len() > 2 { Some(cx.input(self.node, 2)?) } else { None };
        let sum = View::panel(self.sum.1, out.channels);
        cx.rows(|b, at| {
            let (zero, d) = (b.int(0), b.int(out.channels));
            let (sum, out) = (sum.line(b, zero), out.row(b, at));
            let shared = shared.as_ref().map(|s| s.row(b, at));
            b.lanes(d, |b, c| {
                let mut v = sum.load(b, c);
                if let Some(shared) = &shared {
                    let last = shared.load(b, c);
                    v = b.fadd(v, last);
                }
                out.store(b, c, v);
            });
        });
        cx.release(self.order);
        cx.release(self.sum);
        Ok(())
    }
}
