//! Routers: which experts a row goes to, and with what weights.

use super::LowerError;
use super::cx::Cx;
use super::math::sqrt_softplus;
use super::state::step;
use super::view::{Line, Row};
use crate::loops::{Builder, Cmp, IOp, Var};
use dsc_ir::graph::Node;
use dsc_ir::op::{RouterHash, RouterTopK, step as column};

/// The experts with the largest biased scores, by repeated arg-max.
pub fn top_k(cx: &mut Cx<'_>, n: &Node, o: &RouterTopK) -> Result<(), LowerError> {
    let (z, bias, steps) = (cx.input(n, 0)?, cx.input(n, 1)?, cx.input(n, 2)?);
    let image_bias = if o.image_bias { Some(cx.input(n, 3)?) } else { None };
    let (ids, weights) = (cx.output(n, 0)?, cx.output(n, 1)?);
    let experts = z.channels;
    let (scores, keys) = (cx.panel("scores", 1, experts), cx.panel("keys", 1, experts));
    cx.rows(|b, at| {
        let (z, steps) = (z.row(b, at), steps.row(b, at));
        let (zero, count) = (b.int(0), b.int(experts));
        let (scores, keys, bias) = (scores.line(b, zero), keys.line(b, zero), bias.line(b, zero));
        let image = step(b, &steps, column::IMAGE);
        let is_image = b.cmp(Cmp::Ne, image, zero);
        b.lanes(count, |b, e| {
            let x = z.load(b, e);
            let s = sqrt_softplus(b, x);
            scores.store(b, e, s);
            let mut bias = bias.load(b, e);
            if let Some(image_bias) = &image_bias {
                let zero = b.int(0);
                let other = image_bias.line(b, zero);
                let other = other.load(b, e);
                bias = b.select(is_image, other, bias);
            }
            let key = b.fadd(s, bias);
            keys.store(b, e, key);
        });
        let (ids, weights) = (ids.row(b, at), weights.row(b, at));
        choose(b, &keys, &ids, count, o.k);
        weigh(b, &scores, &ids, &weights, o.k, o.norm, o.scale);
    });
    Ok(())
}

/// The ids of the `k` largest keys, best first; a key that was taken becomes -inf.
fn choose(b: &mut Builder, keys: &Line, ids: &Row, experts: Var, k: u64) {
    let (zero, k) = (b.int(0), b.int(k));
    b.for_(zero, k, |b, j| {
        let (_, best) = b.argmax(experts, |b, e| keys.load(b, e));
        // Keys that are all NaN give no arg-max; expert 0 then shows the NaN.
        let zero = b.int(0);
        let best = b.i(IOp::Max, best, zero);
        ids.store(b, j, best);
        let taken = b.float(f32::NEG_INFINITY);
        keys.store(b, best, taken);
    });
}

/// Scores of the chosen, normalised and scaled.
fn weigh(b: &mut Builder, scores: &Line, ids: &Row, weights: &Row, k: u64, norm: bool, scale: f32) {
    let score = |b: &mut Builder, j: Var| {
        let id = ids.load(b, j);
        scores.load(b, id)
    };
    let (zero, count, none) = (b.int(0), b.int(k), b.float(0.0));
    let total = (norm && k > 1).then(|| {
        let [total] = b.fold_(zero, count, [none], |b, j, [acc]| {
            let s = score(b, j);
            [b.fadd(acc, s)]
        });
        let tiny = b.float(1e-20);
        b.fadd(total, tiny)
    });
    b.lanes(count, |b, j| {
        let mut w = score(b, j);
        if let Some(total) = total {
            w = b.fdiv(w, total);
        }
        let scale = b.float(scale);
        let w = b.fmul(w, scale);
        weights.store(b, j, w);
    });
}

/// Numbers of the experts that this rank holds.
pub fn local(cx: &mut Cx<'_>, n: &Node) -> Result<(), LowerError> {
    let (ids, map, out) = (cx.input(n, 0)?, cx.input(n, 1)?, cx.output(n, 0)?);
    let (k, experts) = (ids.row_channels(), map.row_channels());
    cx.rows(|b, at| {
        let (ids, out) = (ids.row(b, at), out.row(b, at));
        let zero = b.int(0);
        let map = map.line(b, zero);
        let count = b.int(k);
        b.lanes(count, |b, j| {
            let id = ids.load(b, j);
            let (zero, end, none) = (b.int(0), b.int(experts), b.int(-1));
            let (from, to) = (b.cmp(Cmp::Ge, id, zero), b.cmp(Cmp::Lt, id, end));
            let inside = b.and(from, to);
            // The table is read at 0 for an id that it does not have.
            let at = b.select(inside, id, zero);
            let local = map.load(b, at);
            let local = b.select(inside, local, none);
            out.store(b, j, local);
        });
    });
    Ok(())
}

/// Experts by token id.
pub fn hash(cx: &mut Cx<'_>, n: &Node, o: &RouterHash) -> Result<(), LowerError> {
    let (z, table, steps) = (cx.input(n, 0)?, cx.input(n, 1)?, cx.input(n, 2)?);
    let (ids, weights) = (cx.output(n, 0)?, cx.output(n, 1)?);
    let experts = z.channels;
    let scores = cx.panel("scores", 1, experts);
    cx.rows(|b, at| {
        let (z, steps) = (z.row(b, at), steps.row(b, at));
        let (zero, count, k) = (b.int(0), b.int(experts), b.int(o.k));
        let scores = scores.line(b, zero);
        b.lanes(count, |b, e| {
            let x = z.load(b, e);
            let s = sqrt_softplus(b, x);
            scores.store(b, e, s);
        });
        let id = step(b, &steps, column::ID);
        let line = table.line(b, id);
        let (ids, weights) = (ids.row(b, at), weights.row(b, at));
        b.lanes(k, |b, j| {
            let id = line.load(b, j);
            // The table comes from a checkpoint: an id must not leave the experts.
            let (zero, last) = (b.int(0), b.int(experts.saturating_sub(1)));
            let id = b.i(IOp::Max, id, zero);
            let id = b.i(IOp::Min, id, last);
            ids.store(b, j, id);
        });
        weigh(b, &scores, &ids, &weights, o.k, o.norm, o.scale);
    });
    Ok(())
}
