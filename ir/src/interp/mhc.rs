//! Hyper-connections: statistics, mix coefficients, collapse and expand.

use super::{Array, Cx, InterpError, dot, mean_square, row, sigmoid};
use crate::op::{HeadCoeffs, MhcCoeffs, MhcStats};

type Results = Result<Vec<Array>, InterpError>;

pub(super) fn stats(cx: &Cx<'_>, op: &MhcStats) -> Results {
    let (x, w) = (cx.floats(0)?, cx.floats(1)?);
    let (m, k) = (cx.dim(1, 0), cx.channels(1));
    let mut out = cx.buffer::<f32>(0)?;
    for (x, out) in x.chunks_exact(k.max(1)).zip(out.chunks_exact_mut(m.max(1))) {
        let rms = (mean_square(x) + f64::from(op.eps)).sqrt();
        out.iter_mut().enumerate().for_each(|(j, y)| *y = (dot(x, row(&w, j, k)) / rms) as f32);
    }
    cx.one(out)
}

/// `m * scale + base`.
fn affine(m: f32, scale: f32, base: f32) -> f64 {
    f64::from(m) * f64::from(scale) + f64::from(base)
}

pub(super) fn coeffs(cx: &Cx<'_>, op: &MhcCoeffs) -> Results {
    let (m, scale, base) = (cx.floats(0)?, cx.floats(1)?, cx.floats(2)?);
    let (width, n, eps) = (cx.channels(0), cx.out_shape(0)[1], f64::from(op.eps));
    let (mut pre, mut post, mut comb) = (cx.buffer::<f32>(0)?, cx.buffer::<f32>(1)?, cx.buffer::<f32>(2)?);
    let mut c = vec![0.0f64; n * n];
    for (t, m) in m.chunks_exact(width).enumerate() {
        for j in 0..n {
            pre[t * n + j] = (sigmoid(affine(m[j], scale[0], base[j])) + eps) as f32;
            post[t * n + j] = (2.0 * sigmoid(affine(m[n + j], scale[1], base[n + j]))) as f32;
        }
        for (i, c) in c.iter_mut().enumerate() {
            *c = affine(m[2 * n + i], scale[2], base[2 * n + i]);
        }
        sinkhorn(&mut c, n, op.iters, eps);
        comb[t * n * n..(t + 1) * n * n].iter_mut().zip(&c).for_each(|(out, c)| *out = *c as f32);
    }
    Ok(vec![cx.output(0, pre)?, cx.output(1, post)?, cx.output(2, comb)?])
}

fn sinkhorn(c: &mut [f64], n: usize, iters: u32, eps: f64) {
    for row in c.chunks_exact_mut(n) {
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        row.iter_mut().for_each(|v| *v = (*v - largest).exp());
        let sum: f64 = row.iter().sum();
        row.iter_mut().for_each(|v| *v = *v / sum + eps);
    }
    divide_columns(c, n, eps);
    for _ in 1..iters {
        for row in c.chunks_exact_mut(n) {
            let sum = row.iter().sum::<f64>() + eps;
            row.iter_mut().for_each(|v| *v /= sum);
        }
        divide_columns(c, n, eps);
    }
}

fn divide_columns(c: &mut [f64], n: usize, eps: f64) {
    for j in 0..n {
        let sum = c.iter().skip(j).step_by(n).sum::<f64>() + eps;
        c.iter_mut().skip(j).step_by(n).for_each(|v| *v /= sum);
    }
}

pub(super) fn head_coeffs(cx: &Cx<'_>, op: &HeadCoeffs) -> Results {
    let (m, scale, base) = (cx.floats(0)?, cx.floats(1)?, cx.floats(2)?);
    let n = cx.channels(0).max(1);
    let weight = |(i, m): (usize, &f32)| (sigmoid(affine(*m, scale[0], base[i % n])) + f64::from(op.eps)) as f32;
    cx.one(m.iter().enumerate().map(weight).collect())
}

/// `sum_i p_i x_ic` for one token.
fn mixed(x: &[f32], d: usize, c: usize, p: impl Iterator<Item = f32>) -> f64 {
    p.enumerate().map(|(i, p)| f64::from(p) * f64::from(x[i * d + c])).sum()
}

pub(super) fn collapse(cx: &Cx<'_>) -> Results {
    let (x, p) = (cx.floats(0)?, cx.floats(1)?);
    let (n, d) = (cx.dim(0, 1), cx.dim(0, 2));
    let mut out = cx.buffer::<f32>(0)?;
    for (t, out) in out.chunks_exact_mut(d.max(1)).enumerate() {
        let (x, p) = (row(&x, t, n * d), row(&p, t, n));
        out.iter_mut().enumerate().for_each(|(c, y)| *y = mixed(x, d, c, p.iter().copied()) as f32);
    }
    cx.one(out)
}

pub(super) fn expand(cx: &Cx<'_>) -> Results {
    let (y, x, post, comb) = (cx.floats(0)?, cx.floats(1)?, cx.floats(2)?, cx.floats(3)?);
    let (n, d) = (cx.dim(1, 1), cx.dim(1, 2));
    let mut out = cx.buffer::<f32>(0)?;
    for (row_idx, out) in out.chunks_exact_mut(d.max(1)).enumerate() {
        let (t, j) = (row_idx / n, row_idx % n);
        let (x, comb) = (row(&x, t, n * d), row(&comb, t, n * n));
        let post = f64::from(post[row_idx]);
        for (c, out) in out.iter_mut().enumerate() {
            let kept = mixed(x, d, c, comb.iter().skip(j).step_by(n).copied());
            *out = (post * f64::from(y[t * d + c]) + kept) as f32;
        }
    }
    cx.one(out)
}
