//! Small gemm kernels as graphs.

use dsc_ir::dtype::DType;
use dsc_ir::expr::Expr;
use dsc_ir::graph::{Def, Graph, Shard, TensorType, ValueId, WeightSource};
use dsc_ir::kernel::{Anchor, Kernel, Param, Role};
use dsc_ir::op::{Add, GroupLinear, Linear};

fn shape(axes: &[u64]) -> Vec<Expr> {
    std::iter::once(Expr::tokens()).chain(axes.iter().map(|a| Expr::Const(*a))).collect()
}

fn weight(graph: &mut Graph, name: &str, dtype: DType, n: u64, k: u64) -> ValueId {
    let source = WeightSource { tensor: name.into(), shard: Shard::None };
    let ty = TensorType { dtype, shape: vec![n.into(), k.into()] };
    graph.add_value(name, None, ty, Def::Weight(source))
}

fn kernel(graph: Graph, inputs: &[ValueId], weights: &[ValueId], outputs: &[ValueId]) -> Kernel {
    let param = |role| move |v: &ValueId| Param { value: *v, role };
    let params = inputs.iter().map(param(Role::Input)).chain(weights.iter().map(param(Role::Weight)));
    let params = params.chain(outputs.iter().map(param(Role::Output))).collect();
    Kernel { name: "linear".into(), anchor: Anchor::Gemm, rows: Expr::tokens(), graph, params }
}

/// `y_i = x w_iᵀ` with `x` of these axes after the tokens; weights as (storage, n, result).
pub fn linear(axes: &[u64], x: DType, outputs: &[(DType, u64, DType)]) -> Kernel {
    let mut g = Graph::new("linear");
    let x = g.add_value("x", None, TensorType { dtype: x, shape: shape(axes) }, Def::Input);
    let k = axes.iter().product();
    let weights: Vec<_> =
        outputs.iter().enumerate().map(|(i, (w, n, _))| weight(&mut g, &format!("w{i}"), *w, *n, k)).collect();
    let inputs: Vec<_> = std::iter::once(x).chain(weights.iter().copied()).collect();
    let names: Vec<_> = (0..outputs.len()).map(|i| format!("y{i}")).collect();
    let results: Vec<_> = names.iter().zip(outputs).map(|(name, (.., y))| (name.as_str(), *y)).collect();
    let ys =
        g.add(plain(outputs.len()), None, &inputs, &results).or_else(|_| unchecked(&mut g, &inputs, outputs)).unwrap();
    g.results = ys.clone();
    kernel(g, &[x], &weights, &ys)
}

/// A linear whose results have no heads.
fn plain(n_outputs: usize) -> Linear {
    Linear { heads: vec![0; n_outputs] }
}

/// The same where a result type is not one that the shape rules allow.
fn unchecked(
    g: &mut Graph,
    inputs: &[ValueId],
    outputs: &[(DType, u64, DType)],
) -> Result<Vec<ValueId>, dsc_ir::graph::TypeError> {
    let floats: Vec<_> = outputs.iter().map(|_| ("y0", DType::F32)).collect();
    let ys = g.add(plain(outputs.len()), None, inputs, &floats)?;
    for (v, (.., dtype)) in ys.iter().zip(outputs) {
        g.values[v.0 as usize].ty.dtype = *dtype;
    }
    Ok(ys)
}

/// A block-diagonal linear of `k` channels.
pub fn group_linear(groups: u64, k: u64, n: u64, x: DType, w: DType, y: DType) -> Kernel {
    let mut g = Graph::new("group_linear");
    let x = g.add_value("x", None, TensorType { dtype: x, shape: shape(&[groups, k / groups]) }, Def::Input);
    let w = weight(&mut g, "w0", w, n, k / groups);
    let ys = g.add(GroupLinear { groups }, None, &[x, w], &[("y0", y)]).unwrap();
    g.results = ys.clone();
    kernel(g, &[x], &[w], &ys)
}

/// A linear with a sum after it.
pub fn add_after(k: u64, n: u64) -> Kernel {
    let mut g = Graph::new("linear_add");
    let x = g.add_value("x", None, TensorType { dtype: DType::Bf16, shape: shape(&[k]) }, Def::Input);
    let r = g.add_value("r", None, TensorType { dtype: DType::Bf16, shape: shape(&[n]) }, Def::Input);
    let w = weight(&mut g, "w0", DType::Bf16, n, k);
    let ys = g.add(plain(1), None, &[x, w], &[("y0", DType::Bf16)]).unwrap();
    let zs = g.add(Add {}, None, &[ys[0], r], &[("z", DType::Bf16)]).unwrap();
    g.results = zs.clone();
    kernel(g, &[x, r], &[w], &zs)
}
