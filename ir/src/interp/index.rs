//! The indexer: scores of compressed entries, and selection among them.

use super::step::{Row, state_row};
use super::{Array, Cx, InterpError, dot, row};
use crate::op::{CandidateBlocks, IndexScores, TopK};
use std::cmp::Ordering;
use std::collections::BTreeMap;

type Results = Result<Vec<Array>, InterpError>;

/// Decoded visible keys of the sequences of a step.
fn visible_keys(pages: &Array, steps: &[Row], ratio: u32) -> Result<BTreeMap<usize, Vec<f32>>, InterpError> {
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    for row in steps {
        let count = counts.entry(row.seq).or_default();
        *count = row.visible(ratio).max(*count);
    }
    let rows = pages.rows()?;
    let read = |(seq, count): (usize, usize)| {
        let keys = match count.checked_sub(1) {
            None => Vec::new(),
            Some(last) => rows.read_many(state_row(&pages.shape, seq, last)? - last, count)?,
        };
        Ok((seq, keys))
    };
    counts.into_iter().map(read).collect()
}

/// The entry that a column stands for.
fn entry_of(column: usize, block: usize, blocks: Option<&[i32]>) -> Option<usize> {
    match blocks {
        None => Some(column),
        Some(ids) => usize::try_from(*ids.get(column / block)?).ok()?.checked_mul(block)?.checked_add(column % block),
    }
}

pub(super) fn scores(cx: &Cx<'_>, op: &IndexScores) -> Results {
    let (q, w) = (cx.floats(0)?, cx.floats(1)?);
    let (heads, d) = (cx.dim(0, 1), cx.dim(0, 2));
    let steps = cx.steps(3, 0)?;
    let keys = visible_keys(cx.input(2)?, &steps, op.ratio)?;
    let blocks = if op.block > 0 { Some(cx.ints(4)?) } else { None };
    let n_blocks = cx.dim(4, 1);
    let columns = cx.out_shape(0)[1];
    let mut out = cx.buffer::<f32>(0)?;
    for (t, (step, out)) in steps.iter().zip(out.chunks_exact_mut(columns.max(1))).enumerate() {
        let (q, w) = (row(&q, t, heads * d), row(&w, t, heads));
        let keys = keys.get(&step.seq).map_or(&[][..], |k| k);
        let blocks = blocks.map(|b| &b[t * n_blocks..(t + 1) * n_blocks]);
        for (column, out) in out.iter_mut().enumerate() {
            let entry = entry_of(column, op.block as usize, blocks).filter(|g| *g < step.visible(op.ratio));
            *out = entry.map_or(f32::NEG_INFINITY, |g| {
                let score = score(q, w, row(keys, g, d));
                (f64::from(op.scale) * score) as f32
            });
        }
    }
    cx.one(out)
}

/// `sum_h w_h * relu(q_h . key)`.
fn score(q: &[f32], w: &[f32], key: &[f32]) -> f64 {
    let relu = |h: usize| dot(row(q, h, key.len()), key).max(0.0);
    w.iter().enumerate().map(|(h, w)| f64::from(*w) * relu(h)).sum()
}

/// The `k` best by score, lower index first among equals, then ascending.
fn best(mut scored: Vec<(f32, usize)>, k: usize) -> Vec<usize> {
    scored.sort_by(|a, b| b.0.partial_cmp(&a.0).unwrap_or(Ordering::Equal).then(a.1.cmp(&b.1)));
    scored.truncate(k);
    let mut ids: Vec<usize> = scored.into_iter().map(|(_, id)| id).collect();
    ids.sort_unstable();
    ids
}

fn padded(out: &mut [i32], ids: &[usize]) -> Result<(), InterpError> {
    out.fill(-1);
    for (out, id) in out.iter_mut().zip(ids) {
        *out = i32::try_from(*id).map_err(|_| InterpError::new(format!("entry {id} does not fit an i32")))?;
    }
    Ok(())
}

pub(super) fn top_k(cx: &Cx<'_>, op: &TopK) -> Results {
    let (scores, columns) = (cx.floats(0)?, cx.dim(0, 1));
    let steps = cx.steps(1, 0)?;
    let blocks = if op.block > 0 { Some(cx.ints(2)?) } else { None };
    let n_blocks = cx.dim(2, 1);
    let k = op.k as usize;
    let mut out = cx.buffer::<i32>(0)?;
    for (t, (step, out)) in steps.iter().zip(out.chunks_exact_mut(k.max(1))).enumerate() {
        let blocks = blocks.map(|b| &b[t * n_blocks..(t + 1) * n_blocks]);
        let scored = row(&scores, t, columns).iter().enumerate().filter(|(_, s)| **s > f32::NEG_INFINITY);
        let entries = scored.filter_map(|(column, s)| Some((*s, entry_of(column, op.block as usize, blocks)?)));
        let visible = entries.filter(|(_, g)| *g < step.visible(op.ratio)).collect();
        padded(out, &best(visible, k))?;
    }
    Ok(vec![cx.int_output(0, out)])
}

pub(super) fn candidate_blocks(cx: &Cx<'_>, op: &CandidateBlocks) -> Results {
    let (scores, columns) = (cx.floats(0)?, cx.dim(0, 1));
    let steps = cx.steps(1, 0)?;
    let (block, keep) = (op.block.max(1) as usize, op.keep as usize);
    let mut out = cx.buffer::<i32>(0)?;
    for (t, (step, out)) in steps.iter().zip(out.chunks_exact_mut(keep.max(1))).enumerate() {
        let visible = step.visible(op.ratio).min(columns);
        let scores = &row(&scores, t, columns)[..visible];
        let newest = visible.checked_sub(1).map(|g| g / block);
        let scored = scores.chunks(block).enumerate().map(|(b, scores)| {
            let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            (if Some(b) == newest { f32::INFINITY } else { largest.min(f32::MAX) }, b)
        });
        padded(out, &best(scored.collect(), keep))?;
    }
    Ok(vec![cx.int_output(0, out)])
}
