//! Linears where lanes run side by side. A lane sums a part of the channels of a few outputs; neighbouring lanes read
//! neighbouring runs of the same weights, and a second loop adds the parts in order. The order of a sum depends on the
//! number of channels alone.

use super::LowerError;
use super::codec::Tables;
use super::cx::Cx;
use super::linear::{clear, is_expert};
use super::view::{At, Coding, Line, Row, View};
use crate::loops::{Builder, IOp, Var};
use dsc_ir::graph::Node;
use dsc_ir::op::GroupLinear;

/// Most parts of a sum.
const PARTS: u64 = 32;
/// Outputs of a lane: they share the decoded channels of the row.
const OUTPUTS: u64 = 4;
/// Outputs of a pair of loops: with all parts, four iterations for each of 256 threads.
const TILE: u64 = 128;

/// Products of a row with lines of a weight.
pub struct Product {
    x: View,
    w: View,
    /// Channels that are decoded together.
    run: u64,
    parts: u64,
    /// Sums of parts: a line for each part.
    sums: View,
}

/// Which products: channels of the row from `x_first` on, with `n` lines of the weight from `w_first` on.
pub struct Range {
    /// First channel.
    pub x_first: Var,
    /// First line.
    pub w_first: Var,
    /// Lines.
    pub n: u64,
}

impl Product {
    /// Products of `x` and `w`.
    pub fn new(cx: &mut Cx<'_>, x: &View, w: &View) -> Result<Product, LowerError> {
        if x.channels == 0 || w.channels == 0 {
            return cx.fail("a linear over rows of symbolic size");
        }
        let run = [8, 4, 2, 1].into_iter().find(|run| runs_fit(x, w, *run)).unwrap_or(1);
        let parts = (w.channels / run).clamp(1, PARTS);
        Ok(Product { x: x.clone(), w: w.clone(), run, parts, sums: cx.sums(PARTS, TILE) })
    }

    /// Gives every product to `out`, which runs in lanes of their own.
    pub fn run(&self, b: &mut Builder, at: At, range: &Range, out: impl FnOnce(&mut Builder, Var, Var)) {
        let x = self.x.row(b, at);
        let (zero, tiles, n) = (b.int(0), b.int(range.n.div_ceil(TILE)), b.int(range.n));
        b.for_(zero, tiles, |b, tile| {
            let from = b.imul_c(tile, TILE as i64);
            let count = if range.n.is_multiple_of(TILE) {
                b.int(TILE)
            } else {
                let (rest, most) = (b.isub(n, from), b.int(TILE));
                b.i(IOp::Min, rest, most)
            };
            let first = b.iadd(range.w_first, from);
            self.sum_parts(b, &x, range.x_first, first, count);
            b.lanes(count, |b, j| {
                let (parts, none) = (b.int(self.parts), b.float(0.0));
                let [total] = b.fold_(zero, parts, [none], |b, part, [total]| {
                    let sum = self.sums.line(b, part).load(b, j);
                    [b.fadd(total, sum)]
                });
                let j = b.iadd(from, j);
                out(b, j, total);
            });
        });
    }

    /// Sums of all parts of `count` lines of the weight from `first` on.
    fn sum_parts(&self, b: &mut Builder, x: &Row, x_first: Var, first: Var, count: Var) {
        let up = b.iadd_c(count, OUTPUTS as i64 - 1);
        let groups = b.idiv_c(up, OUTPUTS as i64);
        let (all, last) = (b.imul_c(groups, self.parts as i64), b.iadd_c(count, -1));
        b.lanes(all, |b, lane| {
            let (group, part) = (b.idiv_c(lane, self.parts as i64), b.irem_c(lane, self.parts as i64));
            let column = b.imul_c(group, OUTPUTS as i64);
            let lines: Vec<Line> = (0..OUTPUTS)
                .map(|i| {
                    let j = b.iadd_c(column, i as i64);
                    let j = b.i(IOp::Min, j, last);
                    let line = b.iadd(first, j);
                    self.w.line(b, line)
                })
                .collect();
            let sums = self.sum_part(b, x, x_first, &lines, part);
            let to = self.sums.line(b, part);
            for (i, sum) in sums.into_iter().enumerate() {
                let j = b.iadd_c(column, i as i64);
                to.store(b, j, sum);
            }
        });
    }

    /// Sums of the runs `part`, `part + parts`, .. with each line.
    fn sum_part(&self, b: &mut Builder, x: &Row, x_first: Var, lines: &[Line], part: Var) -> Vec<Var> {
        let runs = b.int(self.w.channels / self.run + self.parts - 1);
        let left = b.isub(runs, part);
        let (zero, steps, none) = (b.int(0), b.idiv_c(left, self.parts as i64), b.float(0.0));
        b.fold_all(zero, steps, &vec![none; lines.len()], |b, step, sums| {
            let skipped = b.imul_c(step, self.parts as i64);
            let run = b.iadd(part, skipped);
            let j = b.imul_c(run, self.run as i64);
            let at = b.iadd(x_first, j);
            let x = self.load_row(b, x, at);
            let product = |b: &mut Builder, (sum, line): (&Var, &Line)| {
                let w = load(b, line, self.w.channels, j, self.run);
                x.iter().zip(w).fold(*sum, |sum, (x, w)| b.fma(*x, w, sum))
            };
            sums.iter().zip(lines).map(|pair| product(b, pair)).collect()
        })
    }

