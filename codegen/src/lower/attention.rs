//! Sparse attention over a window and selected entries, in tiles of decoded rows.
//!
//! The rows a query sees come from three places in turn: the ring, the step's own rows, the pages. Two passes go
//! over them: the first finds each head's largest score, the second sums. Sums are carried in memory from tile to
//! tile, so their order is that of the rows, wherever tiles begin.

use super::LowerError;
use super::codec::bf16_round;
use super::cx::{Cx, Flow, Matrix};
use super::state::{History, Token, entry, step, visible};
use super::view::{Line, Row, View};
use crate::loops::{Builder, Cmp, Combine, FOp, FUn, IOp, Var};
use dsc_ir::graph::Node;
use dsc_ir::op::{self, Select, step as column};

/// Rows decoded at a time.
const TILE: u64 = 16;

/// Softmax attention of all heads of a row over one shared latent.
pub fn sparse_attention(cx: &mut Cx<'_>, n: &Node, o: &op::SparseAttention) -> Result<(), LowerError> {
    let (q, steps, out) = (cx.input(n, 0)?, cx.input(n, 3)?, cx.output(n, 0)?);
    cx.decoder(&q);
    let attention = Attention::new(cx, n, o, &q)?;
    let queries = (!q.is_f32()).then(|| cx.panel("queries", q.lines, q.channels));
    cx.rows(|b, at| {
        let (q_row, steps, out) = (q.row(b, at), steps.row(b, at), out.row(b, at));
        let token = Token::new(b, &steps);
        let floor = step(b, &steps, column::FLOOR);
        let (zero, heads) = (b.int(0), b.int(attention.heads));
        if let Some(panel) = &queries {
            attention.flow.decode(b, &q, heads, |b, h| (q_row.line(b, h), None), panel, zero);
        }
        let (place, at_q) = queries.as_ref().map_or(q_row.address(), |panel| (panel.place, zero));
        let query = Matrix { place, at: at_q, stride: b.int(4 * attention.d) };
        let listed = attention.listed.as_ref().map(|x| x.row(b, at));
        let pass = Pass { attention: &attention, token, floor, query, listed };
        pass.row(b, &out);
    });
    Ok(())
}

/// Operands and scratch.
struct Attention<'a> {
    flow: Flow,
    op: &'a op::SparseAttention,
    heads: u64,
    d: u64,
    history: History,
    sink: Option<View>,
    /// Number of the first head; none where it is 0.
    first_head: Option<Var>,
    pages: Option<(View, Var)>,
    listed: Option<View>,
    /// Decoded rows of a tile.
    panel: View,
    /// Scores, then probabilities, of a tile.
    scores: View,
    /// Largest score of each head.
    peaks: View,
    /// Sum of probabilities of each head.
    totals: View,
    /// Weighted sums.
    sums: View,
}

impl<'a> Attention<'a> {
    fn new(cx: &mut Cx<'_>, n: &Node, o: &'a op::SparseAttention, q: &View) -> Result<Attention<'a>, LowerError> {
        let history = History { rows: cx.input(n, 1)?, ring: cx.input(n, 2)?, slots: cx.size(n, 2, 1)? };
        if history.rows.local {
            return cx.fail("attention reads other rows' keys, so they must be a parameter");
        }
        let first = 4 + usize::from(o.sink);
        let (heads, d) = (q.lines, q.channels);
        let pages = if o.select == Select::None { None } else { Some((cx.input(n, first)?, cx.size(n, first, 1)?)) };
        for view in [&history.rows, &history.ring].into_iter().chain(pages.as_ref().map(|(pages, _)| pages)) {
            cx.decoder(view);
        }
        Ok(Attention {
            flow: cx.flow,
            op: o,
            heads,
            d,
            history,
            sink: if o.sink { Some(cx.input(n, 4)?) } else { None },
            first_head: cx.slice().map(|slice| slice.first),
            pages,
            listed: if o.select == Select::Listed { Some(cx.input(n, first + 1)?) } else { None },
            panel: cx.panel("kv", TILE, d),
            scores: cx.panel("scores", heads, TILE),
            peaks: cx.panel("peaks", 1, heads),
            totals: cx.panel("totals", 1, heads),
            sums: cx.panel("sums", heads, d),
        })
    }
}

/// A run of rows from one place, numbered `lo .. hi` in its own way.
struct Segment {
    source: Source,
    lo: Var,
    hi: Var,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// Positions before the step.
    Ring,
    /// Positions of the step.
    Own,
    /// Entries.
    Pages,
    /// Items of the index list.
    Listed,
}

/// The work of one row.
struct Pass<'a> {
    attention: &'a Attention<'a>,
    token: Token,
    /// First position of the window.
    floor: Var,
    query: Matrix,
    listed: Option<Row>,
}

