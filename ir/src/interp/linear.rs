//! Linears: dense, block-diagonal, and of chosen experts.

use super::{Array, Cx, InterpError, dot, row};
use crate::op::GroupLinear;
use std::collections::BTreeMap;

type Results = Result<Vec<Array>, InterpError>;

pub(super) fn linear(cx: &Cx<'_>) -> Results {
    let x = cx.floats(0)?;
    (1..cx.inputs.len()).map(|i| cx.output(i - 1, product(&x, &cx.floats(i)?, cx.dim(i, 0), cx.channels(i)))).collect()
}

/// `x [m, k]` times the transpose of `w [n, k]`.
fn product(x: &[f32], w: &[f32], n: usize, k: usize) -> Vec<f32> {
    if k == 0 {
        return Vec::new();
    }
    let mut out = Vec::with_capacity(x.len() / k * n);
    for x in x.chunks_exact(k) {
        out.extend(w.chunks_exact(k).map(|w| dot(x, w) as f32));
    }
    out
}

pub(super) fn group_linear(cx: &Cx<'_>, op: &GroupLinear) -> Results {
    let (x, w) = (cx.floats(0)?, cx.floats(1)?);
    let (n, k) = (cx.dim(1, 0), cx.channels(1));
    let groups = op.groups as usize;
    let per_group = n / groups;
    let mut out = cx.buffer::<f32>(0)?;
    for (x, out) in x.chunks_exact((k * groups).max(1)).zip(out.chunks_exact_mut(n.max(1))) {
        for (j, y) in out.iter_mut().enumerate() {
            *y = dot(row(x, j / per_group, k), row(&w, j, k)) as f32;
        }
    }
    cx.one(out)
}

/// Places `(t * k + j)` of each expert, in ascending expert id; those of no expert are left out.
fn by_expert(ids: &[i32], experts: usize) -> BTreeMap<usize, Vec<usize>> {
    let mut places: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (place, id) in ids.iter().enumerate() {
        if let Some(e) = usize::try_from(*id).ok().filter(|e| *e < experts) {
            places.entry(e).or_default().push(place);
        }
    }
    places
}

pub(super) fn expert_linear(cx: &Cx<'_>) -> Results {
    let (x, ids) = (cx.floats(0)?, cx.ints(1)?);
    let (c, chosen) = (cx.channels(0), cx.dim(1, 1).max(1));
    // Without an axis of experts in `x`, all chosen experts of a token read the same row.
    let shared = if cx.input(0)?.shape.len() == 2 { chosen } else { 1 };
    let mut results = Vec::new();
    for i in 2..cx.inputs.len() {
        let w = cx.input(i)?.rows()?;
        let n = cx.dim(i, 1);
        let mut out = cx.buffer::<f32>(i - 2)?;
        for (expert, places) in by_expert(ids, cx.dim(i, 0)) {
            let matrix = w.read_many(expert * n, n)?;
            for place in places {
                let x = row(&x, place / shared, c);
                let out = &mut out[place * n..(place + 1) * n];
                out.iter_mut().enumerate().for_each(|(j, y)| *y = dot(x, row(&matrix, j, c)) as f32);
            }
        }
        results.push(cx.output(i - 2, out)?);
    }
    Ok(results)
}
