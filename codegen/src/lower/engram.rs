//! The n-gram memory: hashes, gathered rows, gated injection.

use super::LowerError;
use super::cx::Cx;
use super::math::{inverse_rms, sigmoid};
use super::state::{Token, slot, step};
use super::view::{At, Row, View};
use crate::loops::{Builder, Cmp, Combine, FOp, FUn, IOp, Var};
use dsc_ir::graph::Node;
use dsc_ir::op::{EngramGather, EngramHash, EngramInject, step as column};

/// n-gram hashes of a row; one lane does a row.
pub fn hash(cx: &mut Cx<'_>, n: &Node, o: &EngramHash) -> Result<(), LowerError> {
    let (map, steps, ring) = (cx.input(n, 0)?, cx.input(n, 1)?, cx.input(n, 2)?);
    let (rows, ids) = (cx.output(n, 0)?, cx.output(n, 1)?);
    let slots = cx.size(n, 2, 1)?;
    let hasher = Hasher { map, steps, ring, slots, op: o };
    cx.rows(|b, at| {
        let (rows, ids) = (rows.row(b, at), ids.row(b, at));
        let one = b.int(1);
        b.lanes(one, |b, _| {
            let (window, own) = hasher.window(b, at);
            let zero = b.int(0);
            ids.store(b, zero, own);
            hasher.rows(b, &window, &rows);
        });
    });
    Ok(())
}

struct Hasher<'a> {
    map: View,
    steps: View,
    ring: View,
    slots: Var,
    op: &'a EngramHash,
}

impl Hasher<'_> {
    /// The compressed ids from the row's own back, and what the ring shall hold for the row.
    fn window(&self, b: &mut Builder, at: At) -> (Vec<Var>, Var) {
        let steps = self.steps.row(b, at);
        let token = Token::new(b, &steps);
        let (zero, minus) = (b.int(0), b.int(-1));
        let map = self.map.line(b, zero);
        let pad = b.int(self.op.pad_token);
        let pad = map.load(b, pad);
        let (mut window, mut own, mut dead) = (Vec::new(), minus, None);
        for k in 0..self.op.max_ngram {
            let position = b.iadd_c(token.pos, -(k as i64));
            let here = self.compressed(b, &token, at, k, position);
            if k == 0 {
                own = here;
            }
            let stops = b.cmp(Cmp::Lt, here, zero);
            let now = match dead {
                Some(d) => b.or(d, stops),
                None => stops,
            };
            dead = Some(now);
            window.push(b.select(now, pad, here));
        }
        (window, own)
    }

    /// The compressed id `k` positions back; -1 for an image row or before the sequence.
    fn compressed(&self, b: &mut Builder, token: &Token, at: At, k: u64, position: Var) -> Var {
        let (zero, minus) = (b.int(0), b.int(-1));
        let here = b.cmp(Cmp::Ge, position, token.start);
        let back = b.iadd_c(at.row, -(k as i64));
        let row = b.select(here, back, at.row);
        let steps = self.steps.row(b, At { in_block: row, row });
        let (id, image) = (step(b, &steps, column::ID), step(b, &steps, column::IMAGE));
        let map = self.map.line(b, zero);
        let is_image = b.cmp(Cmp::Ne, image, zero);
        let id = b.select(is_image, zero, id);
        let own = map.load(b, id);
        let own = b.select(is_image, minus, own);
        if k == 0 {
            return own;
        }
        let exists = b.cmp(Cmp::Ge, position, zero);
        let position = b.i(IOp::Max, position, zero);
        let line = slot(b, &self.ring, token.seq, self.slots, position);
        let earlier = line.load(b, zero);
        let earlier = b.select(exists, earlier, minus);
        b.select(here, own, earlier)
    }

    /// Table rows of every layer, order and head.
    fn rows(&self, b: &mut Builder, window: &[Var], out: &Row) {
        let o = self.op;
        let orders = o.max_ngram.saturating_sub(1);
        let (mut at, mut primes) = (0u64, o.primes.iter());
        for layer in 0..o.layers {
            let factors = o.multipliers.iter().skip((layer * o.max_ngram) as usize);
            let mut offset = 0u64;
            let mut mixed = None;
            for (k, (c, factor)) in window.iter().zip(factors).enumerate() {
                let factor = b.int(*factor);
                let product = b.imul(*c, factor);
                let a = match mixed {
                    Some(a) => b.i(IOp::Xor, a, product),
                    None => product,
                };
                mixed = Some(a);
                if k == 0 || k as u64 > orders {
                    continue;
                }
                for prime in primes.by_ref().take(o.heads as usize) {
                    let divisor = b.int(*prime);
                    let bucket = b.i(IOp::Rem, a, divisor);
                    let (row, to) = (b.iadd_c(bucket, offset as i64), b.int(at));
                    out.store(b, to, row);
                    offset += prime;
                    at += 1;
                }
            }
        }
    }
}

