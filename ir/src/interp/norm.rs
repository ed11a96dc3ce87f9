//! Ops on one row at a time: normalisation, rotation, Hadamard transform, packing.

use super::{Array, Cx, InterpError, mean_square};
use crate::op::{RmsNorm, Rope, RopeAt};
use crate::rope;

type Results = Result<Vec<Array>, InterpError>;

pub(super) fn rms_norm(cx: &Cx<'_>, op: &RmsNorm) -> Results {
    let (x, c) = (cx.floats(0)?, cx.channels(0).max(1));
    let w = if cx.inputs.len() > 1 { Some(cx.floats(1)?) } else { None };
    let mut out = cx.buffer::<f32>(0)?;
    for (x, out) in x.chunks_exact(c).zip(out.chunks_exact_mut(c)) {
        let rms = (mean_square(x) + f64::from(op.eps)).sqrt();
        for (i, (x, y)) in x.iter().zip(out).enumerate() {
            let w = w.as_ref().map_or(1.0, |w| f64::from(w[i]));
            *y = (f64::from(*x) / rms * w) as f32;
        }
    }
    cx.one(out)
}

pub(super) fn rope(cx: &Cx<'_>, op: &Rope) -> Results {
    let x = cx.floats(0)?;
    let steps = cx.steps(1, 0)?;
    let (c, rotary) = (cx.channels(0).max(1), op.rotary as usize);
    let per_token = x.len().checked_div(steps.len()).unwrap_or(0).max(1);
    let frequencies = rope::inv_freq(op);
    let mut turns = vec![(0.0f64, 0.0f64); frequencies.len()];
    let mut out = x.into_owned();
    for (row, out) in steps.iter().zip(out.chunks_exact_mut(per_token)) {
        let ratio = op.ratio.max(1) as usize;
        let position = match op.at {
            RopeAt::Token => row.pos,
            RopeAt::Entry => row.pos / ratio * ratio,
        };
        for (turn, inv_freq) in turns.iter_mut().zip(&frequencies) {
            // The angle is an f32 product by definition; its rounding shows at large positions.
            let angle = f64::from(position as f32 * inv_freq);
            *turn = (angle.cos(), if op.inverse { -angle.sin() } else { angle.sin() });
        }
        for x in out.chunks_exact_mut(c) {
            rotate(&mut x[c - rotary..], &turns);
        }
    }
    cx.one(out)
}

fn rotate(x: &mut [f32], turns: &[(f64, f64)]) {
    for (pair, (cos, sin)) in x.chunks_exact_mut(2).zip(turns) {
        let (a, b) = (f64::from(pair[0]), f64::from(pair[1]));
        pair[0] = (a * cos - b * sin) as f32;
        pair[1] = (a * sin + b * cos) as f32;
    }
}

pub(super) fn hadamard(cx: &Cx<'_>) -> Results {
    let (x, c) = (cx.floats(0)?, cx.channels(0).max(1));
    let mut out = cx.buffer::<f32>(0)?;
    let mut v = vec![0.0f64; c];
    for (x, out) in x.chunks_exact(c).zip(out.chunks_exact_mut(c)) {
        v.iter_mut().zip(x).for_each(|(v, x)| *v = f64::from(*x));
        walsh(&mut v);
        out.iter_mut().zip(&v).for_each(|(y, v)| *y = (v / (c as f64).sqrt()) as f32);
    }
    cx.one(out)
}

/// Walsh-Hadamard transform in natural order, without a factor.
fn walsh(v: &mut [f64]) {
    let mut half = 1;
    while half < v.len() {
        for block in v.chunks_exact_mut(2 * half) {
            let (low, high) = block.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
}

pub(super) fn quantize(cx: &Cx<'_>) -> Results {
    cx.one(cx.floats(0)?.into_owned())
}
