//! States: writing rings and pages, and pooling groups of tokens read from rings.

use super::step::{self, History, Row};
use super::{Array, Cx, Data, InterpError};
use crate::op::{Op, Pool};

/// Performs a state-writing op.
pub(super) fn write(op: &Op, state: &mut Array, x: &Array, table: &Array) -> Result<(), InterpError> {
    let rows = step::rows(table)?;
    let slots = state.shape.get(1).copied().unwrap_or(0);
    let mut moves = Vec::with_capacity(rows.len());
    for (t, row) in rows.iter().enumerate() {
        let slot = match op {
            // Only the last `slots` positions of the run fit; writing older ones would race with them.
            Op::RingWrite(_) if row.pos + slots >= row.end => {
                Some(row.pos.checked_rem(slots).ok_or_else(|| InterpError::new("a ring has no slots"))?)
            }
            Op::PageWrite(o) => row.completes(o.ratio),
            _ => None,
        };
        if let Some(slot) = slot {
            moves.push((t, step::state_row(&state.shape, row.seq, slot)?));
        }
    }
    let count = state.shape.iter().take(2).product();
    match (&mut state.data, &x.data) {
        (Data::F32(to), Data::F32(from)) => copy(to, from, count, rows.len(), &moves),
        (Data::I32(to), Data::I32(from)) => copy(to, from, count, rows.len(), &moves),
        (Data::Bytes(to), Data::Bytes(from)) => copy(to, from, count, rows.len(), &moves),
        _ => Err(InterpError::new("rows and state are stored differently")),
    }
}

/// Copies row `from` of the step's `n` rows to row `to` of the state's `count` rows.
fn copy<T: Copy>(
    to: &mut [T],
    from: &[T],
    count: usize,
    n: usize,
    moves: &[(usize, usize)],
) -> Result<(), InterpError> {
    let width = to.len().checked_div(count).unwrap_or(0);
    if width != from.len().checked_div(n).unwrap_or(width) {
        return Err(InterpError::new("packed rows with inner axes do not fit the rows of the state"));
    }
    for (t, slot) in moves {
        to[slot * width..(slot + 1) * width].copy_from_slice(&from[t * width..(t + 1) * width]);
    }
    Ok(())
}

/// The slots of a pooling: position, and first channel read there.
fn slots(op: &Pool, entry: usize, width: usize) -> Vec<(usize, usize)> {
    let ratio = op.ratio.max(1) as usize;
    let window = |entry: usize| entry * ratio..(entry + 1) * ratio;
    if !op.overlap {
        return window(entry).map(|p| (p, 0)).collect();
    }
    let previous = entry.checked_sub(1).map(window).unwrap_or(0..0);
    previous.map(|p| (p, 0)).chain(window(entry).map(|p| (p, width))).collect()
}

pub(super) fn pool(cx: &Cx<'_>, op: &Pool) -> Result<Vec<Array>, InterpError> {
    let steps = cx.steps(4, 0)?;
    let values = History::new(cx.input(0)?, cx.input(2)?)?;
    let gates = History::new(cx.input(1)?, cx.input(3)?)?;
    let ape = if op.bias { Some(cx.floats(5)?) } else { None };
    let (c, width) = (cx.channels(0), cx.out_shape(0)[1]);
    let mut pooling = Pooling { v: vec![0.0; c], s: vec![0.0; c], slots: Vec::new() };
    let mut out = cx.buffer::<f32>(0)?;
    for (row, out) in steps.iter().zip(out.chunks_exact_mut(width.max(1))) {
        let Some(entry) = row.completes(op.ratio) else { continue };
        pooling.slots.clear();
        for (p, first) in slots(op, entry, width) {
            let slot = p % op.ratio.max(1) as usize;
            let ape = ape.as_ref().map(|a| super::row(a, slot, c));
            pooling.read(&values, &gates, row, p, first..first + width, ape)?;
        }
        pooling.reduce(out);
    }
    cx.one(out)
}

/// Slots of one entry: per slot the channels' `(gate, value)`.
struct Pooling {
    v: Vec<f32>,
    s: Vec<f32>,
    slots: Vec<Vec<(f64, f64)>>,
}

impl Pooling {
    fn read(
        &mut self,
        values: &History<'_>,
        gates: &History<'_>,
        row: &Row,
        p: usize,
        channels: std::ops::Range<usize>,
        ape: Option<&[f32]>,
    ) -> Result<(), InterpError> {
        values.read(row, p, &mut self.v)?;
        gates.read(row, p, &mut self.s)?;
        let bias = |c: usize| ape.map_or(0.0, |a| f64::from(a[c]));
        self.slots.push(channels.map(|c| (f64::from(self.s[c]) + bias(c), f64::from(self.v[c]))).collect());
        Ok(())
    }

    /// Softmax over the slots of each channel, and the weighted sum.
    fn reduce(&self, out: &mut [f32]) {
        for (c, out) in out.iter_mut().enumerate() {
            let largest = self.slots.iter().map(|s| s[c].0).fold(f64::NEG_INFINITY, f64::max);
            let (mut sum, mut weight) = (0.0, 0.0);
            for slot in &self.slots {
                let p = (slot[c].0 - largest).exp();
                weight += p;
                sum += p * slot[c].1;
            }
            *out = (sum / weight) as f32;
        }
    }
}
