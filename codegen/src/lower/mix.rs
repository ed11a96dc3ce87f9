//! Hyper-connections: statistics, mix coefficients, and the sums over streams.

use super::LowerError;
use super::cx::{Cx, Matrix};
use super::lanes::{Product, Range};
use super::linear::f32_rows;
use super::math::{Ahead, each, inverse_rms, sigmoid, sum};
use super::view::{Line, Row, View};
use crate::loops::{Builder, Combine, FUn, IOp, Var};
use dsc_ir::graph::Node;
use dsc_ir::op::{HeadCoeffs, MhcCoeffs, MhcStats};

/// Projection of the flattened streams, divided by their root mean square.
pub fn stats(cx: &mut Cx<'_>, n: &Node, o: &MhcStats) -> Result<(), LowerError> {
    if cx.flow.dense { stats_by_dense(cx, n, o) } else { stats_by_lanes(cx, n, o) }
}

/// The products in lanes.
fn stats_by_lanes(cx: &mut Cx<'_>, n: &Node, o: &MhcStats) -> Result<(), LowerError> {
    let (x, matrix, out) = (cx.input(n, 0)?, cx.input(n, 1)?, cx.output(n, 0)?);
    let (k, m) = (x.row_channels(), out.channels);
    let (product, products) = (Product::new(cx, &x, &matrix)?, cx.panel("products", 1, m));
    cx.rows(|b, at| {
        let zero = b.int(0);
        let line = products.line(b, zero);
        product.run(b, at, &Range { x_first: zero, w_first: zero, n: m }, |b, j, v| line.store(b, j, v));
        let (x, out) = (x.row(b, at), out.row(b, at));
        let (width, m) = (b.int(k), b.int(m));
        divide(b, &x, (k, width), m, o.eps, &line, &out);
    });
    Ok(())
}

/// Products divided by the root mean square of the row.
fn divide(b: &mut Builder, x: &Row, (k, width): (u64, Var), m: Var, eps: f32, products: &Line, out: &Row) {
    let squares = b.reduce(width, Combine::Sum, |b, i| {
        let v = x.load(b, i);
        b.fmul(v, v)
    });
    let inv = inverse_rms(b, squares, k, eps);
    b.lanes(m, |b, j| {
        let p = products.load(b, j);
        let y = b.fmul(p, inv);
        out.store(b, j, y);
    });
}

/// The products by the dense micro-kernel.
fn stats_by_dense(cx: &mut Cx<'_>, n: &Node, o: &MhcStats) -> Result<(), LowerError> {
    let (x, matrix, out) = (cx.input(n, 0)?, cx.input(n, 1)?, cx.output(n, 0)?);
    let (k, m, rows) = (x.row_channels(), out.channels, cx.row_block());
    let streams = f32_rows(cx, &x)?;
    let products = cx.panel("products", rows, m);
    let weights = if matrix.is_f32() { matrix.clone() } else { cx.panel("weights", m, k) };
    let (flow, count) = (cx.decoder(&matrix), cx.row_count());
    let b = &mut cx.b;
    let (zero, m, width, stride) = (b.int(0), b.int(m), b.int(k), b.int(4 * m));
    if !matrix.is_f32() {
        flow.decode(b, &matrix, m, |b, i| (matrix.line(b, i), None), &weights, zero);
    }
    let y = Matrix { place: products.place, at: zero, stride };
    flow.dot(b, y, streams, (weights.place, zero), [count, m, width]);
    cx.rows(|b, at| {
        let (x, out) = (x.row(b, at), out.row(b, at));
        let line = products.line(b, at.in_block);
        divide(b, &x, (k, width), m, o.eps, &line, &out);
    });
    Ok(())
}

/// Scale and base of the coefficients.
struct Affine {
    m: Row,
    scale: Line,
    base: Line,
}

impl Affine {
    /// `fma(m_j, scale_which, base_j)`.
    fn at(&self, b: &mut Builder, j: Var, which: u64) -> Var {
        let which = b.int(which);
        let (m, scale, base) = (self.m.load(b, j), self.scale.load(b, which), self.base.load(b, j));
        b.fma(m, scale, base)
    }
}

