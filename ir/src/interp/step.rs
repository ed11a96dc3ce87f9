//! The step table, and reading rows of the past by position.

use super::InterpError;
use super::array::{Array, Rows};
use crate::op::step;

/// One row of the step table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    pub id: usize,
    pub pos: usize,
    pub seq: usize,
    pub start: usize,
    pub row0: usize,
    pub end: usize,
    pub image: bool,
    pub floor: usize,
}

impl Row {
    /// Number of entries of `ratio` tokens that this row sees.
    pub fn visible(&self, ratio: u32) -> usize {
        (self.pos + 1) / ratio.max(1) as usize
    }

    /// The entry of `ratio` tokens that this row completes.
    pub fn completes(&self, ratio: u32) -> Option<usize> {
        let ratio = ratio.max(1) as usize;
        (self.pos + 1).is_multiple_of(ratio).then_some(self.pos / ratio)
    }
}

/// Reads and checks the step table.
pub(super) fn rows(table: &Array) -> Result<Vec<Row>, InterpError> {
    let cells = table.ints()?;
    let columns = step::COLUMNS as usize;
    let n = cells.len() / columns;
    let row = |(t, r): (usize, &[i32])| {
        let at = |column: u64| {
            usize::try_from(r[column as usize])
                .map_err(|_| InterpError::new(format!("column {column} of row {t} of the step table is negative")))
        };
        let row = Row {
            id: at(step::ID)?,
            pos: at(step::POS)?,
            seq: at(step::SEQ)?,
            start: at(step::START)?,
            row0: at(step::ROW0)?,
            end: at(step::END)?,
            image: at(step::IMAGE)? != 0,
            floor: at(step::FLOOR)?,
        };
        let run = row.start <= row.pos && row.pos < row.end && row.row0 + row.end - row.start <= n;
        if run && row.row0 + row.pos - row.start == t {
            return Ok(row);
        }
        Err(InterpError::new(format!("row {t} of the step table is not in its sequence's run of positions")))
    };
    cells.chunks_exact(columns).enumerate().map(row).collect()
}

/// Index of a sequence's row in a state `[n_seqs, slots, ..]`.
pub(super) fn state_row(shape: &[usize], seq: usize, slot: usize) -> Result<usize, InterpError> {
    match shape {
        [seqs, slots, ..] if seq < *seqs && slot < *slots => Ok(seq * slots + slot),
        _ => Err(InterpError::new(format!("sequence {seq}, slot {slot} is outside a state of shape {shape:?}"))),
    }
}

/// Index in a ring of position `p`, before the step, of the sequence of `row`.
pub(super) fn ring_row(shape: &[usize], row: &Row, p: usize) -> Result<usize, InterpError> {
    let slots = shape.get(1).copied().unwrap_or(0);
    let slot = p.checked_rem(slots).ok_or_else(|| InterpError::new("a ring has no slots"))?;
    if p + slots < row.start {
        return Err(InterpError::new(format!("position {p} is no longer in a ring of {slots} before {}", row.start)));
    }
    state_row(shape, row.seq, slot)
}

/// Rows by position: those of the step, and older ones from a ring.
pub(super) struct History<'a> {
    fresh: Vec<f32>,
    ring: Rows<'a>,
    ring_shape: &'a [usize],
    channels: usize,
}

impl<'a> History<'a> {
    pub fn new(fresh: &Array, ring: &'a Array) -> Result<History<'a>, InterpError> {
        let rows = ring.rows()?;
        let channels = rows.channels;
        Ok(History { fresh: fresh.floats()?.into_owned(), ring: rows, ring_shape: &ring.shape, channels })
    }

    /// The row at position `p` of the sequence of `row`.
    pub fn read(&self, row: &Row, p: usize, out: &mut [f32]) -> Result<(), InterpError> {
        if p < row.start {
            return self.ring.read(ring_row(self.ring_shape, row, p)?, out);
        }
        let t = row.row0 + p - row.start;
        match self.fresh.get(t * self.channels..(t + 1) * self.channels) {
            Some(fresh) => out.copy_from_slice(fresh),
            None => return Err(InterpError::new(format!("position {p} is not in the step"))),
        }
        Ok(())
    }
}
