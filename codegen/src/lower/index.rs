//! Index scores: products of query heads with tiles of decoded keys, weighted and summed over heads.

use super::LowerError;
use super::cx::{Cx, Flow, Matrix};
use super::linear::f32_rows;
use super::state::{entry, step, visible};
use super::view::{At, Line, Row, View};
use crate::loops::{Builder, Cmp, Combine, IOp, Var};
use dsc_ir::graph::Node;
use dsc_ir::op::{self, step as column};

/// Keys decoded at a time.
const TILE: u64 = 32;

/// Scores of visible entries. Consecutive rows of one sequence share the decoded keys.
pub fn index_scores(cx: &mut Cx<'_>, n: &Node, o: &op::IndexScores) -> Result<(), LowerError> {
    let (q, keys) = (cx.input(n, 0)?, cx.input(n, 2)?);
    let shared = o.block == 0 && cx.row_block() > 1;
    let most = if shared { cx.row_block() } else { 1 };
    let scorer = Scorer {
        flow: cx.decoder(&keys),
        q: f32_rows(cx, &q)?,
        heads: q.lines,
        weights: cx.input(n, 1)?,
        steps: cx.input(n, 3)?,
        blocks: if o.block > 0 { Some(cx.input(n, 4)?) } else { None },
        entries: cx.size(n, 2, 1)?,
        columns: columns(cx, n, o)?,
        panel: cx.panel("keys", TILE, keys.channels),
        products: cx.panel("products", most * q.lines, TILE),
        out: cx.output(n, 0)?,
        keys,
        op: o,
    };
    let count = cx.row_count();
    cx.rows(|b, at| {
        if !shared {
            let one = b.int(1);
            return scorer.run(b, at, one);
        }
        let (starts, rows) = scorer.run_at(b, at, count);
        b.if_(starts, |b| scorer.run(b, at, rows));
    });
    Ok(())
}

/// Columns of a row of scores.
fn columns(cx: &mut Cx<'_>, n: &Node, o: &op::IndexScores) -> Result<Var, LowerError> {
    if o.block == 0 {
        return cx.size(n, 2, 1);
    }
    let blocks = cx.size(n, 4, 1)?;
    Ok(cx.b.imul_c(blocks, o.block as i64))
}

struct Scorer<'a> {
    flow: Flow,
    q: Matrix,
    heads: u64,
    weights: View,
    keys: View,
    steps: View,
    blocks: Option<View>,
    entries: Var,
    columns: Var,
    panel: View,
    products: View,
    out: View,
    op: &'a op::IndexScores,
}

