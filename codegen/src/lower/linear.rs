//! Linears on the dense micro-kernel: rows and weights are decoded to f32 panels, products rounded once.

use super::cx::{Cx, Flow, Matrix};
use super::view::{At, Line, Row, View};
use super::{LowerError, lanes};
use crate::loops::{Builder, Cmp, IOp, Mem, Place, Var};
use dsc_ir::graph::Node;
use dsc_ir::op::GroupLinear;

/// Floats of a decoded weight panel: a quarter of a typical second-level cache.
const PANEL_FLOATS: u64 = 1 << 16;

/// Lines of a weight panel of `k` channels.
fn panel_lines(k: u64, n: u64) -> u64 {
    let fits = (PANEL_FLOATS / k.max(1)).clamp(4, 64) / 4 * 4;
    fits.min(n.next_multiple_of(4))
}

/// The rows of the block as an f32 matrix, decoded unless they are f32 already.
pub fn f32_rows(cx: &mut Cx<'_>, x: &View) -> Result<Matrix, LowerError> {
    let k = x.row_channels();
    if k == 0 {
        return cx.fail("a linear over rows of symbolic size");
    }
    let begin = cx.row_begin();
    if x.is_f32() {
        let b = &mut cx.b;
        let row = if x.local { b.int(0) } else { begin };
        let at = b.imul_c(row, 4 * k as i64);
        return Ok(Matrix { place: x.place, at, stride: b.int(4 * k) });
    }
    let rows = cx.row_block();
    let panel = cx.panel("rows", rows * x.lines, x.channels);
    let (flow, count) = (cx.decoder(x), cx.row_count());
    let b = &mut cx.b;
    let zero = b.int(0);
    let first = if x.local { zero } else { b.imul_c(begin, x.lines as i64) };
    let lines = b.imul_c(count, x.lines as i64);
    let line = |b: &mut Builder, i: Var| {
        let i = b.iadd(first, i);
        (x.line(b, i), None)
    };
    flow.decode(b, x, lines, line, &panel, zero);
    Ok(Matrix { place: panel.place, at: zero, stride: b.int(4 * k) })
}

/// Scratch of a product of `m` rows with a weight.
struct Product {
    flow: Flow,
    /// Lines of a panel.
    lines: u64,
    /// Decoded weight lines; none where they are f32 already.
    weights: Option<View>,
    /// Products of a panel.
    products: View,
}

impl Product {
    fn new(cx: &mut Cx<'_>, w: &View, m: u64, n: u64) -> Product {
        let lines = panel_lines(w.channels, n);
        let weights = (!w.is_f32()).then(|| cx.panel("weights", lines, w.channels));
        Product { flow: cx.decoder(w), lines, weights, products: cx.panel("products", m, lines) }
    }

    /// `out_i[first_out + j] = x_i . w_(first + j)` for `j` in `0 .. n`.
    fn run(&self, b: &mut Builder, x: Matrix, m: Var, w: &Operand<'_>, out: impl Fn(&mut Builder, Var) -> Target) {
        let (zero, n, width) = (b.int(0), b.int(w.n), b.int(self.lines));
        let panels = b.int(w.n.div_ceil(self.lines));
        b.for_(zero, panels, |b, panel| {
            let from = b.imul(panel, width);
            let rest = b.isub(n, from);
            let lines = b.i(IOp::Min, rest, width);
            let first = b.iadd(w.first, from);
            let weights = self.decode(b, w.view, first, lines);
            let (stride, k) = (b.int(4 * self.lines), b.int(w.view.channels));
            let y = Matrix { place: self.products.place, at: zero, stride };
            self.flow.dot(b, y, x, weights, [m, lines, k]);
            let ahead = |b: &mut Builder, i: Var| (self.products.line(b, i), out(b, i));
            self.flow.grid(b, m, lines, ahead, |b, (product, to), j| {
                let v = product.load(b, j);
                let at = b.iadd(from, j);
                to.store(b, at, v);
            });
        });
    }

    fn decode(&self, b: &mut Builder, w: &View, first: Var, lines: Var) -> (Place, Var) {
        let zero = b.int(0);
        match &self.weights {
            Some(panel) => {
                let line = |b: &mut Builder, i: Var| {
                    let i = b.iadd(first, i);
                    (w.line(b, i), None)
                };
                self.flow.decode(b, w, lines, line, panel, zero);
                (panel.place, zero)
            }
            None => (w.place, w.address(b, first)),
        }
    }
}