/// Rows of a table side by side.
pub fn gather(cx: &mut Cx<'_>, n: &Node, o: &EngramGather) -> Result<(), LowerError> {
    let (table, ids, out) = (cx.input(n, 0)?, cx.input(n, 1)?, cx.output(n, 0)?);
    let (rows, c, flow) = (ids.channels, table.channels, cx.flow);
    cx.rows(|b, at| {
        let (ids, out) = (ids.row(b, at), out.row(b, at));
        let (plane, rows, width) = (b.int(o.plane), b.int(rows), b.int(c));
        let ids = ids.line(b, plane);
        let ahead = |b: &mut Builder, i: Var| {
            let row = ids.load(b, i);
            (table.line(b, row), b.imul(i, width))
        };
        flow.grid(b, rows, width, ahead, |b, (line, first), j| {
            let v = line.load(b, j);
            let to = b.iadd(*first, j);
            out.store(b, to, v);
        });
    });
    Ok(())
}

/// Gated injection into the streams.
pub fn inject(cx: &mut Cx<'_>, n: &Node, o: &EngramInject) -> Result<(), LowerError> {
    let (x, kv, steps, out) = (cx.input(n, 0)?, cx.input(n, 1)?, cx.input(n, 4)?, cx.output(n, 0)?);
    let (qw, kw) = (cx.input(n, 2)?, cx.input(n, 3)?);
    let (streams, d) = (x.lines, x.channels);
    cx.rows(|b, at| {
        let (x, kv, out, steps) = (x.row(b, at), kv.row(b, at), out.row(b, at), steps.row(b, at));
        let image = step(b, &steps, column::IMAGE);
        let (zero, streams, width) = (b.int(0), b.int(streams), b.int(d));
        let is_image = b.cmp(Cmp::Ne, image, zero);
        let value = b.imul(streams, width);
        b.for_(zero, streams, |b, j| {
            let (x, out, qw, kw) = (x.line(b, j), out.line(b, j), qw.line(b, j), kw.line(b, j));
            let key = b.imul(j, width);
            let sums = b.reduce_n(width, |b, c| {
                let at = b.iadd(key, c);
                let (v, k) = (x.load(b, c), kv.load(b, at));
                let (q, w) = (qw.load(b, c), kw.load(b, c));
                let vq = b.fmul(v, q);
                let vqw = b.fmul(vq, w);
                let terms = [b.fmul(vqw, k), b.fmul(v, v), b.fmul(k, k)];
                terms.map(|t| (Combine::Sum, t)).to_vec()
            });
            let dot = scaled_dot(b, &sums, d, o.eps);
            let gate = gate(b, dot);
            let none = b.float(0.0);
            let gate = b.select(is_image, none, gate);
            b.lanes(width, |b, c| {
                let at = b.iadd(value, c);
                let (v, m) = (x.load(b, c), kv.load(b, at));
                let added = b.fmul(gate, m);
                let y = b.fadd(v, added);
                out.store(b, c, y);
            });
        });
    });
    Ok(())
}

fn scaled_dot(b: &mut Builder, sums: &[Var], d: u64, eps: f32) -> Var {
    let (x, key) = (inverse_rms(b, sums[1], d, eps), inverse_rms(b, sums[2], d, eps));
    let scale = b.float((d as f64).powf(-0.5) as f32);
    let dot = b.fmul(sums[0], x);
    let dot = b.fmul(dot, key);
    b.fmul(dot, scale)
}

/// `sigmoid(copysign(sqrt(max(|x|, 1e-6)), x))`.
fn gate(b: &mut Builder, x: Var) -> Var {
    let (a, floor) = (b.u(FUn::Abs, x), b.float(1e-6));
    let a = b.f(FOp::Max, a, floor);
    let root = b.u(FUn::Sqrt, a);
    let (magnitude, sign) = (b.bits(root), b.bits(x));
    let mask = b.int(0x8000_0000u32);
    let sign = b.i(IOp::And, sign, mask);
    let bits = b.i(IOp::Or, magnitude, sign);
    let signed = b.from_bits(bits);
    sigmoid(b, signed)
}
