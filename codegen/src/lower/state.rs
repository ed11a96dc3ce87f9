//! The step table, rings and pages: writing them, reading by position, and pooling over positions.

use super::LowerError;
use super::cx::Cx;
use super::view::{Line, Row, View};
use crate::loops::{Builder, Cmp, FOp, FUn, IOp, Mem, Place, Var};
use dsc_ir::graph::Node;
use dsc_ir::op::{PageWrite, Pool, step as column};

/// A column of the step table.
pub fn step(b: &mut Builder, steps: &Row, column: u64) -> Var {
    let column = b.int(column);
    steps.load(b, column)
}

/// Copies bytes, four at a time where they fit.
pub fn copy_bytes(b: &mut Builder, from: (Place, Var), to: (Place, Var), bytes: u64) {
    let mem = if bytes.is_multiple_of(4) { Mem::I32 } else { Mem::U8 };
    let n = b.int(bytes / mem.bytes());
    b.lanes(n, |b, i| {
        let offset = b.imul_c(i, mem.bytes() as i64);
        let (source, target) = (b.iadd(from.1, offset), b.iadd(to.1, offset));
        let v = b.load(from.0, source, mem);
        b.store(to.0, target, mem, v);
    });
}

/// Whether a row completes an entry of `ratio` tokens.
fn completes(b: &mut Builder, pos: Var, ratio: u32) -> Var {
    let next = b.iadd_c(pos, 1);
    let rest = b.irem_c(next, i64::from(ratio.max(1)));
    let zero = b.int(0);
    b.cmp(Cmp::Eq, rest, zero)
}

/// Entries visible at a position.
pub fn visible(b: &mut Builder, pos: Var, ratio: u32) -> Var {
    let next = b.iadd_c(pos, 1);
    b.idiv_c(next, i64::from(ratio.max(1)))
}

/// Bytes of a row that is stored as one line of a state.
fn stored_bytes(cx: &Cx<'_>, x: &View) -> Result<u64, LowerError> {
    match x.row_bytes() {
        Some(bytes) if x.lines == 1 || x.is_plain() => Ok(bytes),
        Some(_) => cx.fail("a state cannot hold several packed lines a row"),
        None => cx.fail("a state cannot hold rows of symbolic size"),
    }
}

/// Writes the last rows of each sequence into a ring.
pub fn ring_write(cx: &mut Cx<'_>, n: &Node) -> Result<(), LowerError> {
    let (ring, x, steps) = (cx.input(n, 0)?, cx.input(n, 1)?, cx.input(n, 2)?);
    let bytes = stored_bytes(cx, &x)?;
    let slots = cx.size(n, 0, 1)?;
    cx.rows(|b, at| {
        let (x, steps) = (x.row(b, at), steps.row(b, at));
        let [pos, seq, end] = [column::POS, column::SEQ, column::END].map(|c| step(b, &steps, c));
        let first = b.isub(end, slots);
        let stays = b.cmp(Cmp::Ge, pos, first);
        b.if_(stays, |b| {
            let to = slot(b, &ring, seq, slots, pos);
            copy_bytes(b, x.address(), (to.place, to.data), bytes);
        });
    });
    Ok(())
}

/// The line of a position in a ring.
pub fn slot(b: &mut Builder, ring: &View, seq: Var, slots: Var, position: Var) -> Line {
    let slot = b.i(IOp::Rem, position, slots);
    entry(b, ring, seq, slots, slot)
}

/// The line of an entry in pages of `entries` a sequence.
pub fn entry(b: &mut Builder, pages: &View, seq: Var, entries: Var, entry: Var) -> Line {
    let first = b.imul(seq, entries);
    let line = b.iadd(first, entry);
    pages.line(b, line)
}

/// Writes the rows that complete an entry.
pub fn page_write(cx: &mut Cx<'_>, n: &Node, o: &PageWrite) -> Result<(), LowerError> {
    let (pages, x, steps) = (cx.input(n, 0)?, cx.input(n, 1)?, cx.input(n, 2)?);
    let bytes = stored_bytes(cx, &x)?;
    let entries = cx.size(n, 0, 1)?;
    cx.rows(|b, at| {
        let (x, steps) = (x.row(b, at), steps.row(b, at));
        let [pos, seq] = [column::POS, column::SEQ].map(|c| step(b, &steps, c));
        let complete = completes(b, pos, o.ratio);
        b.if_(complete, |b| {
            let index = b.idiv_c(pos, i64::from(o.ratio.max(1)));
            let to = entry(b, &pages, seq, entries, index);
            copy_bytes(b, x.address(), (to.place, to.data), bytes);
        });
    });
    Ok(())
}

/// Where the rows of a sequence are: in this step from `start` on, in a ring before it.
pub struct History {
    /// The step's own rows.
    pub rows: View,
    /// Earlier rows.
    pub ring: View,
    /// Slots of the ring.
    pub slots: Var,
}

/// What a row's step says about its sequence.
#[derive(Clone, Copy)]
pub struct Token {
    /// Position of the row.
    pub pos: Var,
    /// Sequence.
    pub seq: Var,
    /// First position in this step.
    pub start: Var,
    /// Row of that position.
    pub row0: Var,
}

impl Token {
    /// Reads the step table.
    pub fn new(b: &mut Builder, steps: &Row) -> Token {
        let [pos, seq, start, row0] =
            [column::POS, column::SEQ, column::START, column::ROW0].map(|c| step(b, steps, c));
        Token { pos, seq, start, row0 }
    }
}