impl Pass<'_> {
    fn row(&self, b: &mut Builder, out: &Row) {
        let a = self.attention;
        let (zero, heads, d) = (b.int(0), b.int(a.heads), b.int(a.d));
        let [peaks, totals] = [&a.peaks, &a.totals].map(|v| v.line(b, zero));
        b.lanes(heads, |b, h| {
            let (lowest, none) = (b.float(f32::NEG_INFINITY), b.float(0.0));
            peaks.store(b, h, lowest);
            totals.store(b, h, none);
        });
        let all = b.imul(heads, d);
        let flat = a.sums.line(b, zero);
        b.lanes(all, |b, i| {
            let none = b.float(0.0);
            flat.store(b, i, none);
        });
        let segments = self.segments(b);
        for s in &segments {
            self.tiles(b, s, |b, first, n| self.raise_peaks(b, s, first, n, &peaks));
        }
        for s in &segments {
            self.tiles(b, s, |b, first, n| self.accumulate(b, s, first, n, &peaks, &totals));
        }
        self.finish(b, out, &peaks, &totals);
    }

    /// What the row sees, in order.
    fn segments(&self, b: &mut Builder) -> Vec<Segment> {
        let (zero, t) = (b.int(0), &self.token);
        let hi = b.iadd_c(t.pos, 1);
        let lo = b.iadd_c(hi, -(self.attention.op.window as i64));
        let lo = b.i(IOp::Max, lo, self.floor);
        let border = b.i(IOp::Max, lo, t.start);
        let border = b.i(IOp::Min, border, hi);
        let mut segments =
            vec![Segment { source: Source::Ring, lo, hi: border }, Segment { source: Source::Own, lo: border, hi }];
        match self.attention.op.select {
            Select::None => {}
            Select::All => {
                let hi = visible(b, t.pos, self.attention.op.ratio);
                segments.push(Segment { source: Source::Pages, lo: zero, hi });
            }
            Select::Listed => {
                let hi = self.listed_end(b);
                segments.push(Segment { source: Source::Listed, lo: zero, hi });
            }
        }
        segments
    }

    /// One past the last item of the list that is no padding.
    fn listed_end(&self, b: &mut Builder) -> Var {
        let (Some(list), Some(view)) = (&self.listed, &self.attention.listed) else {
            return b.int(0);
        };
        let n = b.int(view.channels);
        let last = b.reduce(n, Combine::Max, |b, i| {
            let (id, zero, next) = (list.load(b, i), b.int(0), b.iadd_c(i, 1));
            let is = b.cmp(Cmp::Ge, id, zero);
            let end = b.select(is, next, zero);
            b.itof(end)
        });
        // An empty list leaves -inf.
        let none = b.float(0.0);
        let last = b.f(FOp::Max, last, none);
        b.ftoi(last)
    }

    fn tiles(&self, b: &mut Builder, s: &Segment, f: impl FnOnce(&mut Builder, Var, Var)) {
        let zero = b.int(0);
        let length = b.isub(s.hi, s.lo);
        let length = b.i(IOp::Max, length, zero);
        let up = b.iadd_c(length, TILE as i64 - 1);
        let tiles = b.idiv_c(up, TILE as i64);
        b.for_(zero, tiles, |b, tile| {
            let skipped = b.imul_c(tile, TILE as i64);
            let (rest, most) = (b.isub(length, skipped), b.int(TILE));
            let first = b.iadd(s.lo, skipped);
            let n = b.i(IOp::Min, rest, most);
            f(b, first, n);
        });
    }

    /// Row `i` of a segment, and whether it exists where it may not.
    fn line(&self, b: &mut Builder, source: Source, i: Var) -> (Line, Option<Var>) {
        let (history, t) = (&self.attention.history, &self.token);
        match (source, &self.attention.pages) {
            (Source::Own, _) => (history.own(b, t, i), None),
            (Source::Listed, Some((pages, entries))) => {
                let (id, exists) = self.item(b, i);
                let zero = b.int(0);
                let id = b.i(IOp::Max, id, zero);
                (entry(b, pages, t.seq, *entries, id), Some(exists))
            }
            (Source::Pages, Some((pages, entries))) => (entry(b, pages, t.seq, *entries, i), None),
            (Source::Ring | Source::Listed | Source::Pages, _) => (history.earlier(b, t, i), None),
        }
    }

    /// Item `i` of the list and whether it is an entry.
    fn item(&self, b: &mut Builder, i: Var) -> (Var, Var) {
        let id = match &self.listed {
            Some(list) => list.load(b, i),
            None => b.int(-1),
        };
        let zero = b.int(0);
        (id, b.cmp(Cmp::Ge, id, zero))
    }

    /// Decodes a tile and computes its unscaled scores.
    fn score(&self, b: &mut Builder, s: &Segment, first: Var, n: Var) {
        let a = self.attention;
        let view = match (s.source, &a.pages) {
            (Source::Own, _) => &a.history.rows,
            (Source::Pages | Source::Listed, Some((pages, _))) => pages,
            (Source::Ring | Source::Pages | Source::Listed, _) => &a.history.ring,
        };
        let zero = b.int(0);
        let line = |b: &mut Builder, i: Var| {
            let i = b.iadd(first, i);
            self.line(b, s.source, i)
        };
        a.flow.decode(b, view, n, line, &a.panel, zero);
        let (heads, d) = (b.int(a.heads), b.int(a.d));
        let y = Matrix { place: a.scores.place, at: zero, stride: b.int(4 * TILE) };
        a.flow.dot(b, y, self.query, (a.panel.place, zero), [heads, n, d]);
    }

    /// The scaled score of item `first + j`, -inf where there is none.
    fn scaled(&self, b: &mut Builder, s: &Segment, scores: &Line, first: Var, j: Var) -> Var {
        let (score, scale) = (scores.load(b, j), b.float(self.attention.op.scale));
        let scaled = b.fmul(score, scale);
        if s.source != Source::Listed {
            return scaled;
        }
        let i = b.iadd(first, j);
        let (_, exists) = self.item(b, i);
        let none = b.float(f32::NEG_INFINITY);
        b.select(exists, scaled, none)
    }

    fn raise_peaks(&self, b: &mut Builder, s: &Segment, first: Var, n: Var, peaks: &Line) {
        self.score(b, s, first, n);
        let (zero, heads) = (b.int(0), b.int(self.attention.heads));
        b.lanes(heads, |b, h| {
            let (scores, peak) = (self.attention.scores.line(b, h), peaks.load(b, h));
            let [peak] = b.fold_(zero, n, [peak], |b, j, [m]| {
                let x = self.scaled(b, s, &scores, first, j);
                [b.f(FOp::Max, m, x)]
            });
            peaks.store(b, h, peak);
        });
    }

    fn accumulate(&self, b: &mut Builder, s: &Segment, first: Var, n: Var, peaks: &Line, totals: &Line) {
        self.score(b, s, first, n);
        let a = self.attention;
        let (zero, heads) = (b.int(0), b.int(a.heads));
        b.lanes(heads, |b, h| {
            let (scores, peak, total) = (a.scores.line(b, h), peaks.load(b, h), totals.load(b, h));
            let [total] = b.fold_(zero, n, [total], |b, j, [total]| {
                let x = self.scaled(b, s, &scores, first, j);
                let x = b.fsub(x, peak);
                let p = b.u(FUn::Exp, x);
                let kept = if a.op.round_probs { bf16_round(b, p) } else { p };
                scores.store(b, j, kept);
                [b.fadd(total, p)]
            });
            totals.store(b, h, total);
        });
        self.weigh(b, n);
    }

    /// Adds the rows of a tile, weighted by their probabilities, to the sums; a strip of channels a lane.
    fn weigh(&self, b: &mut Builder, n: Var) {
        let a = self.attention;
        let width = a.flow.strip(a.d);
        let (zero, heads, strips) = (b.int(0), b.int(a.heads), b.int(a.d / width));
        let ahead = |b: &mut Builder, h: Var| (a.scores.line(b, h), a.sums.line(b, h));
        a.flow.grid(b, heads, strips, ahead, |b, (probabilities, sums), strip| {
            let first = b.imul_c(strip, width as i64);
            let channels: Vec<Var> = (0..width).map(|i| b.iadd_c(first, i as i64)).collect();
            let old: Vec<Var> = channels.iter().map(|c| sums.load(b, *c)).collect();
            let new = b.fold_all(zero, n, &old, |b, j, held| {
                let (row, p) = (a.panel.line(b, j), probabilities.load(b, j));
                let mut next = Vec::new();
                for (sum, c) in held.iter().zip(&channels) {
                    let v = row.load(b, *c);
                    let product = b.fmul(p, v);
                    next.push(b.fadd(*sum, product));
                }
                next
            });
            for (sum, c) in new.iter().zip(&channels) {
                sums.store(b, *c, *sum);
            }
        });
    }

    /// Divides by the sums of probabilities and the sinks.
    fn finish(&self, b: &mut Builder, out: &Row, peaks: &Line, totals: &Line) {
        let a = self.attention;
        let (zero, heads, d) = (b.int(0), b.int(a.heads), b.int(a.d));
        if let Some(sink) = &a.sink {
            let sink = sink.line(b, zero);
            b.lanes(heads, |b, h| {
                let head = a.first_head.map_or(h, |first| b.iadd(first, h));
                let (s, peak, total) = (sink.load(b, head), peaks.load(b, h), totals.load(b, h));
                let x = b.fsub(s, peak);
                let e = b.u(FUn::Exp, x);
                let total = b.fadd(total, e);
                totals.store(b, h, total);
            });
        }
        let ahead = |b: &mut Builder, h: Var| (a.sums.line(b, h), out.line(b, h), totals.load(b, h));
        a.flow.grid(b, heads, d, ahead, |b, (sums, out, total), c| {
            let sum = sums.load(b, c);
            let y = b.fdiv(sum, *total);
            out.store(b, c, y);
        });
    }
}
