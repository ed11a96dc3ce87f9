//! Ops on single elements: lookups, copies, sums of few terms, the gated unit.

use super::LowerError;
use super::cx::Cx;
use super::math::{Ahead, clamp_above, clamp_below, each, sigmoid, sum};
use super::state::{copy_bytes, step};
use super::view::{Line, Row, View};
use crate::loops::{Builder, Cmp, Mem, Var};
use dsc_ir::graph::Node;
use dsc_ir::op::{AllReduce, ExpertSum, OneHot, Repeat, SwiGlu, step as column};

/// Table lookup by token id.
pub fn embed(cx: &mut Cx<'_>, n: &Node) -> Result<(), LowerError> {
    let (table, steps, out) = (cx.input(n, 0)?, cx.input(n, 1)?, cx.output(n, 0)?);
    cx.rows(|b, at| {
        let (steps, out) = (steps.row(b, at), out.row(b, at));
        let id = step(b, &steps, column::ID);
        let line = table.line(b, id);
        let d = b.int(table.channels);
        b.lanes(d, |b, j| {
            let x = line.load(b, j);
            out.store(b, j, x);
        });
    });
    Ok(())
}

/// Copies a row into streams.
pub fn repeat(cx: &mut Cx<'_>, n: &Node, o: &Repeat) -> Result<(), LowerError> {
    let (x, out) = (cx.input(n, 0)?, cx.output(n, 0)?);
    cx.rows(|b, at| {
        let d = b.int(x.channels);
        let (x, out) = (x.row(b, at), out.row(b, at));
        b.lanes(d, |b, j| {
            let v = x.load(b, j);
            each(b, o.n, |b, i| {
                let to = b.imul(i, d);
                let to = b.iadd(to, j);
                out.store(b, to, v);
            });
        });
    });
    Ok(())
}

/// A one-hot row.
pub fn one_hot(cx: &mut Cx<'_>, n: &Node, o: &OneHot) -> Result<(), LowerError> {
    let out = cx.output(n, 0)?;
    cx.rows(|b, at| {
        let out = out.row(b, at);
        let width = b.int(o.n);
        b.lanes(width, |b, j| {
            let (index, one, zero) = (b.int(o.index), b.float(1.0), b.float(0.0));
            let is = b.cmp(Cmp::Eq, j, index);
            let v = b.select(is, one, zero);
            out.store(b, j, v);
        });
    });
    Ok(())
}

/// Rows by number.
pub fn take_rows(cx: &mut Cx<'_>, n: &Node) -> Result<(), LowerError> {
    let (x, rows, out) = (cx.input(n, 0)?, cx.input(n, 1)?, cx.output(n, 0)?);
    let Some(bytes) = x.row_bytes() else {
        return cx.fail("`take_rows` of rows of symbolic size");
    };
    cx.rows(|b, at| {
        let (rows, out) = (rows.row(b, at), out.row(b, at));
        let zero = b.int(0);
        let row = rows.load(b, zero);
        let first = b.imul_c(row, x.lines as i64);
        let (from, to) = (x.address(b, first), out.address());
        copy_bytes(b, (x.place, from), to, bytes);
    });
    Ok(())
}

/// Residual sum.
pub fn add(cx: &mut Cx<'_>, n: &Node) -> Result<(), LowerError> {
    let (x, y, out) = (cx.input(n, 0)?, cx.input(n, 1)?, cx.output(n, 0)?);
    map(cx, &[x, y], &out, |b, v| b.fadd(v[0], v[1]))
}

/// Sum over the ranks of a group of one.
pub fn all_reduce(cx: &mut Cx<'_>, n: &Node, o: &AllReduce) -> Result<(), LowerError> {
    if o.ranks != 1 {
        return cx.fail(format!("a sum over {} ranks is no loop program", o.ranks));
    }
    let (x, out) = (cx.input(n, 0)?, cx.output(n, 0)?);
    map(cx, &[x], &out, |_, v| v[0])
}

/// Element by element over values of one shape.
fn map(
    cx: &mut Cx<'_>,
    inputs: &[View],
    out: &View,
    f: impl FnOnce(&mut Builder, &[Var]) -> Var,
) -> Result<(), LowerError> {
    if out.channels == 0 {
        return cx.fail("an elementwise op over rows of symbolic size");
    }
    let flow = cx.flow;
    cx.rows(|b, at| {
        let (lines, channels) = by_line(b, inputs, out);
        let row = out.row(b, at);
        let inputs: Vec<Row> = inputs.iter().map(|x| x.row(b, at)).collect();
        let ahead = |b: &mut Builder, i: Var| {
            let lines: Vec<Line> = inputs.iter().map(|r| r.line(b, i)).collect();
            (lines, row.line(b, i))
        };
        flow.grid(b, lines, channels, ahead, |b, (lines, to), j| {
            let values: Vec<Var> = lines.iter().map(|l| l.load(b, j)).collect();
            let y = f(b, &values);
            to.store(b, j, y);
        });
    });
    Ok(())
}

