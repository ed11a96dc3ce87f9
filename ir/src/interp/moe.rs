//! Mixture of experts: routing, activation and the sum of expert outputs.

use super::{Array, Cx, InterpError, row, sigmoid};
use crate::op::{ExpertSum, RouterHash, RouterTopK, SwiGlu};
use std::cmp::Ordering;

type Results = Result<Vec<Array>, InterpError>;

/// `sqrt(softplus(z))`, rounded to f32 since selection compares it there.
fn score(z: f32) -> f32 {
    let z = f64::from(z);
    (if z > 20.0 { z } else { z.exp().ln_1p() }).sqrt() as f32
}

fn weights(scores: &[f32], chosen: &[usize], norm: bool, scale: f32, out: &mut [f32]) {
    let sum: f64 = chosen.iter().map(|e| f64::from(scores[*e])).sum();
    let divisor = if norm && chosen.len() > 1 { sum + 1e-20 } else { 1.0 };
    for (out, e) in out.iter_mut().zip(chosen) {
        *out = (f64::from(scores[*e]) / divisor * f64::from(scale)) as f32;
    }
}

pub(super) fn router_top_k(cx: &Cx<'_>, op: &RouterTopK) -> Results {
    let (z, bias) = (cx.floats(0)?, cx.floats(1)?);
    let image_bias = if op.image_bias { Some(cx.floats(3)?) } else { None };
    let (n, k) = (cx.channels(0), op.k as usize);
    if k > n {
        return Err(InterpError::new(format!("{k} of {n} experts")));
    }
    let (mut ids, mut w) = (cx.buffer::<i32>(0)?, cx.buffer::<f32>(1)?);
    for (t, step) in cx.steps(2, 0)?.iter().enumerate() {
        let scores: Vec<f32> = row(&z, t, n).iter().map(|z| score(*z)).collect();
        let bias = image_bias.as_ref().filter(|_| step.image).unwrap_or(&bias);
        let key = |e: usize| scores[e] + bias[e];
        let mut chosen: Vec<usize> = (0..n).collect();
        chosen.sort_by(|a, b| key(*b).partial_cmp(&key(*a)).unwrap_or(Ordering::Equal));
        chosen.truncate(k);
        ids[t * k..(t + 1) * k].iter_mut().zip(&chosen).for_each(|(id, e)| *id = *e as i32);
        weights(&scores, &chosen, op.norm, op.scale, &mut w[t * k..(t + 1) * k]);
    }
    Ok(vec![cx.int_output(0, ids), cx.output(1, w)?])
}

pub(super) fn router_hash(cx: &Cx<'_>, op: &RouterHash) -> Results {
    let (z, table) = (cx.floats(0)?, cx.ints(1)?);
    let (n, k) = (cx.channels(0), op.k as usize);
    let (mut ids, mut w) = (cx.buffer::<i32>(0)?, cx.buffer::<f32>(1)?);
    for (t, step) in cx.steps(2, 0)?.iter().enumerate() {
        let missing = || InterpError::new(format!("token {} is outside the table", step.id));
        let experts = table.chunks_exact(k.max(1)).nth(step.id).ok_or_else(missing)?;
        let valid = |e: &i32| usize::try_from(*e).ok().filter(|e| *e < n);
        let chosen: Option<Vec<usize>> = experts.iter().map(valid).collect();
        let chosen = chosen.ok_or_else(|| InterpError::new(format!("an expert of token {} is no expert", step.id)))?;
        let scores: Vec<f32> = row(&z, t, n).iter().map(|z| score(*z)).collect();
        ids[t * k..(t + 1) * k].copy_from_slice(experts);
        weights(&scores, &chosen, op.norm, op.scale, &mut w[t * k..(t + 1) * k]);
    }
    Ok(vec![cx.int_output(0, ids), cx.output(1, w)?])
}

pub(super) fn local_experts(cx: &Cx<'_>) -> Results {
    let (ids, map) = (cx.ints(0)?, cx.ints(1)?);
    let local = |id: &i32| usize::try_from(*id).ok().and_then(|e| map.get(e)).copied().unwrap_or(-1);
    Ok(vec![cx.int_output(0, ids.iter().map(local).collect())])
}

pub(super) fn swiglu(cx: &Cx<'_>, op: &SwiGlu) -> Results {
    let (g, u, c) = (cx.floats(0)?, cx.floats(1)?, cx.channels(0).max(1));
    let w = if op.weighted { Some(cx.floats(2)?) } else { None };
    let limit = f64::from(op.limit);
    let mut out = cx.buffer::<f32>(0)?;
    for (i, out) in out.iter_mut().enumerate() {
        let (mut g, mut u) = (f64::from(g[i]), f64::from(u[i]));
        if limit != 0.0 {
            g = g.min(limit);
            u = u.max(-limit).min(limit);
        }
        let w = w.as_ref().map_or(1.0, |w| f64::from(w[i / c]));
        *out = (g * sigmoid(g) * u * w) as f32;
    }
    cx.one(out)
}

pub(super) fn expert_sum(cx: &Cx<'_>, op: &ExpertSum) -> Results {
    let (y, ids) = (cx.floats(0)?, cx.ints(1)?);
    let shared = if op.shared { Some(cx.floats(2)?) } else { None };
    let (k, d) = (cx.dim(0, 1), cx.dim(0, 2));
    let mut out = cx.buffer::<f32>(0)?;
    let mut order: Vec<usize> = Vec::new();
    for (t, out) in out.chunks_exact_mut(d.max(1)).enumerate() {
        let ids = &ids[t * k..(t + 1) * k];
        order.clear();
        order.extend(0..k);
        order.sort_by_key(|j| ids[*j]);
        for (c, out) in out.iter_mut().enumerate() {
            let routed: f64 = order.iter().map(|j| f64::from(y[(t * k + j) * d + c])).sum();
            let shared = shared.as_ref().map_or(0.0, |s| f64::from(s[t * d + c]));
            *out = (routed + shared) as f32;
        }
    }
    cx.one(out)
}
