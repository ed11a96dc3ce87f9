//! Arrays: the values the interpreter works on, and how their floats are read and stored.

use super::InterpError;
use crate::dtype::{DType, RowFormat, WeightFormat};
use crate::format;
use std::borrow::Cow;

/// Largest number of elements of an array; larger ones are refused rather than allocated.
const MAX_ELEMENTS: usize = 1 << 33;

/// Contents of an [`Array`].
#[derive(Debug, Clone, PartialEq)]
pub enum Data {
    /// Floats; those of a bf16 array are already rounded.
    F32(Vec<f32>),
    /// Integers.
    I32(Vec<i32>),
    /// Packed rows, or a weight in its storage format.
    Bytes(Vec<u8>),
}

/// A tensor with its contents.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// Element type.
    pub ty_dtype: DType,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    /// Contents, of the kind that the element type asks for.
    pub data: Data,
}

/// Number of elements of a shape, within what can be allocated.
pub(super) fn elements(shape: &[usize]) -> Result<usize, InterpError> {
    shape
        .iter()
        .try_fold(1usize, |n, d| n.checked_mul(*d).filter(|n| *n <= MAX_ELEMENTS && *d <= MAX_ELEMENTS))
        .ok_or_else(|| InterpError::new(format!("an array of shape {shape:?} is too large")))
}

/// A zeroed vector of a shape's size.
pub(super) fn zeroed<T: Clone + Default>(n: usize) -> Result<Vec<T>, InterpError> {
    let mut v = Vec::new();
    v.try_reserve_exact(n).map_err(|_| InterpError::new(format!("no memory for {n} elements")))?;
    v.resize(n, T::default());
    Ok(v)
}

/// The last two axes and the number of matrices before them; vectors are one row.
fn matrices(shape: &[usize]) -> (usize, usize, usize) {
    match shape {
        [] => (1, 1, 1),
        [k] => (1, 1, *k),
        [outer @ .., n, k] => (outer.iter().product(), *n, *k),
    }
}

/// Bytes of an array as it is stored on a device.
fn storage_bytes(dtype: DType, shape: &[usize]) -> Result<usize, InterpError> {
    let n = elements(shape)?;
    Ok(match dtype {
        DType::F32 | DType::I32 => n * 4,
        DType::Bf16 => n * 2,
        DType::Packed(f) => {
            let c = shape.last().copied().unwrap_or(1);
            let rows = n.checked_div(c).unwrap_or(0);
            rows * f.row_bytes(c as u64) as usize
        }
        DType::Weight(w) => {
            let (m, n, k) = matrices(shape);
            m * w.bytes(n as u64, k as u64) as usize
        }
    })
}

impl Array {
    /// An f32 array.
    pub fn f32(shape: &[usize], data: Vec<f32>) -> Array {
        Array { ty_dtype: DType::F32, shape: shape.to_vec(), data: Data::F32(data) }
    }

    /// An i32 array.
    pub fn i32(shape: &[usize], data: Vec<i32>) -> Array {
        Array { ty_dtype: DType::I32, shape: shape.to_vec(), data: Data::I32(data) }
    }

    /// Packed rows or a weight in its storage format.
    pub fn bytes(dtype: DType, shape: &[usize], data: Vec<u8>) -> Array {
        Array { ty_dtype: dtype, shape: shape.to_vec(), data: Data::Bytes(data) }
    }

