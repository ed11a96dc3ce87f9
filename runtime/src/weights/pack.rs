//! Packing checkpoint tensors: data, then scales; experts stacked within both parts; table rows interleaved.
//!
//! Conversions are lossless or refused. Scale bytes must be numbers, since a NaN would spread silently.

use super::{WeightError, names, weight_bytes};
use crate::checkpoint::{Checkpoint, Tensor};
use crate::memory::Bytes;
use dsc_ir::dtype::{DType, RowFormat, WeightFormat};
use dsc_ir::manifest::Weight;
use safetensors::Dtype;
use std::collections::BTreeSet;

/// A tensor with the name it was found under.
struct Found<'a> {
    name: String,
    tensor: Tensor<'a>,
}

impl Found<'_> {
    fn shape(&self, want: &[u64]) -> Result<(), WeightError> {
        let same = self.tensor.shape.len() == want.len()
            && self.tensor.shape.iter().zip(want).all(|(got, want)| *got as u64 == *want);
        if same {
            return Ok(());
        }
        Err(WeightError::Shape { tensor: self.name.clone(), want: want.to_vec(), got: self.tensor.shape.to_vec() })
    }

    fn wrong_dtype(&self, want: &str) -> WeightError {
        WeightError::Dtype { tensor: self.name.clone(), want: want.into(), got: format!("{:?}", self.tensor.dtype) }
    }

    fn dtype(&self, accepted: &[Dtype], want: &str) -> Result<(), WeightError> {
        if accepted.contains(&self.tensor.dtype) { Ok(()) } else { Err(self.wrong_dtype(want)) }
    }

    fn value(&self, reason: impl Into<String>) -> WeightError {
        WeightError::Value { tensor: self.name.clone(), reason: reason.into() }
    }
}

struct Packer<'a> {
    checkpoint: &'a Checkpoint,
    used: &'a mut BTreeSet<String>,
}

impl<'a> Packer<'a> {
    fn find(&mut self, candidates: Vec<String>) -> Result<Found<'a>, WeightError> {
        for name in &candidates {
            if let Some(tensor) = self.checkpoint.get(name) {
                self.used.insert(name.clone());
                return Ok(Found { name: name.clone(), tensor });
            }
        }
        Err(WeightError::Missing(candidates.into_iter().next().unwrap_or_default()))
    }

    fn data(&mut self, base: &str) -> Result<Found<'a>, WeightError> {
        self.find(names::candidates(base))
    }

    fn scales(&mut self, base: &str, shape: &[u64]) -> Result<&'a [u8], WeightError> {
        let found = self.find(names::scale_candidates(base))?;
        found.dtype(&[Dtype::F8_E8M0, Dtype::U8], "F8_E8M0")?;
        found.shape(shape)?;
        match found.tensor.data.iter().position(|s| *s == 255) {
            Some(i) => Err(found.value(format!("scale {i} is NaN"))),
            None => Ok(found.tensor.data),
        }
    }

    /// One matrix `[n, k]` into its parts of a packed weight.
    fn matrix(
        &mut self,
        format: WeightFormat,
        base: &str,
        [n, k]: [u64; 2],
        data: &mut [u8],
        scales: &mut [u8],
    ) -> Result<(), WeightError> {
        match format {
            WeightFormat::F32 => self.floats(base, &[n, k], DType::F32, data),
            WeightFormat::Bf16 => self.floats(base, &[n, k], DType::Bf16, data),
            WeightFormat::Fp8 { tile } => {
                let found = self.data(base)?;
                found.dtype(&[Dtype::F8_E4M3], "F8_E4M3")?;
                found.shape(&[n, k])?;
                copy(&found, e4m3(&found)?, data)?;
                let tile = u64::from(tile);
                scales.copy_from_slice(self.scales(base, &[n.div_ceil(tile), k.div_ceil(tile)])?);
                Ok(())
            }
            WeightFormat::Fp4 => {
                let found = self.data(base)?;
                found.dtype(&[Dtype::I8, Dtype::U8], "I8 (two E2M1 codes a byte)")?;
                found.shape(&[n, k.div_ceil(2)])?;
                copy(&found, found.tensor.data, data)?;
                scales.copy_from_slice(self.scales(base, &[n, k.div_ceil(32)])?);
                Ok(())
            }
        }
    }

    /// Floats as f32, or bf16 as they are.
    fn floats(&mut self, base: &str, shape: &[u64], dtype: DType, out: &mut [u8]) -> Result<(), WeightError> {
        let found = self.data(base)?;
        found.shape(shape)?;
        let source = found.tensor.data;
        match (dtype, found.tensor.dtype) {
            (DType::F32, Dtype::F32) | (DType::Bf16, Dtype::BF16) => copy(&found, source, out),
            (DType::F32, Dtype::BF16) => {
                for (to, from) in out.chunks_exact_mut(4).zip(source.chunks_exact(2)) {
                    to.copy_from_slice(&[0, 0, from[0], from[1]]);
                }
                Ok(())
            }
            (DType::F32, Dtype::F16) => {
                for (to, from) in out.chunks_exact_mut(4).zip(source.chunks_exact(2)) {
                    to.copy_from_slice(&half::f16::from_le_bytes([from[0], from[1]]).to_f32().to_le_bytes());
                }
                Ok(())
            }
            (DType::F32, _) => Err(found.wrong_dtype("F32 or BF16")),
            _ => Err(found.wrong_dtype("BF16")),
        }
    }

    /// Integers from 0 to below `limit`.
    fn integers(&mut self, base: &str, shape: &[u64], limit: Option<u64>, out: &mut [u8]) -> Result<(), WeightError> {
        let found = self.data(base)?;
        found.shape(shape)?;
        let limit = limit.unwrap_or(1 << 31).min(1 << 31);
        let check = |x: i64| match u64::try_from(x) {
            Ok(u) if u < limit => Ok(x as i32),
            _ => Err(found.value(format!("{x} is not from 0 to {}", limit - 1))),
        };
        let source = found.tensor.data;
        let values: Vec<i64> = match found.tensor.dtype {
            Dtype::I32 => source.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b).into()).collect(),
            Dtype::I64 => source.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect(),
            _ => return Err(found.wrong_dtype("I32 or I64")),
        };
        for (to, x) in out.chunks_exact_mut(4).zip(values) {
            to.copy_from_slice(&check(x)?.to_le_bytes());
        }
        Ok(())
    }

    /// Rows of E4M3 codes, each followed by its scales.
    fn table(&mut self, base: &str, [rows, c]: [u64; 2], out: &mut [u8]) -> Result<(), WeightError> {
        let found = self.data(base)?;
        found.dtype(&[Dtype::F8_E4M3], "F8_E4M3")?;
        found.shape(&[rows, c])?;
        let groups = c.div_ceil(RowFormat::Fp8.group());
        let scales = self.scales(base, &[rows, groups])?;
        let (c, groups) = (c as usize, groups as usize);
        let rows = e4m3(&found)?.chunks_exact(c).zip(scales.chunks_exact(groups));
        for (out, (codes, scales)) in out.chunks_exact_mut(c + groups).zip(rows) {
            out[..c].copy_from_slice(codes);
            out[c..].copy_from_slice(scales);
        }
        Ok(())
    }
}

