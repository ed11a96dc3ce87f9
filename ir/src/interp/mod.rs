//! The interpreter: the reference meaning of every op, on arrays of a launch.
//!
//! Sums and functions are taken in f64 and rounded once to f32 and then to the dtype of the value, so that a
//! kernel's error against it is the kernel's own. Quantisers and rotation angles are formed in f32, as the ops
//! say, since they are discontinuous there. Inputs never make it panic.

mod array;
mod attention;
mod engram;
mod index;
mod linear;
mod mhc;
mod moe;
mod norm;
mod state;
mod step;
mod stream;

pub use array::{Array, Data};

use crate::dtype::DType;
use crate::expr::Env;
use crate::format::FormatError;
use crate::graph::{Def, Graph, Node, NodeId, TensorType, ValueId};
use crate::op::Op;
use crate::verify;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Arrays of a graph's values.
pub type Values = BTreeMap<ValueId, Array>;

/// Why a graph could not be evaluated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}{message}")]
pub struct InterpError {
    place: String,
    message: String,
}

impl InterpError {
    pub(super) fn new(message: impl Into<String>) -> InterpError {
        InterpError { place: String::new(), message: message.into() }
    }

    fn at(mut self, place: impl FnOnce() -> String) -> InterpError {
        if self.place.is_empty() {
            self.place = place();
        }
        self
    }
}

impl From<FormatError> for InterpError {
    fn from(e: FormatError) -> InterpError {
        InterpError::new(e.to_string())
    }
}

type Floats<'a> = Cow<'a, [f32]>;

/// Operands and result types of a node under evaluation.
struct Cx<'a> {
    inputs: Vec<&'a Array>,
    outputs: Vec<(DType, Vec<usize>)>,
}

impl<'a> Cx<'a> {
    fn input(&self, i: usize) -> Result<&'a Array, InterpError> {
        self.inputs.get(i).copied().ok_or_else(|| InterpError::new(format!("operand {i} is missing")))
    }

    fn floats(&self, i: usize) -> Result<Floats<'a>, InterpError> {
        self.input(i)?.floats()
    }

    fn ints(&self, i: usize) -> Result<&'a [i32], InterpError> {
        self.input(i)?.ints()
    }

    /// Size of an axis; 1 where there is none.
    fn dim(&self, i: usize, axis: usize) -> usize {
        self.inputs.get(i).and_then(|a| a.shape.get(axis)).copied().unwrap_or(1)
    }

    /// Size of the last axis.
    fn channels(&self, i: usize) -> usize {
        self.inputs.get(i).and_then(|a| a.shape.last()).copied().unwrap_or(1)
    }

    /// The step table, which must have as many rows as operand `i`.
    fn steps(&self, table: usize, i: usize) -> Result<Vec<step::Row>, InterpError> {
        let rows = step::rows(self.input(table)?)?;
        if rows.len() == self.dim(i, 0) {
            return Ok(rows);
        }
        Err(InterpError::new(format!("{} rows for a step of {}", self.dim(i, 0), rows.len())))
    }

    fn out_shape(&self, i: usize) -> &[usize] {
        self.outputs.get(i).map_or(&[], |(_, shape)| shape)
    }

    /// A zeroed buffer for output `i`.
    fn buffer<T: Clone + Default>(&self, i: usize) -> Result<Vec<T>, InterpError> {
        array::zeroed(array::elements(self.out_shape(i))?)
    }

    /// Float output `i`, rounded to its dtype.
    fn output(&self, i: usize, x: Vec<f32>) -> Result<Array, InterpError> {
        let (dtype, shape) = self.outputs.get(i).ok_or_else(|| InterpError::new(format!("no result {i}")))?;
        Array::from_floats(*dtype, shape, x)
    }

    /// The only float output.
    fn one(&self, x: Vec<f32>) -> Result<Vec<Array>, InterpError> {
        Ok(vec![self.output(0, x)?])
    }

    /// Integer output `i`.
    fn int_output(&self, i: usize, x: Vec<i32>) -> Array {
        Array::i32(self.out_shape(i), x)
    }
}

/// Sum of products in f64. Slice patterns keep it quick in unoptimised builds, where most time goes here.
fn dot(mut a: &[f32], mut b: &[f32]) -> f64 {
    let mut sums = [0.0f64; 4];
    while let ([a0, a1, a2, a3, a_rest @ ..], [b0, b1, b2, b3, b_rest @ ..]) = (a, b) {
        sums[0] += *a0 as f64 * *b0 as f64;
        sums[1] += *a1 as f64 * *b1 as f64;
        sums[2] += *a2 as f64 * *b2 as f64;
        sums[3] += *a3 as f64 * *b3 as f64;
        (a, b) = (a_rest, b_rest);
    }
    let rest: f64 = a.iter().zip(b).map(|(x, y)| *x as f64 * *y as f64).sum();
    sums[0] + sums[1] + sums[2] + sums[3] + rest
}

