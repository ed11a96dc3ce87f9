//! Attention over the window and selected compressed entries.

use super::step::{History, Row, state_row};
use super::{Array, Cx, InterpError, dot, row};
use crate::format::bf16_round;
use crate::op::{Select, SparseAttention};

pub(super) fn sparse_attention(cx: &Cx<'_>, op: &SparseAttention) -> Result<Vec<Array>, InterpError> {
    let q = cx.floats(0)?;
    let (heads, d) = (cx.dim(0, 1), cx.dim(0, 2));
    let steps = cx.steps(3, 0)?;
    let window = History::new(cx.input(1)?, cx.input(2)?)?;
    let sink = if op.sink { Some(cx.floats(4)?) } else { None };
    let mut out = cx.buffer::<f32>(0)?;
    let mut keys = Vec::new();
    for (t, (step, out)) in steps.iter().zip(out.chunks_exact_mut((heads * d).max(1))).enumerate() {
        keys.clear();
        let oldest = (step.pos + 1).saturating_sub(usize::try_from(op.window).unwrap_or(usize::MAX)).max(step.floor);
        for p in oldest..=step.pos {
            window.read(step, p, grow(&mut keys, d))?;
        }
        read_entries(cx, op, t, step, d, &mut keys)?;
        let q = row(&q, t, heads * d);
        for (h, out) in out.chunks_exact_mut(d.max(1)).enumerate() {
            head(op, row(q, h, d), &keys, sink.as_ref().map(|s| s[h]), out);
        }
    }
    cx.one(out)
}

/// Room for one more key.
fn grow(keys: &mut Vec<f32>, d: usize) -> &mut [f32] {
    let from = keys.len();
    keys.resize(from + d, 0.0);
    &mut keys[from..]
}

/// Appends the compressed entries that row `t` attends to.
fn read_entries(
    cx: &Cx<'_>,
    op: &SparseAttention,
    t: usize,
    step: &Row,
    d: usize,
    keys: &mut Vec<f32>,
) -> Result<(), InterpError> {
    let pages = 4 + usize::from(op.sink);
    let mut read = |g: usize| {
        let array = cx.input(pages)?;
        array.rows()?.read(state_row(&array.shape, step.seq, g)?, grow(keys, d))
    };
    match op.select {
        Select::None => Ok(()),
        Select::All => (0..step.visible(op.ratio)).try_for_each(read),
        Select::Listed => {
            let k = cx.dim(pages + 1, 1);
            let ids = &cx.ints(pages + 1)?[t * k..(t + 1) * k];
            ids.iter().filter_map(|g| usize::try_from(*g).ok()).try_for_each(&mut read)
        }
    }
}

fn head(op: &SparseAttention, q: &[f32], keys: &[f32], sink: Option<f32>, out: &mut [f32]) {
    let keys = || keys.chunks_exact(q.len().max(1));
    let scores: Vec<f64> = keys().map(|k| f64::from(op.scale) * dot(q, k)).collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if scores.is_empty() {
        return;
    }
    let mut sum = sink.map_or(0.0, |s| (f64::from(s) - largest).exp());
    let mut o = vec![0.0f64; out.len()];
    for (score, key) in scores.iter().zip(keys()) {
        let p = (score - largest).exp();
        sum += p;
        let p = if op.round_probs { f64::from(bf16_round(p as f32)) } else { p };
        o.iter_mut().zip(key).for_each(|(o, k)| *o += p * f64::from(*k));
    }
    out.iter_mut().zip(o).for_each(|(out, o)| *out = (o / sum) as f32);
}