impl Scorer<'_> {
    /// Whether a row is the first of its sequence in the block, and how many rows of it follow.
    fn run_at(&self, b: &mut Builder, at: At, count: Var) -> (Var, Var) {
        let steps = self.steps.row(b, at);
        let [pos, row0, end] = [column::POS, column::ROW0, column::END].map(|c| step(b, &steps, c));
        let zero = b.int(0);
        let (opens_block, opens_sequence) = (b.cmp(Cmp::Eq, at.in_block, zero), b.cmp(Cmp::Eq, at.row, row0));
        let (in_sequence, in_block) = (b.isub(end, pos), b.isub(count, at.in_block));
        (b.or(opens_block, opens_sequence), b.i(IOp::Min, in_sequence, in_block))
    }

    /// Scores of `rows` rows of one sequence.
    fn run(&self, b: &mut Builder, at: At, rows: Var) {
        let last = b.iadd_c(rows, -1);
        let last = self.later(b, at, last);
        let filled = self.filled(b, last);
        let up = b.iadd_c(filled, TILE as i64 - 1);
        let tiles = b.idiv_c(up, TILE as i64);
        let zero = b.int(0);
        b.for_(zero, tiles, |b, tile| {
            let first = b.imul_c(tile, TILE as i64);
            let (rest, most) = (b.isub(filled, first), b.int(TILE));
            let n = b.i(IOp::Min, rest, most);
            self.tile(b, at, rows, first, n);
        });
        let empty = b.isub(self.columns, filled);
        let ahead = |b: &mut Builder, i: Var| {
            let at = self.later(b, at, i);
            self.out.row(b, at)
        };
        self.flow.grid(b, rows, empty, ahead, |b, out, j| {
            let (column, none) = (b.iadd(filled, j), b.float(f32::NEG_INFINITY));
            out.store(b, column, none);
        });
    }

    fn later(&self, b: &mut Builder, at: At, i: Var) -> At {
        At { in_block: b.iadd(at.in_block, i), row: b.iadd(at.row, i) }
    }

    /// Columns up to the last that a row can see.
    fn filled(&self, b: &mut Builder, at: At) -> Var {
        match &self.blocks {
            Some(blocks) => {
                let ids = blocks.row(b, at);
                let n = b.int(blocks.channels);
                let listed = b.reduce(n, Combine::SumI, |b, i| {
                    let (id, zero, one) = (ids.load(b, i), b.int(0), b.int(1));
                    let is = b.cmp(Cmp::Ge, id, zero);
                    b.select(is, one, zero)
                });
                b.imul_c(listed, self.op.block as i64)
            }
            None => {
                let seen = self.seen(b, at);
                b.i(IOp::Min, seen, self.columns)
            }
        }
    }

    fn seen(&self, b: &mut Builder, at: At) -> Var {
        let steps = self.steps.row(b, at);
        let pos = step(b, &steps, column::POS);
        visible(b, pos, self.op.ratio)
    }

    /// The entry of a column.
    fn entry(&self, b: &mut Builder, blocks: Option<&Row>, column: Var) -> Var {
        match blocks {
            Some(blocks) => {
                let size = self.op.block as i64;
                let (block, inner) = (b.idiv_c(column, size), b.irem_c(column, size));
                let block = blocks.load(b, block);
                let first = b.imul_c(block, size);
                b.iadd(first, inner)
            }
            None => column,
        }
    }

    fn tile(&self, b: &mut Builder, at: At, rows: Var, first: Var, n: Var) {
        let (zero, blocks) = (b.int(0), self.blocks.as_ref().map(|x| x.row(b, at)));
        let seq = {
            let steps = self.steps.row(b, at);
            step(b, &steps, column::SEQ)
        };
        let key = |b: &mut Builder, i: Var| {
            let column = b.iadd(first, i);
            let index = self.entry(b, blocks.as_ref(), column);
            (self.key(b, seq, index), None)
        };
        self.flow.decode(b, &self.keys, n, key, &self.panel, zero);
        let lines = b.imul_c(rows, self.heads as i64);
        let (k, y_stride) = (b.int(self.keys.channels), b.int(4 * TILE));
        let skipped = b.imul(at.in_block, self.q.stride);
        let x = Matrix { place: self.q.place, at: b.iadd(self.q.at, skipped), stride: b.imul_c(k, 4) };
        let y = Matrix { place: self.products.place, at: zero, stride: y_stride };
        self.flow.dot(b, y, x, (self.panel.place, zero), [lines, n, k]);
        let ahead = |b: &mut Builder, i: Var| {
            let at = self.later(b, at, i);
            let seen = self.seen(b, at);
            (b.imul_c(i, self.heads as i64), self.weights.row(b, at), self.out.row(b, at), seen)
        };
        let width = self.flow.strip(TILE);
        let up = b.iadd_c(n, width as i64 - 1);
        let strips = b.idiv_c(up, width as i64);
        self.flow.grid(b, rows, strips, ahead, |b, (line, weights, out, seen), strip| {
            let left = b.imul_c(strip, width as i64);
            let totals = self.weighted(b, *line, weights, left, width);
            for (i, total) in totals.into_iter().enumerate() {
                let j = b.iadd_c(left, i as i64);
                let inside = b.cmp(Cmp::Lt, j, n);
                b.if_(inside, |b| {
                    let column = b.iadd(first, j);
                    let index = self.entry(b, blocks.as_ref(), column);
                    let score = self.visible_score(b, index, *seen, total);
                    out.store(b, column, score);
                });
            }
        });
    }

    /// The score of an entry, -inf for none and for one that is not visible.
    fn visible_score(&self, b: &mut Builder, index: Var, seen: Var, score: Var) -> Var {
        let (zero, none) = (b.int(0), b.float(f32::NEG_INFINITY));
        let (exists, is_seen) = (b.cmp(Cmp::Ge, index, zero), b.cmp(Cmp::Lt, index, seen));
        let is_seen = b.and(exists, is_seen);
        b.select(is_seen, score, none)
    }

    /// The line of an entry; of some entry that exists when there is no such one.
    fn key(&self, b: &mut Builder, seq: Var, index: Var) -> Line {
        let (zero, last) = (b.int(0), b.iadd_c(self.entries, -1));
        let index = b.i(IOp::Min, index, last);
        let index = b.i(IOp::Max, index, zero);
        entry(b, &self.keys, seq, self.entries, index)
    }

    /// `scale * sum_h w_h relu(product_h)` of `width` columns from `left` on.
    fn weighted(&self, b: &mut Builder, line: Var, weights: &Row, left: Var, width: u64) -> Vec<Var> {
        let (lo, heads, none) = (b.int(0), b.int(self.heads), b.float(0.0));
        let start = vec![none; width as usize];
        let totals = b.fold_all(lo, heads, &start, |b, h, held| {
            let line = b.iadd(line, h);
            let (line, w) = (self.products.line(b, line), weights.load(b, h));
            let mut next = Vec::new();
            for (i, total) in held.iter().enumerate() {
                let j = b.iadd_c(left, i as i64);
                let (product, zero) = (line.load(b, j), b.float(0.0));
                let negative = b.cmp(Cmp::Lt, product, zero);
                let rectified = b.select(negative, zero, product);
                let term = b.fmul(w, rectified);
                next.push(b.fadd(*total, term));
            }
            next
        });
        let scale = b.float(self.op.scale);
        totals.into_iter().map(|total| b.fmul(total, scale)).collect()
    }
}