/// Mean of squares in f64.
fn mean_square(x: &[f32]) -> f64 {
    dot(x, x) / x.len().max(1) as f64
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// A row of a matrix of `width` columns.
fn row(x: &[f32], i: usize, width: usize) -> &[f32] {
    &x[i * width..(i + 1) * width]
}

fn eval(op: &Op, cx: &Cx<'_>) -> Result<Vec<Array>, InterpError> {
    match op {
        Op::Embed(_) => stream::embed(cx),
        Op::Repeat(o) => stream::repeat(cx, o),
        Op::OneHot(o) => stream::one_hot(cx, o),
        Op::TakeRows(_) => stream::take_rows(cx),
        Op::Add(_) => stream::add(cx),
        Op::AllReduce(_) => stream::sum_ranks(cx),
        Op::MhcStats(o) => mhc::stats(cx, o),
        Op::MhcCoeffs(o) => mhc::coeffs(cx, o),
        Op::HeadCoeffs(o) => mhc::head_coeffs(cx, o),
        Op::Collapse(_) => mhc::collapse(cx),
        Op::Expand(_) => mhc::expand(cx),
        Op::RmsNorm(o) => norm::rms_norm(cx, o),
        Op::Rope(o) => norm::rope(cx, o),
        Op::Hadamard(_) => norm::hadamard(cx),
        Op::Quantize(_) => norm::quantize(cx),
        Op::Linear(_) => linear::linear(cx),
        Op::GroupLinear(o) => linear::group_linear(cx, o),
        Op::ExpertLinear(_) => linear::expert_linear(cx),
        Op::RingWrite(_) | Op::PageWrite(_) => Err(InterpError::new("writes no result")),
        Op::Pool(o) => state::pool(cx, o),
        Op::IndexScores(o) => index::scores(cx, o),
        Op::TopK(o) => index::top_k(cx, o),
        Op::CandidateBlocks(o) => index::candidate_blocks(cx, o),
        Op::SparseAttention(o) => attention::sparse_attention(cx, o),
        Op::RouterTopK(o) => moe::router_top_k(cx, o),
        Op::RouterHash(o) => moe::router_hash(cx, o),
        Op::LocalExperts(_) => moe::local_experts(cx),
        Op::SwiGlu(o) => moe::swiglu(cx, o),
        Op::ExpertSum(o) => moe::expert_sum(cx, o),
        Op::EngramHash(o) => engram::hash(cx, o),
        Op::EngramGather(o) => engram::gather(cx, o),
        Op::EngramInject(o) => engram::inject(cx, o),
    }
}

fn shape_of(ty: &TensorType, env: &Env) -> Vec<usize> {
    ty.shape.iter().map(|e| usize::try_from(e.eval(env)).unwrap_or(usize::MAX)).collect()
}

/// The array of a value, with the dtype and shape its type asks for.
fn fetch<'v>(graph: &Graph, env: &Env, values: &'v Values, v: ValueId) -> Result<&'v Array, InterpError> {
    let value = graph.value(v);
    let Some(array) = values.get(&v) else {
        return Err(InterpError::new(format!("there is no array for `{}`", value.name)));
    };
    let shape = shape_of(&value.ty, env);
    if array.ty_dtype != value.ty.dtype || array.shape != shape {
        return Err(InterpError::new(format!(
            "`{}` is {} of shape {:?}, not {} of shape {shape:?}",
            value.name, array.ty_dtype, array.shape, value.ty.dtype
        )));
    }
    array.check().map_err(|e| e.at(|| format!("`{}`: ", value.name)))?;
    Ok(array)
}

fn context<'v>(graph: &Graph, env: &Env, node: &Node, ranks: &'v [Values]) -> Result<Vec<Cx<'v>>, InterpError> {
    let outputs: Vec<_> = node.outputs.iter().map(|v| (graph.ty(*v).dtype, shape_of(graph.ty(*v), env))).collect();
    let one = |values: &'v Values| {
        let inputs = node.inputs.iter().map(|v| fetch(graph, env, values, *v)).collect::<Result<_, _>>()?;
        Ok(Cx { inputs, outputs: outputs.clone() })
    };
    ranks.iter().map(one).collect()
}