fn affine(b: &mut Builder, m: Row, scale: &View, base: &View) -> Affine {
    let zero = b.int(0);
    Affine { m, scale: scale.line(b, zero), base: base.line(b, zero) }
}

/// Mix coefficients. The normalisations go back and forth between two scratch matrices, one entry a lane.
pub fn coeffs(cx: &mut Cx<'_>, n: &Node, o: &MhcCoeffs) -> Result<(), LowerError> {
    let (m, scale, base) = (cx.input(n, 0)?, cx.input(n, 1)?, cx.input(n, 2)?);
    let (pre, post, comb) = (cx.output(n, 0)?, cx.output(n, 1)?, cx.output(n, 2)?);
    let streams = pre.channels;
    let (first, second) = (cx.panel("comb", 1, streams * streams), cx.panel("comb", 1, streams * streams));
    cx.rows(|b, at| {
        let m = m.row(b, at);
        let affine = affine(b, m, &scale, &base);
        let (pre, post, comb) = (pre.row(b, at), post.row(b, at), comb.row(b, at));
        let zero = b.int(0);
        let (first, second) = (first.line(b, zero), second.line(b, zero));
        gates(b, &affine, streams, o.eps, &pre, &post);
        softmax_rows(b, &affine, streams, o.eps, &first);
        normalise(b, streams, o.eps, Axis::Columns, &first, &second);
        let more = b.int(o.iters.saturating_sub(1));
        b.for_(zero, more, |b, _| {
            normalise(b, streams, o.eps, Axis::Rows, &second, &first);
            normalise(b, streams, o.eps, Axis::Columns, &first, &second);
        });
        let entries = b.int(streams * streams);
        b.lanes(entries, |b, i| {
            let c = second.load(b, i);
            comb.store(b, i, c);
        });
    });
    Ok(())
}

fn gates(b: &mut Builder, affine: &Affine, streams: u64, eps: f32, pre: &Row, post: &Row) {
    let n = b.int(streams);
    b.lanes(n, |b, j| {
        let (eps, two) = (b.float(eps), b.float(2.0));
        let x = affine.at(b, j, 0);
        let s = sigmoid(b, x);
        let p = b.fadd(s, eps);
        pre.store(b, j, p);
        let i = b.iadd(n, j);
        let x = affine.at(b, i, 1);
        let s = sigmoid(b, x);
        let p = b.fmul(two, s);
        post.store(b, j, p);
    });
}

