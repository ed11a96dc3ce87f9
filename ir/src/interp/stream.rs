//! Rows in and out of the streams: embedding, copies, sums.

use super::{Array, Cx, InterpError, step};
use crate::dtype::DType;
use crate::interp::Data;
use crate::op::{OneHot, Repeat};

type Results = Result<Vec<Array>, InterpError>;

pub(super) fn embed(cx: &Cx<'_>) -> Results {
    let table = cx.input(0)?.rows()?;
    let mut out = cx.buffer::<f32>(0)?;
    for (row, out) in step::rows(cx.input(1)?)?.iter().zip(out.chunks_exact_mut(table.channels.max(1))) {
        table.read(row.id, out)?;
    }
    cx.one(out)
}

pub(super) fn repeat(cx: &Cx<'_>, op: &Repeat) -> Results {
    let (x, d) = (cx.floats(0)?, cx.channels(0));
    let mut out = cx.buffer::<f32>(0)?;
    let copies = op.n as usize;
    for (i, out) in out.chunks_exact_mut(d.max(1)).enumerate() {
        out.copy_from_slice(super::row(&x, i / copies, d));
    }
    cx.one(out)
}

pub(super) fn one_hot(cx: &Cx<'_>, op: &OneHot) -> Results {
    let mut out = cx.buffer::<f32>(0)?;
    for row in out.chunks_exact_mut(op.n as usize) {
        row[op.index as usize] = 1.0;
    }
    cx.one(out)
}

pub(super) fn add(cx: &Cx<'_>) -> Results {
    let (x, y) = (cx.floats(0)?, cx.floats(1)?);
    cx.one(x.iter().zip(y.iter()).map(|(x, y)| (f64::from(*x) + f64::from(*y)) as f32).collect())
}

/// Sum of all operands, one of each rank.
pub(super) fn sum_ranks(cx: &Cx<'_>) -> Results {
    let mut sum = vec![0.0f64; cx.buffer::<u8>(0)?.len()];
    for x in &cx.inputs {
        for (s, x) in sum.iter_mut().zip(x.floats()?.iter()) {
            *s += f64::from(*x);
        }
    }
    cx.one(sum.into_iter().map(|s| s as f32).collect())
}

fn pick<T: Copy>(x: &[T], rows: &[i32], count: usize) -> Result<Vec<T>, InterpError> {
    let width = x.len().checked_div(count).unwrap_or(0);
    let mut out = Vec::with_capacity(rows.len() * width);
    for r in rows {
        match usize::try_from(*r) {
            Ok(r) if r < count => out.extend_from_slice(&x[r * width..(r + 1) * width]),
            _ => return Err(InterpError::new(format!("row {r} is outside the {count} rows"))),
        }
    }
    Ok(out)
}

pub(super) fn take_rows(cx: &Cx<'_>) -> Results {
    let (x, rows, n) = (cx.input(0)?, cx.ints(1)?, cx.dim(0, 0));
    let dtype = cx.outputs.first().map_or(x.ty_dtype, |o| o.0);
    if dtype == x.ty_dtype && !matches!(dtype, DType::Weight(_)) {
        let data = match &x.data {
            Data::F32(v) => Data::F32(pick(v, rows, n)?),
            Data::I32(v) => Data::I32(pick(v, rows, n)?),
            Data::Bytes(v) => Data::Bytes(pick(v, rows, n)?),
        };
        return Ok(vec![Array { ty_dtype: dtype, shape: cx.out_shape(0).to_vec(), data }]);
    }
    cx.one(pick(&x.floats()?, rows, n)?)
}