    /// All zeros.
    ///
    /// # Errors
    /// The array is too large.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Result<Array, InterpError> {
        let data = match dtype {
            DType::F32 | DType::Bf16 => Data::F32(zeroed(elements(shape)?)?),
            DType::I32 => Data::I32(zeroed(elements(shape)?)?),
            DType::Packed(_) | DType::Weight(_) => Data::Bytes(zeroed(storage_bytes(dtype, shape)?)?),
        };
        Ok(Array { ty_dtype: dtype, shape: shape.to_vec(), data })
    }

    /// Floats rounded, packed or encoded to a float dtype.
    ///
    /// # Errors
    /// An integer dtype, or a wrong number of floats.
    pub fn from_floats(dtype: DType, shape: &[usize], mut x: Vec<f32>) -> Result<Array, InterpError> {
        let n = elements(shape)?;
        if x.len() != n {
            return Err(InterpError::new(format!("{} floats for shape {shape:?}", x.len())));
        }
        let data = match dtype {
            DType::F32 => Data::F32(x),
            DType::Bf16 => {
                x.iter_mut().for_each(|v| *v = format::bf16_round(*v));
                Data::F32(x)
            }
            DType::I32 => return Err(InterpError::new("floats do not become i32")),
            DType::Packed(f) => Data::Bytes(pack_rows(f, shape, &x)?),
            DType::Weight(w) => Data::Bytes(encode_weights(w, shape, &x)?),
        };
        Ok(Array { ty_dtype: dtype, shape: shape.to_vec(), data })
    }

    /// Reads the stored form, little-endian: bf16 in two bytes an element.
    ///
    /// # Errors
    /// A wrong number of bytes.
    pub fn from_storage(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Array, InterpError> {
        let want = storage_bytes(dtype, shape)?;
        if want != bytes.len() {
            return Err(InterpError::new(format!("{dtype} of shape {shape:?} has {want} bytes, not {}", bytes.len())));
        }
        let word = |b: &[u8]| [b[0], b[1], b[2], b[3]];
        let data = match dtype {
            DType::F32 => Data::F32(bytes.chunks_exact(4).map(|b| f32::from_le_bytes(word(b))).collect()),
            DType::I32 => Data::I32(bytes.chunks_exact(4).map(|b| i32::from_le_bytes(word(b))).collect()),
            DType::Bf16 => {
                let half = |b: &[u8]| half::bf16::from_le_bytes([b[0], b[1]]).to_f32();
                Data::F32(bytes.chunks_exact(2).map(half).collect())
            }
            DType::Packed(_) | DType::Weight(_) => Data::Bytes(bytes.to_vec()),
        };
        Ok(Array { ty_dtype: dtype, shape: shape.to_vec(), data })
    }

    /// The stored form, as [`Array::from_storage`] reads it.
    pub fn to_storage(&self) -> Vec<u8> {
        match &self.data {
            Data::Bytes(b) => b.clone(),
            Data::I32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Data::F32(v) if self.ty_dtype == DType::Bf16 => {
                v.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect()
            }
            Data::F32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        }
    }

    /// The values as floats.
    ///
    /// # Errors
    /// An integer or inconsistent array.
    pub fn to_floats(&self) -> Result<Vec<f32>, InterpError> {
        self.check()?;
        Ok(self.floats()?.into_owned())
    }

    /// The integers.
    ///
    /// # Errors
    /// Another dtype.
    pub fn ints(&self) -> Result<&[i32], InterpError> {
        match &self.data {
            Data::I32(v) => Ok(v),
            Data::F32(_) | Data::Bytes(_) => Err(InterpError::new(format!("expected i32, got {}", self.ty_dtype))),
        }
    }

    /// Whether contents, dtype and shape belong together.
    ///
    /// # Errors
    /// Contents of another kind or length.
    pub fn check(&self) -> Result<(), InterpError> {
        let n = elements(&self.shape)?;
        let (want, got) = match (self.ty_dtype, &self.data) {
            (DType::F32 | DType::Bf16, Data::F32(v)) => (n, v.len()),
            (DType::I32, Data::I32(v)) => (n, v.len()),
            (d @ (DType::Packed(_) | DType::Weight(_)), Data::Bytes(b)) => (storage_bytes(d, &self.shape)?, b.len()),
            (d, _) => return Err(InterpError::new(format!("contents of an array do not suit its dtype {d}"))),
        };
        if want == got {
            return Ok(());
        }
        Err(InterpError::new(format!(
            "{} of shape {:?} needs {want} elements or bytes, not {got}",
            self.ty_dtype, self.shape
        )))
    }

    /// All values, decoded; the array must be consistent.
    pub(super) fn floats(&self) -> Result<Cow<'_, [f32]>, InterpError> {
        if let Data::F32(v) = &self.data {
            return Ok(Cow::Borrowed(v));
        }
        let rows = self.rows()?;
        let mut out = zeroed(elements(&self.shape)?)?;
        for (i, out) in out.chunks_exact_mut(rows.channels.max(1)).enumerate() {
            rows.read(i, out)?;
        }
        Ok(Cow::Owned(out))
    }

    /// The rows along the last axis, to be decoded one by one.
    pub(super) fn rows(&self) -> Result<Rows<'_>, InterpError> {
        let channels = self.shape.last().copied().unwrap_or(1);
        let count = elements(&self.shape)?.checked_div(channels).unwrap_or(0);
        let source = match (self.ty_dtype, &self.data) {
            (_, Data::F32(v)) => Source::Floats(v),
            (DType::Packed(f), Data::Bytes(b)) => Source::Packed(f, b),
            (DType::Weight(w), Data::Bytes(b)) => {
                let (m, n, k) = matrices(&self.shape);
                let (data, scales) = b.split_at((m * w.data_bytes(n as u64, k as u64) as usize).min(b.len()));
                Source::Weight { format: w, data, scales, n }
            }
            (d, _) => return Err(InterpError::new(format!("expected floats, got {d}"))),
        };
        Ok(Rows { source, count, channels })
    }
}

