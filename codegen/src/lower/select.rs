//! Selections: the k largest of many scores, in ascending index.
//!
//! The k-th largest key is found bit by bit with counting passes; columns above it are taken, then columns equal
//! to it from the left until k are. One pass in ascending order writes them; where lanes run side by side, each
//! takes a chunk of the columns and knows from counts where its part begins.

use super::LowerError;
use super::codec::int_c;
use super::cx::Cx;
use super::state::{step, visible};
use super::view::Row;
use crate::loops::{Builder, Cmp, Combine, IOp, Mem, Place, Var};
use dsc_ir::graph::Node;
use dsc_ir::op::{CandidateBlocks, TopK, step as column};

/// Chunks of columns where lanes run side by side.
const CHUNKS: u64 = 256;
/// Above every key of a float.
const NEWEST: i64 = 0xFFFF_FFFF;

/// The best columns as entry ids.
pub fn top_k(cx: &mut Cx<'_>, n: &Node, o: &TopK) -> Result<(), LowerError> {
    let (scores, steps, out) = (cx.input(n, 0)?, cx.input(n, 1)?, cx.output(n, 0)?);
    let blocks = if o.block > 0 { Some(cx.input(n, 2)?) } else { None };
    let columns = cx.size(n, 0, 1)?;
    let selection = Selection::new(cx, o.k);
    cx.rows(|b, at| {
        let (scores, steps, out) = (scores.row(b, at), steps.row(b, at), out.row(b, at));
        let blocks = blocks.as_ref().map(|x| x.row(b, at));
        let count = if blocks.is_some() {
            columns
        } else {
            let pos = step(b, &steps, column::POS);
            let seen = visible(b, pos, o.ratio);
            b.i(IOp::Min, seen, columns)
        };
        let key = |b: &mut Builder, g: Var| {
            let x = scores.load(b, g);
            key(b, x)
        };
        let id = |b: &mut Builder, g: Var| match &blocks {
            Some(blocks) => {
                let (block, inner) = (b.idiv_c(g, o.block as i64), b.irem_c(g, o.block as i64));
                let block = blocks.load(b, block);
                let first = b.imul_c(block, o.block as i64);
                b.iadd(first, inner)
            }
            None => g,
        };
        selection.write(b, count, key, id, &out);
    });
    Ok(())
}

/// The best blocks by their largest visible score; the newest always.
pub fn candidate_blocks(cx: &mut Cx<'_>, n: &Node, o: &CandidateBlocks) -> Result<(), LowerError> {
    let (scores, steps, out) = (cx.input(n, 0)?, cx.input(n, 1)?, cx.output(n, 0)?);
    let columns = cx.size(n, 0, 1)?;
    let selection = Selection::new(cx, o.keep);
    let block = o.block.max(1) as i64;
    cx.rows(|b, at| {
        let (scores, steps, out) = (scores.row(b, at), steps.row(b, at), out.row(b, at));
        let pos = step(b, &steps, column::POS);
        let seen = visible(b, pos, o.ratio);
        let seen = b.i(IOp::Min, seen, columns);
        let up = b.iadd_c(seen, block - 1);
        let count = b.idiv_c(up, block);
        let newest = b.iadd_c(count, -1);
        let key = |b: &mut Builder, g: Var| {
            let lo = b.imul_c(g, block);
            let hi = b.iadd_c(lo, block);
            let hi = b.i(IOp::Min, hi, seen);
            let start = b.float(f32::NEG_INFINITY);
            let [best] = b.fold_(lo, hi, [start], |b, i, [m]| {
                let x = scores.load(b, i);
                let above = b.cmp(Cmp::Gt, x, m);
                [b.select(above, x, m)]
            });
            let (_, k) = key(b, best);
            let is_newest = b.cmp(Cmp::Eq, g, newest);
            let (top, zero) = (b.int(NEWEST), b.int(0));
            (b.cmp(Cmp::Ge, g, zero), b.select(is_newest, top, k))
        };
        selection.write(b, count, key, |_, g| g, &out);
    });
    Ok(())
}

