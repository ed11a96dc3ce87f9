//! Groups of nodes on their way to becoming kernels, and what makes two of them mergeable.

use dsc_ir::cost;
use dsc_ir::expr::{Env, Expr};
use dsc_ir::graph::{Def, Edge, Graph, NodeId, StateKind, TensorType, ValueId};
use dsc_ir::kernel::Anchor;
use dsc_ir::op::{Access, Op};
use dsc_ir::schedule::{MAX_DECODE_ROWS, Phase};
use dsc_ir::target::Target;
use std::collections::{BTreeSet, HashMap};

/// A group of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group(pub usize);

/// Why a dependency keeps two nodes in different kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Barrier {
    /// The consumer reads other rows of this value.
    Gather(ValueId),
    /// One writes a state that the other reads or writes.
    State(ValueId),
}

/// The grouping of a graph's nodes.
pub struct Clusters<'g> {
    /// The graph.
    pub graph: &'g Graph,
    /// Shared memory that the values of one row may take.
    row_memory: u64,
    group_of: Vec<usize>,
    members: Vec<Vec<NodeId>>,
    succ: Vec<BTreeSet<usize>>,
    pred: Vec<BTreeSet<usize>>,
    barriers: HashMap<(NodeId, NodeId), Barrier>,
    node_succ: Vec<Vec<NodeId>>,
    node_pred: Vec<Vec<NodeId>>,
    users: Vec<Vec<NodeId>>,
}

/// Row width in bytes from which a value is wide: worth spreading over the blocks of a grid.
const WIDE_ROW_BYTES: u64 = 4096;

/// Whether the rows a step reads and those it writes can never share a slot of this ring in a decode step.
fn ring_has_spare_slots(graph: &Graph, v: ValueId) -> bool {
    let value = graph.value(v);
    match (&value.def, value.ty.shape.get(1).and_then(Expr::as_const)) {
        (Def::State(StateKind::Ring { keep }), Some(slots)) => slots + 1 >= keep + MAX_DECODE_ROWS,
        _ => false,
    }
}

/// The rows a node works on.
fn domain(graph: &Graph, n: NodeId) -> Expr {
    let node = graph.node(n);
    let of = |v: &ValueId| graph.ty(*v).shape.first().cloned();
    node.outputs.first().and_then(of).or_else(|| node.inputs.get(1).and_then(of)).unwrap_or(Expr::Const(1))
}

fn row_bytes(ty: &TensorType) -> u64 {
    let outer: u64 = ty.shape.iter().skip(1).rev().skip(1).map(|e| e.as_const().unwrap_or(0)).product();
    match (ty.shape.len(), ty.shape.last().and_then(Expr::as_const)) {
        (0 | 1, _) => ty.dtype.row_bytes(1),
        (_, Some(c)) => outer * ty.dtype.row_bytes(c),
        (_, None) => 0,
    }
}

