//! n-gram memory: hashes, table rows, gated injection.

use super::step::{Row, ring_row};
use super::{Array, Cx, InterpError, mean_square, row, sigmoid};
use crate::op::{EngramGather, EngramHash, EngramInject};

type Results = Result<Vec<Array>, InterpError>;

/// Compressed ids by position.
struct Compressed<'a> {
    steps: &'a [Row],
    fresh: &'a [i32],
    ring: &'a Array,
}

impl Compressed<'_> {
    /// The compressed id `back` positions before `row`; none outside the sequence and at image rows.
    fn look_back(&self, row: &Row, back: usize) -> Result<Option<u64>, InterpError> {
        let Some(p) = row.pos.checked_sub(back) else { return Ok(None) };
        let id = if p >= row.start {
            let t = row.row0 + p - row.start;
            if self.steps[t].image { -1 } else { self.fresh[t] }
        } else {
            self.ring.ints()?[ring_row(&self.ring.shape, row, p)?]
        };
        Ok(u64::try_from(id).ok())
    }
}

fn compressed_id(map: &[i32], token: usize) -> Result<i32, InterpError> {
    let id = map.get(token).ok_or_else(|| InterpError::new(format!("token {token} is outside the map")))?;
    if *id < 0 {
        return Err(InterpError::new(format!("token {token} has a negative compressed id")));
    }
    Ok(*id)
}

pub(super) fn hash(cx: &Cx<'_>, op: &EngramHash) -> Results {
    let map = cx.ints(0)?;
    let steps = super::step::rows(cx.input(1)?)?;
    let pad = compressed_id(map, usize::try_from(op.pad_token).unwrap_or(usize::MAX))? as u64;
    let id_of = |r: &Row| if r.image { Ok(-1) } else { compressed_id(map, r.id) };
    let fresh = steps.iter().map(id_of).collect::<Result<Vec<i32>, _>>()?;
    let history = Compressed { steps: &steps, fresh: &fresh, ring: cx.input(2)? };
    let mut ids = cx.buffer::<i32>(0)?;
    if ids.is_empty() {
        return Ok(vec![cx.int_output(0, ids), cx.int_output(1, fresh)]);
    }
    let per_token = cx.out_shape(0)[1] * cx.out_shape(0)[2];
    let mut context = Vec::with_capacity(op.max_ngram as usize);
    for (row, out) in steps.iter().zip(ids.chunks_exact_mut(per_token.max(1))) {
        context.clear();
        let mut alive = true;
        for back in 0..op.max_ngram as usize {
            let id = if alive { history.look_back(row, back)? } else { None };
            alive = id.is_some();
            context.push(id.unwrap_or(pad));
        }
        hash_rows(op, &context, out)?;
    }
    Ok(vec![cx.int_output(0, ids), cx.int_output(1, fresh)])
}

/// Table rows of one token, layer by layer, orders and heads inside.
fn hash_rows(op: &EngramHash, context: &[u64], out: &mut [i32]) -> Result<(), InterpError> {
    let heads = op.heads as usize;
    let orders = context.len().saturating_sub(1);
    let per_layer = (orders * heads).max(1);
    for (layer, (out, primes)) in out.chunks_exact_mut(per_layer).zip(op.primes.chunks_exact(per_layer)).enumerate() {
        let factors = &op.multipliers[layer * context.len()..(layer + 1) * context.len()];
        let mut mixed = context[0].wrapping_mul(factors[0]);
        let mut offset = 0u64;
        for (i, (out, prime)) in out.iter_mut().zip(primes).enumerate() {
            if i % heads == 0 {
                let k = i / heads + 1;
                mixed ^= context[k].wrapping_mul(factors[k]);
            }
            let entry = (mixed % prime).saturating_add(offset);
            *out = i32::try_from(entry).map_err(|_| InterpError::new(format!("row {entry} does not fit an i32")))?;
            offset = offset.saturating_add(*prime);
        }
    }
    Ok(())
}

pub(super) fn gather(cx: &Cx<'_>, op: &EngramGather) -> Results {
    let table = cx.input(0)?.rows()?;
    let (idx, layers, m) = (cx.ints(1)?, cx.dim(1, 1), cx.dim(1, 2));
    let mut out = cx.buffer::<f32>(0)?;
    for (i, out) in out.chunks_exact_mut(table.channels.max(1)).enumerate() {
        let (t, j) = (i / m, i % m);
        let id = idx[(t * layers + op.plane as usize) * m + j];
        let id = usize::try_from(id).map_err(|_| InterpError::new(format!("row {id} of a table")))?;
        table.read(id, out)?;
    }
    cx.one(out)
}

pub(super) fn inject(cx: &Cx<'_>, op: &EngramInject) -> Results {
    let (x, kv, qw, kw) = (cx.floats(0)?, cx.floats(1)?, cx.floats(2)?, cx.floats(3)?);
    let (n, d) = (cx.dim(0, 1), cx.dim(0, 2));
    let steps = cx.steps(4, 0)?;
    let mut out = cx.buffer::<f32>(0)?;
    for (i, out) in out.chunks_exact_mut(d.max(1)).enumerate() {
        let (t, j) = (i / n, i % n);
        let (x, kv) = (row(&x, i, d), row(&kv, t, (n + 1) * d));
        let (key, value) = (row(kv, j, d), row(kv, n, d));
        let dot: f64 = (0..d)
            .map(|c| [x[c], qw[j * d + c], kw[j * d + c], key[c]].into_iter().map(f64::from).product::<f64>())
            .sum();
        let rms = |x: &[f32]| (mean_square(x) + f64::from(op.eps)).sqrt();
        let dot = dot / rms(x) / rms(key) / (d as f64).sqrt();
        let gate = if steps[t].image { 0.0 } else { sigmoid(dot.abs().max(1e-6).sqrt().copysign(dot)) };
        for ((out, x), value) in out.iter_mut().zip(x).zip(value) {
            *out = (f64::from(*x) + gate * f64::from(*value)) as f32;
        }
    }
    cx.one(out)
}
