//! The op graph: typed values in single assignment, nodes in program order, states explicit.
//!
//! Program order is meaningful for states alone: a node that reads a state sees what earlier nodes wrote.
//! [`Graph::dag`] gives data and state dependencies as a petgraph graph.

use crate::dtype::{DType, WeightFormat};
use crate::expr::Expr;
use crate::infer;
use crate::op::Op;
use petgraph::graph::DiGraph;
use std::collections::HashMap;
use std::fmt;

/// A value of a graph; prints as `%12`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// A node of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl ValueId {
    /// As an index.
    pub fn idx(self) -> usize {
        self.0 as usize
    }
}

impl NodeId {
    /// As an index.
    pub fn idx(self) -> usize {
        self.0 as usize
    }
}

/// Dtype and symbolic shape.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Sizes, outermost first.
    pub shape: Vec<Expr>,
}

impl TensorType {
    /// A type.
    pub fn new(dtype: DType, shape: impl IntoIterator<Item = Expr>) -> TensorType {
        TensorType { dtype, shape: shape.into_iter().collect() }
    }

    /// Size of the last axis, which is always constant where a row format needs it.
    pub fn channels(&self) -> u64 {
        self.shape.last().and_then(Expr::as_const).unwrap_or(0)
    }

    /// Elements.
    pub fn elements(&self) -> Expr {
        Expr::product(&self.shape)
    }

    /// Bytes of the whole tensor; packed rows with their scales, weights `[.., n, k]` with theirs.
    pub fn bytes(&self) -> Expr {
        match self.dtype {
            DType::Weight(w) => {
                let (n, k) = self.matrix();
                Expr::product(&self.shape[..self.shape.len().saturating_sub(2)]) * Expr::Const(w.bytes(n, k))
            }
            dtype => {
                let outer = &self.shape[..self.shape.len().saturating_sub(1)];
                match self.shape.last() {
                    Some(Expr::Const(c)) => Expr::product(outer) * Expr::Const(dtype.row_bytes(*c)),
                    Some(last) => Expr::product(outer) * last.clone() * Expr::Const(dtype.row_bytes(1)),
                    None => Expr::Const(dtype.row_bytes(1)),
                }
            }
        }
    }

    /// The last two axes of a weight, with `n = 1` for vectors.
    pub fn matrix(&self) -> (u64, u64) {
        let at = |i: usize| self.shape.len().checked_sub(i).and_then(|j| self.shape.get(j)).and_then(Expr::as_const);
        (at(2).unwrap_or(1), at(1).unwrap_or(1))
    }

    /// Elements of one row: product of all axes but the first.
    pub fn row_elements(&self) -> u64 {
        self.shape.iter().skip(1).map(|e| e.as_const().unwrap_or(0)).product()
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, e) in self.shape.iter().enumerate() {
            write!(f, "{}{e}", if i > 0 { ", " } else { "" })?;
        }
        f.write_str("]")
    }
}

/// How a weight is split over ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shard {
    /// Every rank holds all of it.
    None,
    /// Along the outer axis (rows, or experts).
    Outer(u64),
    /// Along the inner axis.
    Inner(u64),
}

/// Where a weight's bytes come from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WeightSource {
    /// Checkpoint name without `.weight` or `.scale`; `{e}` stands for the expert number.
    pub tensor: String,
    /// Split over ranks.
    pub shard: Shard,
}

/// What a state holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StateKind {
    /// `[n_seqs, slots, c]`, the last `keep` positions are needed (the other slots are spare).
    Ring {
        /// Positions that a later step may read.
        keep: u64,
    },
    /// `[n_seqs, ceil(n_context, ratio), c]`.
    Pages {
        /// Tokens per entry.
        ratio: u32,
    },
}

/// Origin of a value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Def {
    /// Given at launch.
    Input,
    /// Read-only parameter.
    Weight(WeightSource),
    /// Memory that lives across steps.
    State(StateKind),
    /// Output `output` of a node.
    Node {
        /// The node.
        node: NodeId,
        /// Which output.
        output: u32,
    },
}

/// A value: its name (unique with the layer), type and origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// Name without the layer, such as `attn.q`.
    pub name: String,
    /// Layer it belongs to, if any.
    pub layer: Option<u32>,
    /// Type.
    pub ty: TensorType,
    /// Origin.
    pub def: Def,
}

/// An operation with its operands.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// What it does.
    pub op: Op,
    /// Operands; a state that is written comes first.
    pub inputs: Vec<ValueId>,
    /// Results.
    pub outputs: Vec<ValueId>,
    /// Layer it belongs to, if any.
    pub layer: Option<u32>,
}

/// Why a node depends on another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edge {
    /// It reads a result.
    Data,
    /// It reads a state the other wrote.
    ReadAfterWrite,
    /// It writes a state the other read.
    WriteAfterRead,
    /// Both write a state.
    WriteAfterWrite,
}

/// An ill-typed operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TypeError {
    /// What does not fit, naming op and operand.
    pub message: String,
}

impl TypeError {
    /// With this message.
    pub fn new(message: impl Into<String>) -> TypeError {
        TypeError { message: message.into() }
    }
}

/// A graph of operations.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Graph {
    /// Name, such as the phase.
    pub name: String,
    /// All values.
    pub values: Vec<Value>,
    /// All nodes in program order.
    pub nodes: Vec<Node>,
    /// Values that must exist at the end, beside states.
    pub results: Vec<ValueId>,
}