    /// A run of the flattened row.
    fn load_row(&self, b: &mut Builder, x: &Row, at: Var) -> Vec<Var> {
        let zero = b.int(0);
        if self.x.lines == 1 || self.x.is_plain() {
            let line = x.line(b, zero);
            return load(b, &line, self.x.channels, at, self.run);
        }
        let (i, j) = (b.idiv_c(at, self.x.channels as i64), b.irem_c(at, self.x.channels as i64));
        let line = x.line(b, i);
        load(b, &line, self.x.channels, j, self.run)
    }
}

/// Whether every run of channels has one scale and lies in one line, on both sides.
fn runs_fit(x: &View, w: &View, run: u64) -> bool {
    let fits = |view: &View| match view.codec.coding {
        Coding::Plain(_) => true,
        Coding::E4m3 { group } | Coding::E2m1 { group, .. } => group.is_multiple_of(run),
    };
    let is_one = x.lines == 1 || x.is_plain() || x.channels.is_multiple_of(run);
    let has_parts = x.codec.tail > 0 || w.codec.tail > 0;
    w.channels.is_multiple_of(run) && is_one && fits(x) && fits(w) && (run == 1 || !has_parts)
}

/// Channels `j .. j + run` of a line of `channels`.
fn load(b: &mut Builder, line: &Line, channels: u64, j: Var, run: u64) -> Vec<Var> {
    match line.codec.parts(channels).as_slice() {
        [part] if run > 1 => line.load_run(b, part, j, run, &Tables::default()),
        _ => vec![line.load(b, j)],
    }
}

/// One or several linears over one input.
pub fn linear(cx: &mut Cx<'_>, n: &Node) -> Result<(), LowerError> {
    let x = cx.input(n, 0)?;
    for i in 0..n.outputs.len() {
        let (w, out) = (cx.input(n, i + 1)?, cx.output(n, i)?);
        let product = Product::new(cx, &x, &w)?;
        cx.rows(|b, at| {
            let (zero, to) = (b.int(0), out.row(b, at));
            let range = Range { x_first: zero, w_first: zero, n: out.row_channels() };
            product.run(b, at, &range, |b, j, v| to.store(b, j, v));
        });
    }
    Ok(())
}

/// Block-diagonal linear.
pub fn group_linear(cx: &mut Cx<'_>, n: &Node, o: &GroupLinear) -> Result<(), LowerError> {
    let (x, w, out) = (cx.input(n, 0)?, cx.input(n, 1)?, cx.output(n, 0)?);
    let lines = out.row_channels() / o.groups.max(1);
    let product = Product::new(cx, &x, &w)?;
    cx.rows(|b, at| {
        let (zero, groups, to) = (b.int(0), b.int(o.groups), out.row(b, at));
        b.for_(zero, groups, |b, g| {
            let (x_first, w_first) = (b.imul_c(g, w.channels as i64), b.imul_c(g, lines as i64));
            product.run(b, at, &Range { x_first, w_first, n: lines }, |b, j, v| {
                let j = b.iadd(w_first, j);
                to.store(b, j, v);
            });
        });
    });
    Ok(())
}

/// Linears of the chosen experts, one slot after the other.
pub fn expert_linear(cx: &mut Cx<'_>, n: &Node) -> Result<(), LowerError> {
    let (x, ids) = (cx.input(n, 0)?, cx.input(n, 1)?);
    let experts = cx.shape(n, 2).first().copied().unwrap_or(0);
    let number = cx.line_number();
    for i in 0..n.outputs.len() {
        let (w, out) = (cx.input(n, i + 2)?, cx.output(n, i)?);
        let product = Product::new(cx, &x, &w)?;
        let per_slot = cx.shape(n, 0).len() > 2;
        cx.rows(|b, at| {
            let (zero, slots) = (b.int(0), b.int(out.lines));
            let (ids, to) = (ids.row(b, at), out.row(b, at));
            b.for_(zero, slots, |b, slot| {
                let j = number(b, slot);
                let id = ids.load(b, j);
                let to = to.line(b, slot);
                let (is, is_none) = is_expert(b, id, experts);
                b.if_(is, |b| {
                    let w_first = b.imul_c(id, out.channels as i64);
                    let x_first = if per_slot { b.imul_c(slot, x.channels as i64) } else { zero };
                    product.run(b, at, &Range { x_first, w_first, n: out.channels }, |b, j, v| to.store(b, j, v));
                });
                b.if_(is_none, |b| clear(b, &to, out.channels));
            });
        });
    }
    Ok(())
}
