//! Work of an op: floating-point operations, and the bytes it must touch of each operand.
//!
//! Both are exact counts of the op's definition, symbolic in the launch-time sizes. Gathers count the rows they
//! read, at most: an attention of a short context reads fewer.

use crate::expr::{Env, Expr, Sym};
use crate::graph::TensorType;
use crate::op::{Op, Select};

fn rows(ty: &TensorType) -> Expr {
    ty.shape.first().cloned().unwrap_or(Expr::Const(1))
}

fn row_bytes(ty: &TensorType) -> Expr {
    Expr::Const(ty.dtype.row_bytes(ty.channels()))
}

/// Entries a query may see of pages of this ratio.
fn entries(ratio: u32) -> Expr {
    Expr::Sym(Sym::Context).ceil_div(u64::from(ratio))
}

/// Keys of an attention: window and compressed.
fn attention_keys(op: &crate::op::SparseAttention, inputs: &[&TensorType]) -> (Expr, Expr) {
    let window = Expr::Const(op.window).min(Expr::Sym(Sym::Context));
    let main = match op.select {
        Select::None => Expr::Const(0),
        Select::All => entries(op.ratio),
        Select::Listed => {
            let k = inputs.last().map_or(0, |t| t.channels());
            Expr::Const(k).min(entries(op.ratio))
        }
    };
    (window, main)
}

/// Floating-point operations of an op (a multiply-add is two).
pub fn flops(op: &Op, inputs: &[&TensorType], outputs: &[&TensorType]) -> Expr {
    let out = |i: usize| outputs.get(i).map_or(Expr::Const(0), |t| t.elements());
    let inp = |i: usize| inputs.get(i).map_or(Expr::Const(0), |t| t.elements());
    let c = |x: u64| Expr::Const(x);
    match op {
        Op::Embed(_)
        | Op::Repeat(_)
        | Op::OneHot(_)
        | Op::TakeRows(_)
        | Op::LocalExperts(_)
        | Op::RingWrite(_)
        | Op::PageWrite(_)
        | Op::EngramHash(_)
        | Op::EngramGather(_)
        | Op::TopK(_)
        | Op::CandidateBlocks(_) => c(0),
        Op::Add(_) | Op::AllReduce(_) => out(0),
        Op::MhcStats(_) => {
            let m = inputs.get(1).map_or(0, |t| t.matrix().0);
            inp(0) * c(2 * m + 2)
        }
        Op::MhcCoeffs(o) => {
            let n2 = outputs.get(2).map_or(0, |t| t.row_elements());
            inp(0) * c(4) + outputs.get(2).map_or(c(0), |t| rows(t)) * c(n2 * u64::from(4 * o.iters))
        }
        Op::HeadCoeffs(_) => out(0) * c(4),
        Op::Collapse(_) => inp(0) * c(2),
        Op::Expand(_) => {
            let n = inputs.get(2).map_or(0, |t| t.channels());
            out(0) * c(2 * n + 1)
        }
        Op::RmsNorm(_) => out(0) * c(4),
        Op::Rope(o) => {
            let heads = outputs.first().map_or(c(0), |t| Expr::product(&t.shape[..t.shape.len() - 1]));
            heads * c(3 * o.rotary)
        }
        Op::Hadamard(_) => {
            let n = outputs.first().map_or(1, |t| t.channels());
            out(0) * c(u64::from(n.max(1).ilog2()) + 1)
        }
        Op::Quantize(_) => out(0) * c(3),
        Op::Linear(_) => {
            let k = inputs.first().map_or(0, |t| t.row_elements());
            Expr::sum(outputs.iter().map(|t| t.elements() * c(2 * k)))
        }
        Op::GroupLinear(o) => {
            let k = inputs.first().map_or(0, |t| t.row_elements());
            out(0) * c(2 * k / o.groups.max(1))
        }
        Op::Pool(o) => out(0) * c(u64::from(o.ratio) * if o.overlap { 10 } else { 5 }),
        Op::IndexScores(_) => {
            let per = inputs.first().map_or(0, |t| t.row_elements());
            let heads = inputs.get(1).map_or(0, |t| t.channels());
            out(0) * c(2 * per + 3 * heads)
        }
        Op::SparseAttention(o) => {
            let q = inputs.first().map_or(0, |t| t.row_elements());
            let (window, main) = attention_keys(o, inputs);
            inputs.first().map_or(c(0), |t| rows(t)) * (window + main) * c(4 * q)
        }
        Op::RouterTopK(_) | Op::RouterHash(_) => inp(0) * c(4),
        Op::ExpertLinear(_) => {
            let k = inputs.first().map_or(0, |t| t.channels());
            Expr::sum(outputs.iter().map(|t| t.elements() * c(2 * k)))
        }
        Op::SwiGlu(_) => out(0) * c(8),
        Op::ExpertSum(_) => inp(0) + out(0),
        Op::EngramInject(_) => out(0) * c(12),
    }
}