impl<'g> Clusters<'g> {
    /// One group per node. In decode, a ring with spare slots may be written before it is read.
    pub fn new(graph: &'g Graph, phase: Phase, target: &Target) -> Clusters<'g> {
        let n = graph.nodes.len();
        let mut c = Clusters {
            graph,
            row_memory: target.machine.smem_per_block_bytes,
            group_of: (0..n).collect(),
            members: graph.node_ids().map(|n| vec![n]).collect(),
            succ: vec![BTreeSet::new(); n],
            pred: vec![BTreeSet::new(); n],
            barriers: HashMap::new(),
            node_succ: vec![Vec::new(); n],
            node_pred: vec![Vec::new(); n],
            users: graph.users(),
        };
        let dag = graph.dag();
        for e in dag.raw_edges() {
            let (a, b) = (dag[e.source()], dag[e.target()]);
            match e.weight {
                Edge::Data => c.data_edge(a, b),
                Edge::WriteAfterRead => {
                    let state = graph.node(b).inputs[0];
                    if phase == Phase::Prefill || !ring_has_spare_slots(graph, state) {
                        c.edge(a, b, Some(Barrier::State(state)));
                    }
                }
                Edge::ReadAfterWrite | Edge::WriteAfterWrite => {
                    let state = graph.node(a).inputs[0];
                    c.edge(a, b, Some(Barrier::State(state)));
                }
            }
        }
        c
    }

    fn data_edge(&mut self, a: NodeId, b: NodeId) {
        let (outputs, node) = (&self.graph.node(a).outputs, self.graph.node(b));
        let gathered = node
            .inputs
            .iter()
            .enumerate()
            .find(|(i, v)| outputs.contains(v) && node.op.access(*i) == Access::Gather)
            .map(|(_, v)| Barrier::Gather(*v));
        self.edge(a, b, gathered);
    }

    fn edge(&mut self, a: NodeId, b: NodeId, barrier: Option<Barrier>) {
        if let Some(barrier) = barrier {
            self.barriers.entry((a, b)).or_insert(barrier);
        }
        self.succ[a.idx()].insert(b.idx());
        self.pred[b.idx()].insert(a.idx());
        self.node_succ[a.idx()].push(b);
        self.node_pred[b.idx()].push(a);
    }

    /// The group of a node.
    pub fn of(&self, n: NodeId) -> Group {
        Group(self.group_of[n.idx()])
    }

    /// Nodes of a group in program order.
    pub fn nodes(&self, g: Group) -> &[NodeId] {
        &self.members[g.0]
    }

    /// Groups that exist, by their first node.
    pub fn groups(&self) -> Vec<Group> {
        let mut list: Vec<Group> =
            (0..self.members.len()).filter(|g| !self.members[*g].is_empty()).map(Group).collect();
        list.sort_by_key(|g| self.members[g.0][0]);
        list
    }

    /// Groups that depend on this one.
    pub fn successors(&self, g: Group) -> Vec<Group> {
        self.succ[g.0].iter().copied().map(Group).collect()
    }

    /// Groups this one depends on.
    pub fn predecessors(&self, g: Group) -> Vec<Group> {
        self.pred[g.0].iter().copied().map(Group).collect()
    }

    /// Nodes that use a value.
    pub fn users(&self, v: ValueId) -> &[NodeId] {
        &self.users[v.idx()]
    }

    /// The anchor of a group: that of its most demanding node.
    pub fn anchor(&self, g: Group) -> Anchor {
        let anchors = self.nodes(g).iter().map(|n| Anchor::of(&self.graph.node(*n).op));
        let rank = |a: &Anchor| match a {
            Anchor::Gather => 0,
            Anchor::Row => 1,
            Anchor::Gemm => 2,
            Anchor::GroupedGemm => 3,
            Anchor::TopK => 4,
            Anchor::IndexLogits => 5,
            Anchor::SparseAttention => 6,
            Anchor::Collective => 7,
        };
        anchors.max_by_key(rank).unwrap_or(Anchor::Row)
    }

    /// Whether a group holds per-row chains and lookups alone.
    pub fn is_row(&self, g: Group) -> bool {
        matches!(self.anchor(g), Anchor::Row | Anchor::Gather)
    }

    /// Layer a group counts for: the last one it works on; none if it serves several layers from outside them.
    pub fn layer(&self, g: Group) -> Option<u32> {
        let layers = || self.nodes(g).iter().map(|n| self.graph.node(*n).layer);
        let distinct: BTreeSet<u32> = layers().flatten().collect();
        if distinct.len() > 1 && layers().any(|l| l.is_none()) {
            return None;
        }
        distinct.last().copied()
    }

    /// Short text of a group's ops.
    pub fn describe(&self, g: Group) -> String {
        let names: Vec<&str> = self.nodes(g).iter().map(|n| self.graph.node(*n).op.name()).collect();
        names.join(" + ")
    }

    /// Whether the two groups may become one kernel.
    ///
    /// # Errors
    /// The reason why not, for a person.
    pub fn mergeable(&self, a: Group, b: Group) -> Result<(), String> {
        if a == b {
            return Err("they are one already".into());
        }
        self.same_rows(a, b)?;
        self.no_barrier(a, b)?;
        self.no_barrier(b, a)?;
        if self.path_around(a, b) || self.path_around(b, a) {
            return Err("another kernel stands between them".into());
        }
        self.streams_fit(a, b)?;
        self.no_wide_work_after_a_grid_reduction(a, b)
    }

    fn same_rows(&self, a: Group, b: Group) -> Result<(), String> {
        let (x, y) = (domain(self.graph, self.nodes(a)[0]), domain(self.graph, self.nodes(b)[0]));
        if x == y { Ok(()) } else { Err(format!("they work on different rows, {x} and {y}")) }
    }

    fn no_barrier(&self, a: Group, b: Group) -> Result<(), String> {
        for n in self.nodes(a) {
            for m in &self.node_succ[n.idx()] {
                if self.of(*m) != b {
                    continue;
                }
                match self.barriers.get(&(*n, *m)) {
                    Some(Barrier::Gather(v)) => {
                        return Err(format!(
                            "`{}` reads other rows of {}",
                            self.graph.node(*m).op.name(),
                            self.graph.value(*v).name
                        ));
                    }
                    Some(Barrier::State(v)) => {
                        return Err(format!("they are ordered by the state {}", self.graph.value(*v).name));
                    }
                    None => {}
                }
            }
        }
        Ok(())
    }

    /// Whether `b` depends on `a` through some third group.
    fn path_around(&self, a: Group, b: Group) -> bool {
        let last = self.members[b.0].last().copied().unwrap_or(NodeId(0));
        let mut seen = BTreeSet::new();
        let mut stack: Vec<usize> = self.succ[a.0].iter().copied().filter(|g| *g != b.0).collect();
        while let Some(g) = stack.pop() {
            // A group that starts after the last node of `b` cannot lead to it.
            if !seen.insert(g) || self.members[g].first().is_none_or(|n| *n > last) {
                continue;
            }
            if self.succ[g].contains(&b.0) {
                return true;
            }
            stack.extend(self.succ[g].iter().copied().filter(|s| *s != a.0));
        }
        false
    }

    fn streams_fit(&self, a: Group, b: Group) -> Result<(), String> {
        let nodes = self.nodes(a).iter().chain(self.nodes(b));
        let bytes: u64 = nodes.flat_map(|n| &self.graph.node(*n).outputs).map(|v| row_bytes(self.graph.ty(*v))).sum();
        if bytes <= self.row_memory || !self.is_row(a) || !self.is_row(b) {
            return Ok(());
        }
        Err(format!("one row needs {bytes} B of shared memory, a block has {}", self.row_memory))
    }

    /// A reduction over weights too large for one block is worth a whole grid. In a plan that gives it one, its result
    /// is known only to the last block, which must not have a wide row left to do.
    fn no_wide_work_after_a_grid_reduction(&self, a: Group, b: Group) -> Result<(), String> {
        let inside = |n: NodeId| self.of(n) == a || self.of(n) == b;
        let both = self.nodes(a).iter().chain(self.nodes(b));
        for n in both.filter(|n| self.is_grid_reduction(**n)) {
            let mut stack: Vec<NodeId> = self.node_succ[n.idx()].clone();
            let mut seen = BTreeSet::new();
            while let Some(m) = stack.pop() {
                if !inside(m) || !seen.insert(m) {
                    continue;
                }
                let node = self.graph.node(m);
                let wide = node.outputs.iter().any(|v| row_bytes(self.graph.ty(*v)) > WIDE_ROW_BYTES);
                if wide {
                    return Err(format!(
                        "`{}` needs the result of `{}`, a reduction over the whole grid, for a wide row",
                        node.op.name(),
                        self.graph.node(*n).op.name()
                    ));
                }
                stack.extend(self.node_succ[m.idx()].iter().copied());
            }
        }
        Ok(())
    }

    fn is_grid_reduction(&self, n: NodeId) -> bool {
        let node = self.graph.node(n);
        if Anchor::of(&node.op) != Anchor::Row {
            return false;
        }
        let one = Env { n_tokens: 1, n_seqs: 1, n_context: 1, n_out_rows: 1, n_tail_rows: 1 };
        let types: Vec<&TensorType> = node.inputs.iter().map(|v| self.graph.ty(*v)).collect();
        node.inputs.iter().enumerate().any(|(i, v)| {
            matches!(self.graph.value(*v).def, Def::Weight(_))
                && cost::operand_bytes(&node.op, i, &types).eval(&one) > self.row_memory
        })
    }

    /// Bytes that stop travelling when the groups merge: values between them, and operands both read.
    pub fn saved(&self, a: Group, b: Group) -> Expr {
        let mut saved = Expr::Const(0);
        for (from, to) in [(a, b), (b, a)] {
            for v in self.nodes(from).iter().flat_map(|n| &self.graph.node(*n).outputs) {
                let users = self.users(*v);
                if users.iter().any(|u| self.of(*u) == to) {
                    let stays = users.iter().any(|u| self.of(*u) != a && self.of(*u) != b);
                    let times = if stays || self.graph.results.contains(v) { 1 } else { 2 };
                    saved = saved + self.graph.ty(*v).bytes() * Expr::Const(times);
                }
            }
        }
        saved
    }

    /// Merges `b` into `a`.
    pub fn merge(&mut self, a: Group, b: Group) -> Group {
        let moved = std::mem::take(&mut self.members[b.0]);
        for n in &moved {
            self.group_of[n.idx()] = a.0;
        }
        self.members[a.0].extend(moved);
        self.members[a.0].sort();
        let (succ, pred) = (std::mem::take(&mut self.succ[b.0]), std::mem::take(&mut self.pred[b.0]));
        for s in &succ {
            self.pred[*s].remove(&b.0);
            if *s != a.0 {
                self.pred[*s].insert(a.0);
                self.succ[a.0].insert(*s);
            }
        }
        for p in &pred {
            self.succ[*p].remove(&b.0);
            if *p != a.0 {
                self.succ[*p].insert(a.0);
                self.pred[a.0].insert(*p);
            }
        }
        self.succ[a.0].remove(&a.0);
        self.pred[a.0].remove(&a.0);
        a
    }

    /// Nodes a node depends on.
    pub fn node_predecessors(&self, n: NodeId) -> &[NodeId] {
        &self.node_pred[n.idx()]
    }

    /// Whether the op works inside an aligned tile of columns of its operand: pairs, quantisation groups, heads.
    pub fn is_tile_local(&self, n: NodeId, tile: u64) -> bool {
        let node = self.graph.node(n);
        let channels = node.inputs.first().map_or(0, |v| self.graph.ty(*v).channels());
        match node.op {
            Op::Rope(_) | Op::Quantize(_) | Op::SwiGlu(_) | Op::Add(_) | Op::RingWrite(_) | Op::PageWrite(_) => true,
            Op::RmsNorm(_) | Op::Hadamard(_) => channels <= tile,
            _ => false,
        }
    }
}