/// Whether a score is above -inf, and an integer that orders as the score does.
fn key(b: &mut Builder, x: Var) -> (Var, Var) {
    let lowest = b.float(f32::NEG_INFINITY);
    let valid = b.cmp(Cmp::Gt, x, lowest);
    // Adding +0 makes both zeros one.
    let zero = b.float(0.0);
    let x = b.fadd(x, zero);
    let bits = b.bits(x);
    let negative = int_c(b, IOp::Shr, bits, 31);
    let flip = b.imul_c(negative, 0x7FFF_FFFF);
    let flip = int_c(b, IOp::Or, flip, 0x8000_0000);
    (valid, b.i(IOp::Xor, bits, flip))
}

struct Selection {
    k: u64,
    /// Where each chunk begins to write, and how many ties it may take; none where one lane does all.
    chunks: Option<Place>,
}

/// What to take: keys above the threshold, and some that equal it.
struct Cut {
    threshold: Var,
    ties: Var,
}

impl Selection {
    fn new(cx: &mut Cx<'_>, k: u64) -> Selection {
        let chunks = (!cx.flow.dense).then(|| cx.temporary("chunks", CHUNKS * 8));
        Selection { k, chunks }
    }

    /// Writes the ids of the `k` best of `n` columns, padded with -1.
    fn write(
        &self,
        b: &mut Builder,
        n: Var,
        key: impl Fn(&mut Builder, Var) -> (Var, Var),
        id: impl Fn(&mut Builder, Var) -> Var,
        out: &Row,
    ) {
        let (zero, k) = (b.int(0), b.int(self.k));
        let total = count(b, n, &key, |_, valid, _| valid);
        let cut = self.cut(b, n, total, &key);
        let emit = |b: &mut Builder, lo: Var, hi: Var, at: Var, ties: Var| {
            b.fold_(lo, hi, [at, ties], |b, g, [at, ties]| {
                let (valid, key) = key(b, g);
                let (above, tied) = cut.takes(b, valid, key, ties);
                let taken = b.or(above, tied);
                b.if_(taken, |b| {
                    let id = id(b, g);
                    out.store(b, at, id);
                });
                let (at_step, ties_step) = (truth(b, taken), truth(b, tied));
                [b.iadd(at, at_step), b.isub(ties, ties_step)]
            })
        };
        match self.chunks {
            None => {
                emit(b, zero, n, zero, cut.ties);
            }
            Some(chunks) => in_chunks(b, n, chunks, &cut, &key, emit),
        }
        let taken = b.i(IOp::Min, total, k);
        let rest = b.isub(k, taken);
        b.lanes(rest, |b, j| {
            let (at, none) = (b.iadd(taken, j), b.int(-1));
            out.store(b, at, none);
        });
    }

    /// The key of the k-th best, 0 when there are no more than `k`.
    fn cut(&self, b: &mut Builder, n: Var, total: Var, key: &impl Fn(&mut Builder, Var) -> (Var, Var)) -> Cut {
        let (zero, k, width) = (b.int(0), b.int(self.k), b.int(32));
        let crowded = b.cmp(Cmp::Gt, total, k);
        let passes = b.select(crowded, width, zero);
        let [threshold] = b.fold_(zero, passes, [zero], |b, pass, [t]| {
            let (top, one) = (b.int(31), b.int(1));
            let shift = b.isub(top, pass);
            let bit = b.i(IOp::Shl, one, shift);
            let trial = b.i(IOp::Or, t, bit);
            let found = count(b, n, key, |b, valid, key| {
                let reaches = b.cmp(Cmp::Ge, key, trial);
                b.and(valid, reaches)
            });
            let enough = b.cmp(Cmp::Ge, found, k);
            [b.select(enough, trial, t)]
        });
        let above = count(b, n, key, |b, valid, key| {
            let above = b.cmp(Cmp::Gt, key, threshold);
            b.and(valid, above)
        });
        Cut { threshold, ties: b.isub(k, above) }
    }
}