/// Lines `first .. first + n` of a weight.
struct Operand<'a> {
    view: &'a View,
    first: Var,
    n: u64,
}

/// Where a row of products goes.
struct Target {
    line: Line,
    first: Var,
}

impl Target {
    fn store(&self, b: &mut Builder, j: Var, v: Var) {
        let at = b.iadd(self.first, j);
        self.line.store(b, at, v);
    }
}

fn row_of(cx: &Cx<'_>, view: &View) -> impl Fn(&mut Builder, Var) -> Row + use<> {
    let (view, begin) = (view.clone(), cx.row_begin());
    move |b, i| {
        let row = b.iadd(begin, i);
        view.row(b, At { in_block: i, row })
    }
}

/// One or several linears over one input.
pub fn linear(cx: &mut Cx<'_>, n: &Node) -> Result<(), LowerError> {
    if !cx.flow.dense {
        return lanes::linear(cx, n);
    }
    let x = cx.input(n, 0)?;
    let x = f32_rows(cx, &x)?;
    for i in 0..n.outputs.len() {
        let (w, out) = (cx.input(n, i + 1)?, cx.output(n, i)?);
        let product = Product::new(cx, &w, cx.row_block(), out.row_channels());
        let (count, row) = (cx.row_count(), row_of(cx, &out));
        let b = &mut cx.b;
        let zero = b.int(0);
        let operand = Operand { view: &w, first: zero, n: out.row_channels() };
        product.run(b, x, count, &operand, |b, i| Target { line: row(b, i).line(b, zero), first: zero });
    }
    Ok(())
}

/// Block-diagonal linear.
pub fn group_linear(cx: &mut Cx<'_>, n: &Node, o: &GroupLinear) -> Result<(), LowerError> {
    if !cx.flow.dense {
        return lanes::group_linear(cx, n, o);
    }
    let (x, w, out) = (cx.input(n, 0)?, cx.input(n, 1)?, cx.output(n, 0)?);
    let x = f32_rows(cx, &x)?;
    let lines = out.channels / o.groups.max(1);
    let product = Product::new(cx, &w, cx.row_block(), lines);
    let (count, row) = (cx.row_count(), row_of(cx, &out));
    let b = &mut cx.b;
    let (zero, groups) = (b.int(0), b.int(o.groups));
    b.for_(zero, groups, |b, g| {
        let offset = b.imul_c(g, 4 * w.channels as i64);
        let x = Matrix { at: b.iadd(x.at, offset), ..x };
        let first = b.imul_c(g, lines as i64);
        let operand = Operand { view: &w, first, n: lines };
        product.run(b, x, count, &operand, |b, i| Target { line: row(b, i).line(b, zero), first });
    });
    Ok(())
}

/// Linears of the chosen experts: for each expert, the rows of the block that chose it are gathered, so that
/// its weights are decoded once a block.
pub fn expert_linear(cx: &mut Cx<'_>, n: &Node) -> Result<(), LowerError> {
    if !cx.flow.dense {
        return lanes::expert_linear(cx, n);
    }
    let (x, ids) = (cx.input(n, 0)?, cx.input(n, 1)?);
    let (k, c) = (ids.row_channels(), x.channels);
    let slots = cx.row_block() * k;
    let chosen = Chosen {
        list: cx.temporary("chosen", 4 * slots),
        panel: cx.panel("rows", slots, c),
        ids: row_of(cx, &ids),
        x: row_of(cx, &x),
        k,
        per_slot: x.lines > 1,
    };
    let experts = cx.shape(n, 2).first().copied().unwrap_or(0);
    let mut parts = Vec::new();
    for i in 0..n.outputs.len() {
        let (w, out) = (cx.input(n, i + 2)?, cx.output(n, i)?);
        let product = Product::new(cx, &w, slots, out.channels);
        let row = row_of(cx, &out);
        parts.push((w, out.channels, product, row));
    }
    let (count, flow) = (cx.row_count(), cx.decoder(&x));
    let b = &mut cx.b;
    for (_, lines, _, row) in &parts {
        chosen.clear_others(b, experts, *lines, count, row);
    }
    let (zero, experts) = (b.int(0), b.int(experts));
    b.for_(zero, experts, |b, e| {
        let m = chosen.collect(b, e, count);
        let some = b.cmp(Cmp::Gt, m, zero);
        b.if_(some, |b| {
            let x = chosen.gather(b, flow, &x, m);
            for (w, lines, product, row) in &parts {
                let first = b.imul_c(e, *lines as i64);
                let operand = Operand { view: w, first, n: *lines };
                product.run(b, x, m, &operand, |b, i| {
                    let (r, j) = chosen.slot(b, i);
                    Target { line: row(b, r).line(b, j), first: zero }
                });
            }
        });
    });
    Ok(())
}