/// Rows an op works on: those of the operand that has one row for each.
fn op_rows(op: &Op, inputs: &[&TensorType]) -> Expr {
    let i = match op {
        Op::Embed(_) | Op::RingWrite(_) | Op::PageWrite(_) | Op::EngramHash(_) | Op::EngramGather(_) => 1,
        _ => 0,
    };
    inputs.get(i).map_or(Expr::Const(1), |t| rows(t))
}

/// Bytes an op must read of operand `i` (and, for a state it writes, write).
pub fn operand_bytes(op: &Op, i: usize, inputs: &[&TensorType]) -> Expr {
    let Some(ty) = inputs.get(i) else { return Expr::Const(0) };
    let whole = ty.bytes();
    let n = op_rows(op, inputs);
    match op {
        Op::Embed(_) if i == 0 => match ty.dtype {
            crate::dtype::DType::Weight(w) => n * Expr::Const(w.bytes(1, ty.channels())),
            _ => n * row_bytes(ty),
        },
        Op::TakeRows(_) if i == 0 => {
            let per_row = ty.shape.get(1..ty.shape.len().saturating_sub(1)).map_or(Expr::Const(1), Expr::product);
            inputs.get(1).map_or(Expr::Const(1), |t| rows(t)) * per_row * row_bytes(ty)
        }
        Op::RingWrite(_) if i == 0 => n * row_bytes(ty),
        Op::PageWrite(o) if i == 0 => n.ceil_div(u64::from(o.ratio)) * row_bytes(ty),
        Op::PageWrite(o) if i == 1 => n.ceil_div(u64::from(o.ratio)) * row_bytes(ty),
        Op::Pool(o) if i == 2 || i == 3 => {
            let keep = u64::from(o.ratio) * if o.overlap { 2 } else { 1 } - 1;
            Expr::Sym(Sym::Seqs) * Expr::Const(keep) * row_bytes(ty)
        }
        Op::IndexScores(o) if i == 2 => {
            if o.block > 0 {
                let blocks = inputs.get(4).map_or(0, |t| t.channels());
                n * entries(o.ratio).min(Expr::Const(blocks * o.block)) * row_bytes(ty)
            } else {
                Expr::Sym(Sym::Seqs) * entries(o.ratio) * row_bytes(ty)
            }
        }
        Op::SparseAttention(o) => {
            let (window, main) = attention_keys(o, inputs);
            let pages = 4 + usize::from(o.sink);
            match i {
                2 => n * window * row_bytes(ty),
                _ if i == pages && o.select != Select::None => n * main * row_bytes(ty),
                _ => whole,
            }
        }
        Op::RouterHash(o) if i == 1 => n * Expr::Const(4 * o.k),
        Op::ExpertLinear(_) if i >= 2 => {
            let k = inputs.get(1).map_or(0, |t| t.channels());
            let experts = ty.shape.first().and_then(Expr::as_const).unwrap_or(1);
            let per_expert = match whole.as_const() {
                Some(b) => b / experts.max(1),
                None => 0,
            };
            Expr::Const(experts).min(n * Expr::Const(k)) * Expr::Const(per_expert)
        }
        Op::EngramHash(o) if i == 0 => n * Expr::Const(4 * o.max_ngram),
        Op::EngramHash(o) if i == 2 => Expr::Sym(Sym::Seqs) * Expr::Const(4 * (o.max_ngram - 1)),
        Op::EngramGather(_) if i == 0 => {
            let m = inputs.get(1).map_or(0, |t| t.channels());
            n * Expr::Const(m) * row_bytes(ty)
        }
        Op::EngramGather(_) if i == 1 => n * row_bytes(ty),
        _ => whole,
    }
}

/// Flops and bytes of a kernel: its ops' flops; each parameter read or written once (the largest need of any op).
pub fn kernel(kernel: &crate::kernel::Kernel) -> (Expr, Expr) {
    let g = &kernel.graph;
    let mut total = Expr::Const(0);
    let mut touched: Vec<Expr> = vec![Expr::Const(0); kernel.params.len()];
    for node in &g.nodes {
        let inputs: Vec<&TensorType> = node.inputs.iter().map(|v| g.ty(*v)).collect();
        let outputs: Vec<&TensorType> = node.outputs.iter().map(|v| g.ty(*v)).collect();
        total = total + flops(&node.op, &inputs, &outputs);
        for (i, v) in node.inputs.iter().enumerate() {
            if let Some(p) = kernel.param_index(*v) {
                let bytes = operand_bytes(&node.op, i, &inputs);
                touched[p] = larger(&touched[p], bytes);
            }
        }
        for v in &node.outputs {
            if let Some(p) = kernel.param_index(*v) {
                touched[p] = g.ty(*v).bytes();
            }
        }
    }
    (total, Expr::sum(touched))
}

/// The larger of two sizes at a long context and a few rows: sizes of one parameter differ only in which of its
/// rows they count.
fn larger(a: &Expr, b: Expr) -> Expr {
    let env = Env { n_tokens: 1009, n_seqs: 7, n_context: 65_537, n_out_rows: 7, n_tail_rows: 131 };
    if a.eval(&env) >= b.eval(&env) { a.clone() } else { b }
}