/// E4M3 codes without NaN.
fn e4m3<'a>(found: &Found<'a>) -> Result<&'a [u8], WeightError> {
    match found.tensor.data.iter().position(|c| c & 0x7F == 0x7F) {
        Some(i) => Err(found.value(format!("element {i} is NaN"))),
        None => Ok(found.tensor.data),
    }
}

fn copy(found: &Found<'_>, from: &[u8], to: &mut [u8]) -> Result<(), WeightError> {
    if from.len() != to.len() {
        return Err(found.value(format!("it has {} bytes, not {}", from.len(), to.len())));
    }
    to.copy_from_slice(from);
    Ok(())
}

/// Packs a weight from a checkpoint, and notes the tensors it used.
pub(super) fn pack(
    checkpoint: &Checkpoint,
    w: &Weight,
    experts: Option<u64>,
    used: &mut BTreeSet<String>,
) -> Result<Bytes, WeightError> {
    let mut packer = Packer { checkpoint, used };
    let mut out = Bytes::zeroed(weight_bytes(w))?;
    let unsupported = || WeightError::Dtype {
        tensor: w.tensor.clone(),
        want: "a format this runtime packs".into(),
        got: w.dtype.to_string(),
    };
    match w.dtype {
        DType::F32 | DType::Bf16 => packer.floats(&w.tensor, &w.shape, w.dtype, out.as_mut())?,
        DType::I32 => packer.integers(&w.tensor, &w.shape, experts, out.as_mut())?,
        DType::Packed(RowFormat::Fp8) => match w.shape[..] {
            [rows, c] => packer.table(&w.tensor, [rows, c], out.as_mut())?,
            _ => return Err(unsupported()),
        },
        DType::Packed(_) => return Err(unsupported()),
        DType::Weight(format) => match w.shape[..] {
            [n, k] => matrices(&mut packer, format, w, 1, [n, k], out.as_mut())?,
            [experts, n, k] => matrices(&mut packer, format, w, experts, [n, k], out.as_mut())?,
            _ => return Err(unsupported()),
        },
    }
    Ok(out)
}

fn matrices(
    packer: &mut Packer<'_>,
    format: WeightFormat,
    w: &Weight,
    count: u64,
    [n, k]: [u64; 2],
    out: &mut [u8],
) -> Result<(), WeightError> {
    let (per_data, per_scale) = (format.data_bytes(n, k) as usize, format.scale_bytes(n, k) as usize);
    let (data, scales) = out.split_at_mut(per_data * count as usize);
    for (e, data) in data.chunks_exact_mut(per_data).enumerate() {
        let name = w.tensor.replace("{e}", &e.to_string());
        packer.matrix(format, &name, [n, k], data, &mut scales[e * per_scale..(e + 1) * per_scale])?;
    }
    Ok(())
}