/// Lines and channels to walk; plain values are walked as one line.
fn by_line(b: &mut Builder, inputs: &[View], out: &View) -> (Var, Var) {
    if inputs.iter().all(View::is_plain) {
        (b.int(1), b.int(out.row_channels()))
    } else {
        (b.int(out.lines), b.int(out.channels))
    }
}

/// Clamped SwiGLU.
pub fn swiglu(cx: &mut Cx<'_>, n: &Node, o: &SwiGlu) -> Result<(), LowerError> {
    let (g, u, out) = (cx.input(n, 0)?, cx.input(n, 1)?, cx.output(n, 0)?);
    let weights = if o.weighted { Some(cx.input(n, 2)?) } else { None };
    let (flow, number) = (cx.flow, cx.line_number());
    cx.rows(|b, at| {
        let (g, u) = (g.row(b, at), u.row(b, at));
        let weights = weights.as_ref().map(|w| w.row(b, at));
        let (lines, channels) = (b.int(out.lines), b.int(out.channels));
        let out = out.row(b, at);
        let ahead = |b: &mut Builder, i: Var| {
            let weight = weights.as_ref().map(|w| {
                let slot = number(b, i);
                w.load(b, slot)
            });
            (g.line(b, i), u.line(b, i), out.line(b, i), weight)
        };
        flow.grid(b, lines, channels, ahead, |b, (g, u, out, weight), j| {
            let (g, u) = (g.load(b, j), u.load(b, j));
            let (g, u) = clamped(b, g, u, o.limit);
            let s = sigmoid(b, g);
            let gate = b.fmul(g, s);
            let mut y = b.fmul(gate, u);
            if let Some(w) = weight {
                y = b.fmul(y, *w);
            }
            out.store(b, j, y);
        });
    });
    Ok(())
}

fn clamped(b: &mut Builder, g: Var, u: Var, limit: f32) -> (Var, Var) {
    if limit == 0.0 {
        return (g, u);
    }
    let (high, low) = (b.float(limit), b.float(-limit));
    let g = clamp_above(b, g, high);
    let u = clamp_above(b, u, high);
    (g, clamp_below(b, u, low))
}

/// Sum of expert outputs in ascending expert id.
pub fn expert_sum(cx: &mut Cx<'_>, n: &Node, o: &ExpertSum) -> Result<(), LowerError> {
    let (y, ids, out) = (cx.input(n, 0)?, cx.input(n, 1)?, cx.output(n, 0)?);
    let shared = if o.shared { Some(cx.input(n, 2)?) } else { None };
    let k = ids.row_channels();
    let order = cx.temporary("order", 4 * k);
    cx.rows(|b, at| {
        let (y, ids, out_row) = (y.row(b, at), ids.row(b, at), out.row(b, at));
        let shared = shared.as_ref().map(|s| s.row(b, at));
        let (count, d) = (b.int(k), b.int(out.channels));
        b.lanes(count, |b, j| {
            let rank = rank_of(b, &ids, k, j);
            let to = b.imul_c(rank, 4);
            b.store(order, to, Mem::I32, j);
        });
        let line = |b: &mut Builder, i: Var| {
            let from = b.imul_c(i, 4);
            let j = b.load(order, from, Mem::I32);
            y.line(b, j)
        };
        let lines = Ahead::new(b, k, line);
        b.lanes(d, |b, c| {
            let mut total = sum(b, k, |b, i| lines.at(b, i).load(b, c));
            if let Some(shared) = &shared {
                let last = shared.load(b, c);
                total = b.fadd(total, last);
            }
            out_row.store(b, c, total);
        });
    });
    Ok(())
}

/// How many ids come before id `j`: smaller ones, and equal ones further left.
pub fn rank_of(b: &mut Builder, ids: &Row, k: u64, j: Var) -> Var {
    let own = ids.load(b, j);
    let (zero, count) = (b.int(0), b.int(k));
    b.fold_(zero, count, [zero], |b, i, [rank]| {
        let other = ids.load(b, i);
        let (less, equal, left) = (b.cmp(Cmp::Lt, other, own), b.cmp(Cmp::Eq, other, own), b.cmp(Cmp::Lt, i, j));
        let tied = b.and(equal, left);
        let before = b.or(less, tied);
        let (one, zero) = (b.int(1), b.int(0));
        let step = b.select(before, one, zero);
        [b.iadd(rank, step)]
    })[0]
}