/// Whether an id is one of so many experts, and whether it is none.
pub(super) fn is_expert(b: &mut Builder, id: Var, experts: u64) -> (Var, Var) {
    let (zero, end) = (b.int(0), b.int(experts));
    let (from, to) = (b.cmp(Cmp::Ge, id, zero), b.cmp(Cmp::Lt, id, end));
    let (below, beyond) = (b.cmp(Cmp::Lt, id, zero), b.cmp(Cmp::Ge, id, end));
    (b.and(from, to), b.or(below, beyond))
}

/// Zeros a line.
pub(super) fn clear(b: &mut Builder, line: &Line, channels: u64) {
    let n = b.int(channels);
    b.lanes(n, |b, c| {
        let none = b.float(0.0);
        line.store(b, c, none);
    });
}

/// The (row, slot) pairs of the block that chose an expert.
struct Chosen<I, X> {
    list: Place,
    panel: View,
    ids: I,
    x: X,
    k: u64,
    per_slot: bool,
}

impl<I: Fn(&mut Builder, Var) -> Row, X: Fn(&mut Builder, Var) -> Row> Chosen<I, X> {
    /// Lists the pairs of expert `e` and returns their number.
    fn collect(&self, b: &mut Builder, e: Var, rows: Var) -> Var {
        let zero = b.int(0);
        b.fold_(zero, rows, [zero], |b, r, [m]| {
            let ids = (self.ids)(b, r);
            let (zero, k) = (b.int(0), b.int(self.k));
            b.fold_(zero, k, [m], |b, j, [m]| {
                let id = ids.load(b, j);
                let is = b.cmp(Cmp::Eq, id, e);
                b.if_(is, |b| {
                    let pair = b.imul_c(r, self.k as i64);
                    let pair = b.iadd(pair, j);
                    let at = b.imul_c(m, 4);
                    b.store(self.list, at, Mem::I32, pair);
                });
                let (one, zero) = (b.int(1), b.int(0));
                let step = b.select(is, one, zero);
                [b.iadd(m, step)]
            })
        })[0]
    }

    /// Zeros for the pairs that chose no expert.
    fn clear_others(
        &self,
        b: &mut Builder,
        experts: u64,
        channels: u64,
        rows: Var,
        out: &impl Fn(&mut Builder, Var) -> Row,
    ) {
        let zero = b.int(0);
        b.for_(zero, rows, |b, r| {
            let ids = (self.ids)(b, r);
            let (zero, k) = (b.int(0), b.int(self.k));
            b.for_(zero, k, |b, j| {
                let id = ids.load(b, j);
                let (_, is_none) = is_expert(b, id, experts);
                b.if_(is_none, |b| {
                    let line = out(b, r).line(b, j);
                    clear(b, &line, channels);
                });
            });
        });
    }

    /// Row and slot of pair `i`.
    fn slot(&self, b: &mut Builder, i: Var) -> (Var, Var) {
        let at = b.imul_c(i, 4);
        let pair = b.load(self.list, at, Mem::I32);
        (b.idiv_c(pair, self.k as i64), b.irem_c(pair, self.k as i64))
    }

    /// The operand rows of the listed pairs, decoded one after the other.
    fn gather(&self, b: &mut Builder, flow: Flow, x: &View, m: Var) -> Matrix {
        let zero = b.int(0);
        let line = |b: &mut Builder, i: Var| {
            let (r, j) = self.slot(b, i);
            let j = if self.per_slot { j } else { b.int(0) };
            ((self.x)(b, r).line(b, j), None)
        };
        flow.decode(b, x, m, line, &self.panel, zero);
        Matrix { place: self.panel.place, at: zero, stride: b.int(4 * x.channels) }
    }
}