impl Cut {
    /// Whether a column is taken for being above the threshold, or as one of the ties that are left.
    fn takes(&self, b: &mut Builder, valid: Var, key: Var, ties: Var) -> (Var, Var) {
        let (above, equal) = (b.cmp(Cmp::Gt, key, self.threshold), b.cmp(Cmp::Eq, key, self.threshold));
        let zero = b.int(0);
        let left = b.cmp(Cmp::Gt, ties, zero);
        let (above, equal) = (b.and(valid, above), b.and(valid, equal));
        (above, b.and(equal, left))
    }
}

fn truth(b: &mut Builder, t: Var) -> Var {
    let (one, zero) = (b.int(1), b.int(0));
    b.select(t, one, zero)
}

/// Number of columns of which `f` holds.
fn count(
    b: &mut Builder,
    n: Var,
    key: &impl Fn(&mut Builder, Var) -> (Var, Var),
    f: impl Fn(&mut Builder, Var, Var) -> Var,
) -> Var {
    b.reduce(n, Combine::SumI, |b, g| {
        let (valid, key) = key(b, g);
        let holds = f(b, valid, key);
        truth(b, holds)
    })
}

/// Emits chunk by chunk: count what each has, sum up, write.
fn in_chunks(
    b: &mut Builder,
    n: Var,
    chunks: Place,
    cut: &Cut,
    key: &impl Fn(&mut Builder, Var) -> (Var, Var),
    emit: impl Fn(&mut Builder, Var, Var, Var, Var) -> [Var; 2],
) {
    let (zero, one, many) = (b.int(0), b.int(1), b.int(CHUNKS));
    let up = b.iadd_c(n, CHUNKS as i64 - 1);
    let width = b.idiv_c(up, CHUNKS as i64);
    let range = |b: &mut Builder, l: Var| {
        let lo = b.imul(l, width);
        let lo = b.i(IOp::Min, lo, n);
        let hi = b.iadd(lo, width);
        (lo, b.i(IOp::Min, hi, n))
    };
    let pair = |b: &mut Builder, l: Var| {
        let first = b.imul_c(l, 8);
        (first, b.iadd_c(first, 4))
    };
    b.lanes(many, |b, l| {
        let (lo, hi) = range(b, l);
        let [above, equal] = b.fold_(lo, hi, [zero, zero], |b, g, [above, equal]| {
            let (valid, key) = key(b, g);
            let (is_above, is_equal) = cut.takes(b, valid, key, one);
            let (x, y) = (truth(b, is_above), truth(b, is_equal));
            [b.iadd(above, x), b.iadd(equal, y)]
        });
        let (first, second) = pair(b, l);
        b.store(chunks, first, Mem::I32, above);
        b.store(chunks, second, Mem::I32, equal);
    });
    b.lanes(one, |b, _| {
        b.fold_(zero, many, [zero, cut.ties], |b, l, [at, ties]| {
            let (first, second) = pair(b, l);
            let (above, equal) = (b.load(chunks, first, Mem::I32), b.load(chunks, second, Mem::I32));
            b.store(chunks, first, Mem::I32, at);
            b.store(chunks, second, Mem::I32, ties);
            let taken = b.i(IOp::Min, equal, ties);
            let at = b.iadd(at, above);
            [b.iadd(at, taken), b.isub(ties, taken)]
        });
    });
    b.lanes(many, |b, l| {
        let (lo, hi) = range(b, l);
        let (first, second) = pair(b, l);
        let (at, ties) = (b.load(chunks, first, Mem::I32), b.load(chunks, second, Mem::I32));
        emit(b, lo, hi, at, ties);
    });
}