/// Results of a node on every rank.
fn eval_ranks(graph: &Graph, env: &Env, node: &Node, ranks: &[Values]) -> Result<Vec<Vec<Array>>, InterpError> {
    let contexts = context(graph, env, node, ranks)?;
    if let Op::AllReduce(o) = &node.op {
        let group = usize::try_from(o.ranks).unwrap_or(0).max(1);
        if !ranks.len().is_multiple_of(group) {
            return Err(InterpError::new(format!("sums over {group} ranks, {} are evaluated", ranks.len())));
        }
        let mut results = Vec::with_capacity(ranks.len());
        for members in contexts.chunks(group) {
            let outputs = members.first().map(|c| c.outputs.clone()).unwrap_or_default();
            let inputs = members.iter().flat_map(|c| c.inputs.clone()).collect();
            let sum = eval(&node.op, &Cx { inputs, outputs })?;
            results.extend(std::iter::repeat_n(sum, group));
        }
        return Ok(results);
    }
    contexts.iter().map(|cx| eval(&node.op, cx)).collect()
}

fn run_node(graph: &Graph, env: &Env, node: &Node, ranks: &mut [Values]) -> Result<(), InterpError> {
    if node.op.writes_state() {
        return ranks.iter_mut().try_for_each(|values| write_state(graph, env, node, values));
    }
    let results = eval_ranks(graph, env, node, ranks)?;
    for (values, results) in ranks.iter_mut().zip(results) {
        values.extend(node.outputs.iter().copied().zip(results));
    }
    Ok(())
}

fn write_state(graph: &Graph, env: &Env, node: &Node, values: &mut Values) -> Result<(), InterpError> {
    for v in &node.inputs {
        fetch(graph, env, values, *v)?;
    }
    let (Some(target), Some(x), Some(table)) = (node.inputs.first(), node.inputs.get(1), node.inputs.get(2)) else {
        return Err(InterpError::new("needs three operands"));
    };
    let Some(mut array) = values.remove(target) else {
        return Err(InterpError::new("the state has no array"));
    };
    let written = match (values.get(x), values.get(table)) {
        (Some(x), Some(table)) => state::write(&node.op, &mut array, x, table),
        _ => Err(InterpError::new("an operand is the state itself")),
    };
    values.insert(*target, array);
    written
}

fn place(graph: &Graph, id: NodeId) -> String {
    let node = graph.node(id);
    let layer = node.layer.map(|l| format!(" of layer {l}")).unwrap_or_default();
    let name = node.outputs.first().or(node.inputs.first()).map_or("", |v| &graph.value(*v).name);
    format!("`{}` (node {}, `{name}`{layer}): ", node.op.name(), id.0)
}

/// Evaluates one node: its operands must be in `values`, its results are put there, and a state it writes is
/// updated in place.
///
/// # Errors
/// An ill-typed node, or an array that is missing or does not fit.
pub fn eval_node(graph: &Graph, env: &Env, id: NodeId, values: &mut Values) -> Result<(), InterpError> {
    if id.idx() >= graph.nodes.len() {
        return Err(InterpError::new(format!("there is no node {}", id.0)));
    }
    verify::node(graph, id).map_err(|e| InterpError::new(e.message))?;
    run_node(graph, env, graph.node(id), std::slice::from_mut(values)).map_err(|e| e.at(|| place(graph, id)))
}

/// Evaluates a graph: `values` holds the inputs, weights and states; states are updated in place, and the
/// results of all nodes are added.
///
/// # Errors
/// An ill-formed graph, or an array that is missing or does not fit.
pub fn run(graph: &Graph, env: &Env, values: &mut Values) -> Result<(), InterpError> {
    run_ranks(graph, env, std::slice::from_mut(values))
}

/// Evaluates a graph on all ranks of a parallel group in lockstep, each with its own values.
///
/// # Errors
/// As [`run`].
pub fn run_ranks(graph: &Graph, env: &Env, ranks: &mut [Values]) -> Result<(), InterpError> {
    verify::verify(graph)
        .map_err(|errors| InterpError::new(errors.into_iter().map(|e| e.message).collect::<Vec<_>>().join("; ")))?;
    for values in ranks.iter() {
        for v in graph.value_ids().filter(|v| !matches!(graph.value(*v).def, Def::Node { .. })) {
            fetch(graph, env, values, v)?;
        }
    }
    for id in graph.node_ids() {
        run_node(graph, env, graph.node(id), ranks).map_err(|e| e.at(|| place(graph, id)))?;
    }
    Ok(())
}
