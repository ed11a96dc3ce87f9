//! The part of a weight that one rank of a parallel group holds.
//!
//! Checkpoints hold whole tensors: one is packed whole and then cut, along rows or along channels. A cut never divides
//! a group of values that share a scale; specs whose sizes would need it are refused when they are checked.

use super::{WeightError, WeightStore, weight_bytes};
use crate::memory::Bytes;
use dsc_ir::dtype::DType;
use dsc_ir::manifest::Weight;

/// Tensor name of the table from a model's experts to those of a rank.
pub const LOCAL_EXPERTS: &str = "@experts.local";

/// How a weight is split.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Split {
    None,
    /// Along the outermost axis.
    Outer(u64),
    /// Along the innermost.
    Inner(u64),
}

fn split(w: &Weight) -> Split {
    let n = |text: &str| text.parse().ok().filter(|n| *n > 1);
    match w.shard.split_once(':') {
        Some(("outer", text)) => n(text).map_or(Split::None, Split::Outer),
        Some(("inner", text)) => n(text).map_or(Split::None, Split::Inner),
        _ => Split::None,
    }
}

impl WeightStore {
    /// The part of a weight that a rank holds, packed.
    ///
    /// # Errors
    /// As [`WeightStore::load`], and sizes that do not divide.
    pub fn load_rank(&mut self, w: &Weight, rank: u64) -> Result<Bytes, WeightError> {
        if w.tensor == LOCAL_EXPERTS {
            return local_experts(w, self.expert_ranks, rank);
        }
        let mut whole = w.clone();
        match split(w) {
            Split::None => return self.load(w),
            Split::Outer(n) => widen(whole.shape.first_mut(), n),
            Split::Inner(n) => widen(whole.shape.last_mut(), n),
        }
        let bytes = self.load(&whole)?;
        cut(&whole, split(w), rank, bytes.as_ref())
            .filter(|part| part.len() as u64 == weight_bytes(w))
            .ok_or_else(|| WeightError::Value {
                tensor: w.tensor.clone(),
                reason: format!("{} does not split into `{}`", whole.dtype, w.shard),
            })
            .and_then(|part| Ok(Bytes::copy_of(&part)?))
    }
}

fn widen(size: Option<&mut u64>, n: u64) {
    if let Some(size) = size {
        *size = size.saturating_mul(n);
    }
}

/// Number of each expert among those of the rank, -1 for the others.
fn local_experts(w: &Weight, ranks: u64, rank: u64) -> Result<Bytes, WeightError> {
    let experts = w.shape.first().copied().unwrap_or(0);
    let share = experts / ranks.max(1);
    let first = rank % ranks.max(1) * share;
    let local = |e: u64| e.checked_sub(first).filter(|l| *l < share).map_or(-1, |l| l as i32);
    let cells: Vec<u8> = (0..experts).flat_map(|e| local(e).to_le_bytes()).collect();
    Ok(Bytes::copy_of(&cells)?)
}

/// A part of a packed weight with rows of so many bytes.
struct Segment {
    rows: u64,
    row_bytes: u64,
}

/// The parts of a packed weight, in order.
fn segments(w: &Weight) -> Vec<Segment> {
    let (k, outer) = match w.shape.split_last() {
        Some((k, outer)) => (*k, outer.iter().product::<u64>()),
        None => return Vec::new(),
    };
    match w.dtype {
        DType::F32 | DType::I32 => vec![Segment { rows: outer, row_bytes: 4 * k }],
        DType::Bf16 => vec![Segment { rows: outer, row_bytes: 2 * k }],
        DType::Packed(format) => vec![Segment { rows: outer, row_bytes: format.row_bytes(k) }],
        DType::Weight(format) => {
            let n = w.shape.iter().rev().nth(1).copied().unwrap_or(1).max(1);
            let count = outer / n;
            let data = Segment { rows: outer, row_bytes: format.data_bytes(1, k) };
            let scale_rows = match format.scale_bytes(n, k) {
                0 => return vec![data],
                all => all / format.scale_bytes(1, k).max(1),
            };
            vec![data, Segment { rows: count * scale_rows, row_bytes: format.scale_bytes(1, k) }]
        }
    }
}

/// The bytes of a rank's part; none where rows or scale groups do not divide.
fn cut(w: &Weight, split: Split, rank: u64, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut at = 0usize;
    // A vector has a single row: its channels are its outermost axis.
    let split = match split {
        Split::Outer(n) if w.shape.len() == 1 => Split::Inner(n),
        other => other,
    };
    for s in segments(w) {
        let len = usize::try_from(s.rows.checked_mul(s.row_bytes)?).ok()?;
        let part = bytes.get(at..at.checked_add(len)?)?;
        at += len;
        let (rows, n) = match split {
            Split::None => (1, 1),
            Split::Outer(n) if s.rows.is_multiple_of(n) => (1, n),
            Split::Inner(n) if s.row_bytes.is_multiple_of(n) => (s.rows, n),
            Split::Outer(_) | Split::Inner(_) => return None,
        };
        let row = len / usize::try_from(rows).ok()?.max(1);
        let piece = row / usize::try_from(n).ok()?;
        let first = piece * usize::try_from(rank % n).ok()?;
        part.chunks_exact(row.max(1)).for_each(|r| out.extend_from_slice(&r[first..first + piece]));
    }
    (at == bytes.len()).then_some(out)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a part that is none fails the test
mod tests {
    use super::*;
    use dsc_ir::dtype::WeightFormat;

    fn weight(dtype: DType, shape: &[u64]) -> Weight {
        Weight { name: "w".into(), layer: None, tensor: "w".into(), dtype, shape: shape.to_vec(), shard: "none".into() }
    }

    #[test]
    fn cuts_rows_and_channels_with_their_scales() {
        // Two tiles of 32 by three: data row r is all r, then 6 scales.
        let w = weight(DType::Weight(WeightFormat::Fp8 { tile: 32 }), &[64, 96]);
        let data = (0..64u8).flat_map(|r| vec![r; 96]);
        let bytes: Vec<u8> = data.chain([100, 101, 102, 110, 111, 112]).collect();
        let outer = cut(&w, Split::Outer(2), 1, &bytes).unwrap();
        assert_eq!((outer.len(), outer[0], &outer[32 * 96..]), (32 * 96 + 3, 32, &[110, 111, 112][..]));
        let inner = cut(&w, Split::Inner(3), 5, &bytes).unwrap();
        assert_eq!((inner.len(), inner[32], &inner[64 * 32..]), (64 * 32 + 2, 1, &[102, 112][..]));
        assert_eq!(cut(&w, Split::Outer(4), 0, &bytes), None, "half a tile");
        let v = weight(DType::F32, &[4]);
        assert_eq!(cut(&v, Split::Outer(2), 1, &(0..16).collect::<Vec<u8>>()).unwrap(), (8..16).collect::<Vec<u8>>());
    }

    #[test]
    fn every_expert_is_on_one_rank() {
        let w = weight(DType::I32, &[6]);
        let maps: Vec<Vec<i32>> = (0..4)
            .map(|rank| local_experts(&w, 2, rank).unwrap().as_ref().chunks(4).map(|b| b[0] as i8 as i32).collect())
            .collect();
        assert_eq!(maps[0], [0, 1, 2, -1, -1, -1]);
        assert_eq!(maps[1], [-1, -1, -1, 0, 1, 2]);
        assert_eq!(maps[2..], maps[..2]);
    }
}