impl Graph {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> Graph {
        Graph { name: name.into(), ..Graph::default() }
    }

    /// The value of this id.
    pub fn value(&self, v: ValueId) -> &Value {
        &self.values[v.idx()]
    }

    /// The type of this value.
    pub fn ty(&self, v: ValueId) -> &TensorType {
        &self.values[v.idx()].ty
    }

    /// The node of this id.
    pub fn node(&self, n: NodeId) -> &Node {
        &self.nodes[n.idx()]
    }

    /// Ids of all nodes in program order.
    pub fn node_ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.nodes.len() as u32).map(NodeId)
    }

    /// Ids of all values.
    pub fn value_ids(&self) -> impl Iterator<Item = ValueId> + use<> {
        (0..self.values.len() as u32).map(ValueId)
    }

    /// Adds a value that no node defines.
    pub fn add_value(&mut self, name: impl Into<String>, layer: Option<u32>, ty: TensorType, def: Def) -> ValueId {
        let id = ValueId(self.values.len() as u32);
        self.values.push(Value { name: name.into(), layer, ty, def });
        id
    }

    /// Appends a node; its outputs get the inferred shapes and these names and dtypes.
    ///
    /// # Errors
    /// The op's shape rule.
    pub fn add(
        &mut self,
        op: impl Into<Op>,
        layer: Option<u32>,
        inputs: &[ValueId],
        outputs: &[(&str, DType)],
    ) -> Result<Vec<ValueId>, TypeError> {
        let op = op.into();
        let types: Vec<&TensorType> = inputs.iter().map(|v| self.ty(*v)).collect();
        let shapes = infer::shapes(&op, &types)?;
        if shapes.len() != outputs.len() {
            return Err(TypeError::new(format!(
                "`{}` has {} results, {} were named",
                op.name(),
                shapes.len(),
                outputs.len()
            )));
        }
        let node = NodeId(self.nodes.len() as u32);
        let mut ids = Vec::with_capacity(outputs.len());
        for (i, (shape, (name, dtype))) in shapes.into_iter().zip(outputs).enumerate() {
            let ty = TensorType { dtype: *dtype, shape };
            infer::check_output(&op, i, &ty)?;
            ids.push(self.add_value(*name, layer, ty, Def::Node { node, output: i as u32 }));
        }
        self.nodes.push(Node { op, inputs: inputs.to_vec(), outputs: ids.clone(), layer });
        Ok(ids)
    }

    /// The same graph without names of values and tensors: equal work is equal whatever it is called.
    #[must_use]
    pub fn anonymous(&self) -> Graph {
        let mut g = self.clone();
        for v in &mut g.values {
            v.name.clear();
            if let Def::Weight(w) = &mut v.def {
                w.tensor.clear();
            }
        }
        g
    }

    /// The node that defines a value.
    pub fn def_node(&self, v: ValueId) -> Option<NodeId> {
        match self.values[v.idx()].def {
            Def::Node { node, .. } => Some(node),
            Def::Input | Def::Weight(_) | Def::State(_) => None,
        }
    }

    /// Whether a value is a state.
    pub fn is_state(&self, v: ValueId) -> bool {
        matches!(self.values[v.idx()].def, Def::State(_))
    }

    /// Users of each value, in program order.
    pub fn users(&self) -> Vec<Vec<NodeId>> {
        let mut users = vec![Vec::new(); self.values.len()];
        for n in self.node_ids() {
            for v in &self.node(n).inputs {
                if users[v.idx()].last() != Some(&n) {
                    users[v.idx()].push(n);
                }
            }
        }
        users
    }

    /// Data and state dependencies; node weights are in program order, so index `i` is node `i`.
    pub fn dag(&self) -> DiGraph<NodeId, Edge> {
        let mut dag = DiGraph::with_capacity(self.nodes.len(), self.nodes.len() * 3);
        let at: Vec<_> = self.node_ids().map(|n| dag.add_node(n)).collect();
        let mut writer: HashMap<ValueId, usize> = HashMap::new();
        let mut readers: HashMap<ValueId, Vec<usize>> = HashMap::new();
        for (i, node) in self.nodes.iter().enumerate() {
            for (k, v) in node.inputs.iter().enumerate() {
                if let Some(d) = self.def_node(*v) {
                    dag.add_edge(at[d.idx()], at[i], Edge::Data);
                } else if self.is_state(*v) {
                    let writes = k == 0 && node.op.writes_state();
                    if let Some(w) = writer.get(v) {
                        let edge = if writes { Edge::WriteAfterWrite } else { Edge::ReadAfterWrite };
                        dag.add_edge(at[*w], at[i], edge);
                    }
                    if writes {
                        for r in readers.remove(v).unwrap_or_default() {
                            dag.add_edge(at[r], at[i], Edge::WriteAfterRead);
                        }
                        writer.insert(*v, i);
                    } else {
                        readers.entry(*v).or_default().push(i);
                    }
                }
            }
        }
        dag
    }
}

/// The weight format of a weight value, with vectors and tables read as stored.
pub fn weight_format(ty: &TensorType) -> Option<WeightFormat> {
    match ty.dtype {
        DType::Weight(w) => Some(w),
        DType::F32 => Some(WeightFormat::F32),
        DType::Bf16 => Some(WeightFormat::Bf16),
        DType::I32 | DType::Packed(_) => None,
    }
}