/// `softmax_j(C_ij) + eps`, a row of the matrix a lane.
fn softmax_rows(b: &mut Builder, affine: &Affine, streams: u64, eps: f32, to: &Line) {
    let n = b.int(streams);
    b.lanes(n, |b, i| {
        let row = b.imul(i, n);
        let entry = |b: &mut Builder, j: Var| {
            let at = b.iadd(row, j);
            let from = b.iadd_c(at, 2 * streams as i64);
            (at, affine.at(b, from, 2))
        };
        let (zero, start) = (b.int(0), b.float(f32::NEG_INFINITY));
        let [largest] = b.fold_(zero, n, [start], |b, j, [m]| {
            let (at, c) = entry(b, j);
            to.store(b, at, c);
            [b.f(crate::loops::FOp::Max, m, c)]
        });
        let none = b.float(0.0);
        let [total] = b.fold_(zero, n, [none], |b, j, [total]| {
            let at = b.iadd(row, j);
            let c = to.load(b, at);
            let d = b.fsub(c, largest);
            let e = b.u(FUn::Exp, d);
            to.store(b, at, e);
            [b.fadd(total, e)]
        });
        let eps = b.float(eps);
        b.for_(zero, n, |b, j| {
            let at = b.iadd(row, j);
            let e = to.load(b, at);
            let p = b.fdiv(e, total);
            let p = b.fadd(p, eps);
            to.store(b, at, p);
        });
    });
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Axis {
    Rows,
    Columns,
}

/// Divides rows or columns by (their sum + eps).
fn normalise(b: &mut Builder, streams: u64, eps: f32, axis: Axis, from: &Line, to: &Line) {
    let (n, entries) = (b.int(streams), b.int(streams * streams));
    b.lanes(entries, |b, at| {
        let (i, j) = (b.i(IOp::Div, at, n), b.i(IOp::Rem, at, n));
        let total = sum(b, streams, |b, s| {
            let (row, column) = if axis == Axis::Rows { (i, s) } else { (s, j) };
            let row = b.imul(row, n);
            let from_at = b.iadd(row, column);
            from.load(b, from_at)
        });
        let (c, eps) = (from.load(b, at), b.float(eps));
        let total = b.fadd(total, eps);
        let c = b.fdiv(c, total);
        to.store(b, at, c);
    });
}

/// Learned head mix.
pub fn head_coeffs(cx: &mut Cx<'_>, n: &Node, o: &HeadCoeffs) -> Result<(), LowerError> {
    let (m, scale, base, out) = (cx.input(n, 0)?, cx.input(n, 1)?, cx.input(n, 2)?, cx.output(n, 0)?);
    cx.rows(|b, at| {
        let m = m.row(b, at);
        let affine = affine(b, m, &scale, &base);
        let streams = b.int(out.channels);
        let out = out.row(b, at);
        b.lanes(streams, |b, j| {
            let x = affine.at(b, j, 0);
            let (s, eps) = (sigmoid(b, x), b.float(o.eps));
            let w = b.fadd(s, eps);
            out.store(b, j, w);
        });
    });
    Ok(())
}

/// Weighted sum of streams.
pub fn collapse(cx: &mut Cx<'_>, n: &Node) -> Result<(), LowerError> {
    let (x, p, out) = (cx.input(n, 0)?, cx.input(n, 1)?, cx.output(n, 0)?);
    let streams = x.lines;
    cx.rows(|b, at| {
        let (x, p) = (x.row(b, at), p.row(b, at));
        let weights = Ahead::new(b, streams, |b: &mut Builder, j| p.load(b, j));
        let lines = Ahead::new(b, streams, |b: &mut Builder, j| x.line(b, j));
        let d = b.int(out.channels);
        let out = out.row(b, at);
        b.lanes(d, |b, c| {
            let y = sum(b, streams, |b, j| {
                let (w, line) = (weights.at(b, j), lines.at(b, j));
                let v = line.load(b, c);
                b.fmul(w, v)
            });
            out.store(b, c, y);
        });
    });
    Ok(())
}

/// Sublayer output into the streams.
pub fn expand(cx: &mut Cx<'_>, n: &Node) -> Result<(), LowerError> {
    let (y, x, out) = (cx.input(n, 0)?, cx.input(n, 1)?, cx.output(n, 0)?);
    let (post, comb) = (cx.input(n, 2)?, cx.input(n, 3)?);
    let streams = x.lines;
    cx.rows(|b, at| {
        let (y, x, out_row) = (y.row(b, at), x.row(b, at), out.row(b, at));
        let (post, comb) = (post.row(b, at), comb.row(b, at));
        let post = Ahead::new(b, streams, |b: &mut Builder, j| post.load(b, j));
        let comb = Ahead::new(b, streams * streams, |b: &mut Builder, i| comb.load(b, i));
        let d = b.int(out.channels);
        b.lanes(d, |b, c| {
            let v = y.load(b, c);
            let old = Ahead::new(b, streams, |b: &mut Builder, i| {
                let line = x.line(b, i);
                line.load(b, c)
            });
            each(b, streams, |b, j| {
                let mixed = sum(b, streams, |b, i| {
                    let at = b.imul_c(i, streams as i64);
                    let at = b.iadd(at, j);
                    let (w, v) = (comb.at(b, at), old.at(b, i));
                    b.fmul(w, v)
                });
                let p = post.at(b, j);
                let own = b.fmul(p, v);
                let new = b.fadd(own, mixed);
                let to = b.imul_c(j, out.channels as i64);
                let to = b.iadd(to, c);
                out_row.store(b, to, new);
            });
        });
    });
    Ok(())
}