fn pack_rows(format: RowFormat, shape: &[usize], x: &[f32]) -> Result<Vec<u8>, InterpError> {
    let channels = shape.last().copied().unwrap_or(1).max(1);
    let bytes = format.row_bytes(channels as u64) as usize;
    let mut out = zeroed(storage_bytes(DType::Packed(format), shape)?)?;
    for (x, row) in x.chunks_exact(channels).zip(out.chunks_exact_mut(bytes.max(1))) {
        format::pack_row(format, x, row)?;
    }
    Ok(out)
}

fn encode_weights(format: WeightFormat, shape: &[usize], x: &[f32]) -> Result<Vec<u8>, InterpError> {
    let (_, n, k) = matrices(shape);
    let (mut data, mut scales) = (Vec::new(), Vec::new());
    for matrix in x.chunks_exact((n * k).max(1)) {
        let mut bytes = format::encode_weight(format, n, k, matrix)?;
        scales.extend(bytes.split_off(format.data_bytes(n as u64, k as u64) as usize));
        data.extend(bytes);
    }
    data.extend(scales);
    Ok(data)
}

enum Source<'a> {
    Floats(&'a [f32]),
    Packed(RowFormat, &'a [u8]),
    Weight { format: WeightFormat, data: &'a [u8], scales: &'a [u8], n: usize },
}

/// Rows along the last axis of an array.
pub(super) struct Rows<'a> {
    source: Source<'a>,
    /// Number of rows.
    pub count: usize,
    /// Floats of a row.
    pub channels: usize,
}

impl Rows<'_> {
    /// Decodes row `i` into `out`, of `channels` floats.
    pub fn read(&self, i: usize, out: &mut [f32]) -> Result<(), InterpError> {
        if i >= self.count {
            return Err(InterpError::new(format!("row {i} is outside the {} rows", self.count)));
        }
        let c = self.channels;
        match self.source {
            Source::Floats(v) => out.copy_from_slice(&v[i * c..(i + 1) * c]),
            Source::Packed(f, bytes) => {
                let n = f.row_bytes(c as u64) as usize;
                format::unpack_row(f, &bytes[i * n..(i + 1) * n], out)?;
            }
            Source::Weight { format: w, data, scales, n } => {
                let (m, row) = (i / n, i % n);
                let (d, s) = (w.data_bytes(n as u64, c as u64) as usize, w.scale_bytes(n as u64, c as u64) as usize);
                let (data, scales) = (&data[m * d..(m + 1) * d], &scales[m * s..(m + 1) * s]);
                format::decode_weight_row(w, data, scales, n, c, row, out)?;
            }
        }
        Ok(())
    }

    /// Decodes rows `from .. from + n`.
    pub fn read_many(&self, from: usize, n: usize) -> Result<Vec<f32>, InterpError> {
        let mut out = zeroed(elements(&[n, self.channels])?)?;
        for (i, out) in out.chunks_exact_mut(self.channels.max(1)).enumerate() {
            self.read(from + i, out)?;
        }
        Ok(out)
    }
}