impl History {
    /// The line of a position that this step computes.
    pub fn own(&self, b: &mut Builder, p: &Token, position: Var) -> Line {
        let ahead = b.isub(position, p.start);
        let row = b.iadd(p.row0, ahead);
        self.rows.line(b, row)
    }

    /// The line of an earlier position.
    pub fn earlier(&self, b: &mut Builder, p: &Token, position: Var) -> Line {
        slot(b, &self.ring, p.seq, self.slots, position)
    }
}

/// Gated pooling of a group of tokens.
pub fn pool(cx: &mut Cx<'_>, n: &Node, o: &Pool) -> Result<(), LowerError> {
    let (steps, out) = (cx.input(n, 4)?, cx.output(n, 0)?);
    let ape = if o.bias { Some(cx.input(n, 5)?) } else { None };
    let values = History { rows: cx.input(n, 0)?, ring: cx.input(n, 2)?, slots: cx.size(n, 2, 1)? };
    let gates = History { rows: cx.input(n, 1)?, ring: cx.input(n, 3)?, slots: cx.size(n, 3, 1)? };
    if values.rows.local || gates.rows.local {
        return cx.fail("`pool` reads other rows, so its operands must be parameters");
    }
    let pooling = Pooling { values, gates, ape, ratio: i64::from(o.ratio.max(1)), d: out.channels };
    cx.rows(|b, at| {
        let (steps, out) = (steps.row(b, at), out.row(b, at));
        let p = Token::new(b, &steps);
        let complete = completes(b, p.pos, o.ratio);
        let d = b.int(pooling.d);
        b.if_(complete, |b| {
            let windows = pooling.windows(b, &p, o.overlap);
            b.lanes(d, |b, channel| {
                let y = pooling.channel(b, &p, &windows, channel);
                out.store(b, channel, y);
            });
        });
        let open = b.not(complete);
        b.if_(open, |b| {
            b.lanes(d, |b, channel| {
                let zero = b.float(0.0);
                out.store(b, channel, zero);
            });
        });
    });
    Ok(())
}

struct Pooling {
    values: History,
    gates: History,
    ape: Option<View>,
    ratio: i64,
    d: u64,
}

/// A run of positions that one half of the channels pools.
struct Window {
    lo: Var,
    hi: Var,
    first_channel: u64,
}

impl Pooling {
    /// The windows of the entry that a row completes, in ascending position.
    fn windows(&self, b: &mut Builder, p: &Token, overlap: bool) -> Vec<Window> {
        let hi = b.iadd_c(p.pos, 1);
        let lo = b.iadd_c(hi, -self.ratio);
        if !overlap {
            return vec![Window { lo, hi, first_channel: 0 }];
        }
        let zero = b.int(0);
        let before = b.iadd_c(lo, -self.ratio);
        let before = b.i(IOp::Max, before, zero);
        vec![Window { lo: before, hi: lo, first_channel: 0 }, Window { lo, hi, first_channel: self.d }]
    }

    /// One pooled channel: the largest gate, then the sums.
    fn channel(&self, b: &mut Builder, p: &Token, windows: &[Window], channel: Var) -> Var {
        let mut largest = b.float(f32::NEG_INFINITY);
        for w in windows {
            let c = b.iadd_c(channel, w.first_channel as i64);
            [largest] = self.walk(b, p, w, [largest], |b, own, position, [m]| {
                let s = self.gate(b, p, own, position, c);
                [b.f(FOp::Max, m, s)]
            });
        }
        let zero = b.float(0.0);
        let mut sums = [zero, zero];
        for w in windows {
            let c = b.iadd_c(channel, w.first_channel as i64);
            sums = self.walk(b, p, w, sums, |b, own, position, [total, weighted]| {
                let s = self.gate(b, p, own, position, c);
                let d = b.fsub(s, largest);
                let e = b.u(FUn::Exp, d);
                let line = read(b, &self.values, p, own, position);
                let v = line.load(b, c);
                let product = b.fmul(e, v);
                [b.fadd(total, e), b.fadd(weighted, product)]
            });
        }
        b.fdiv(sums[1], sums[0])
    }

    /// Folds over a window, first what the ring holds and then this step's rows.
    fn walk<const N: usize>(
        &self,
        b: &mut Builder,
        p: &Token,
        w: &Window,
        init: [Var; N],
        f: impl Fn(&mut Builder, bool, Var, [Var; N]) -> [Var; N],
    ) -> [Var; N] {
        let border = b.i(IOp::Max, w.lo, p.start);
        let border = b.i(IOp::Min, border, w.hi);
        let earlier = b.fold_(w.lo, border, init, |b, position, acc| f(b, false, position, acc));
        b.fold_(border, w.hi, earlier, |b, position, acc| f(b, true, position, acc))
    }

    fn gate(&self, b: &mut Builder, p: &Token, own: bool, position: Var, c: Var) -> Var {
        let line = read(b, &self.gates, p, own, position);
        let s = line.load(b, c);
        match &self.ape {
            Some(ape) => {
                let slot = b.irem_c(position, self.ratio);
                let line = ape.line(b, slot);
                let bias = line.load(b, c);
                b.fadd(s, bias)
            }
            None => s,
        }
    }
}

fn read(b: &mut Builder, history: &History, p: &Token, own: bool, position: Var) -> Line {
    if own { history.own(b, p, position) } else { history.earlier(b, p, position) }
}
