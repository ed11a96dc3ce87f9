//! Bit-exact scalar conversions of the small float formats, and packing of rows and weights.
//!
//! Rounding is to nearest with ties to the even code, and saturates. These functions define what kernels
//! must store; they work in f32 exactly as written, since a quantiser is discontinuous.

use crate::dtype::{RowFormat, WeightFormat};

/// Largest finite E4M3 value.
pub const E4M3_MAX: f32 = 448.0;
/// Smallest group maximum of an `fp8` scale.
pub const FP8_AMAX_FLOOR: f32 = 1e-4;
/// Smallest group maximum of an `mxfp4` scale: `6 * 2^-126`.
pub const MXFP4_AMAX_FLOOR: f32 = 6.0 * f32::MIN_POSITIVE;
/// Smallest group maximum of an `fp4` scale: `6 * 2^-9`.
pub const FP4_AMAX_FLOOR: f32 = 6.0 / 512.0;

/// Values of the 16 E2M1 codes (bit 3 is the sign).
pub const E2M1: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Values of the 256 E4M3 bytes (`fn` variant: no infinity, 0x7F and 0xFF are NaN).
pub const E4M3: [f32; 256] = e4m3_table();

const fn e4m3_table() -> [f32; 256] {
    let mut table = [0.0f32; 256];
    let mut code = 0;
    while code < 256 {
        let (exponent, mantissa) = ((code as u32 >> 3) & 15, code as u32 & 7);
        let magnitude = match (exponent, mantissa) {
            (15, 7) => f32::NAN,
            (0, m) => m as f32 / 512.0,
            (e, m) => f32::from_bits(((e + 120) << 23) | (m << 20)),
        };
        table[code] = if code >= 128 { -magnitude } else { magnitude };
        code += 1;
    }
    table
}

/// A slice whose length does not fit its format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} needs a length of {want}, not {got}")]
pub struct FormatError {
    /// Which slice.
    pub what: &'static str,
    /// Length it must have.
    pub want: usize,
    /// Length it has.
    pub got: usize,
}

fn need(what: &'static str, want: usize, got: usize) -> Result<(), FormatError> {
    if want == got { Ok(()) } else { Err(FormatError { what, want, got }) }
}

/// E2M1 code of a float; NaN gives +6.
pub fn e2m1_encode(x: f32) -> u8 {
    let a = x.abs();
    let magnitude = match a {
        _ if a <= 0.25 => 0,
        _ if a < 0.75 => 1,
        _ if a <= 1.25 => 2,
        _ if a < 1.75 => 3,
        _ if a <= 2.5 => 4,
        _ if a < 3.5 => 5,
        _ if a <= 5.0 => 6,
        _ => 7,
    };
    if x.is_sign_negative() && !x.is_nan() { magnitude | 8 } else { magnitude }
}

/// Value of an E2M1 code (the low 4 bits).
pub fn e2m1_decode(code: u8) -> f32 {
    E2M1[usize::from(code & 15)]
}

/// E4M3 byte of a float; NaN keeps its sign.
pub fn e4m3_encode(x: f32) -> u8 {
    let a = x.abs();
    let magnitude = if x.is_nan() {
        0x7F
    } else if a >= E4M3_MAX {
        0x7E
    } else if a < 1.0 / 64.0 {
        // Subnormals are multiples of 2^-9; the scaling is exact. 8 is the smallest normal's code.
        (a * 512.0).round_ties_even() as u8
    } else {
        let bits = a.to_bits();
        let rounded = (bits + 0x7_FFFF + ((bits >> 20) & 1)) >> 20;
        (rounded - (120 << 3)).min(0x7E) as u8
    };
    if x.is_sign_negative() { magnitude | 0x80 } else { magnitude }
}

/// Value of an E4M3 byte.
pub fn e4m3_decode(code: u8) -> f32 {
    E4M3[usize::from(code)]
}

/// UE8M0 code of the smallest power of two that is at least `x`, for positive `x`; 255 (NaN) above 2^127.
pub fn ue8m0_ceil(x: f32) -> u8 {
    let bits = x.to_bits() & 0x7FFF_FFFF;
    let code = (bits >> 23) + u32::from(bits & 0x7F_FFFF != 0);
    // Subnormals up to 2^-127 are code 0.
    if bits <= 0x40_0000 { 0 } else { code as u8 }
}

/// `2^(code - 127)`; 255 is NaN and 0 the subnormal 2^-127.
pub fn ue8m0_decode(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(0x40_0000),
        255 => f32::NAN,
        c => f32::from_bits(u32::from(c) << 23),
    }
}

/// Rounds to the nearest bfloat16, ties to even; NaN stays NaN.
pub fn bf16_round(x: f32) -> f32 {
    half::bf16::from_f32(x).to_f32()
}

fn amax(x: &[f32], floor: f32) -> f32 {
    x.iter().fold(floor, |m, v| m.max(v.abs()))
}

/// UE8M0 scale of a group stored in E4M3.
pub fn fp8_scale(x: &[f32]) -> u8 {
    ue8m0_ceil(amax(x, FP8_AMAX_FLOOR) * (1.0f32 / 448.0))
}

/// UE8M0 scale of a group stored in E2M1.
pub fn mxfp4_scale(x: &[f32]) -> u8 {
    ue8m0_ceil(amax(x, MXFP4_AMAX_FLOOR) * (1.0f32 / 6.0))
}

/// E4M3 scale of a group stored in E2M1.
pub fn fp4_scale(x: &[f32]) -> u8 {
    e4m3_encode(amax(x, FP4_AMAX_FLOOR) / 6.0)
}

fn pack_e4m3(x: &[f32], scale: f32, codes: &mut [u8]) {
    for (code, v) in codes.iter_mut().zip(x) {
        *code = e4m3_encode(v / scale);
    }
}

/// Two codes a byte, low nibble first; an odd end leaves the high nibble 0.
fn pack_e2m1(x: &[f32], scale: f32, bytes: &mut [u8]) {
    for (byte, pair) in bytes.iter_mut().zip(x.chunks(2)) {
        let high = pair.get(1).map_or(0, |v| e2m1_encode(v / scale));
        *byte = e2m1_encode(pair[0] / scale) | (high << 4);
    }
}

fn pack_bf16(x: &[f32], out: &mut [u8]) {
    for (bytes, v) in out.chunks_exact_mut(2).zip(x) {
        bytes.copy_from_slice(&half::bf16::from_f32(*v).to_le_bytes());
    }
}

fn unpack_e4m3(codes: &[u8], scale: f32, out: &mut [f32]) {
    for (v, code) in out.iter_mut().zip(codes) {
        *v = E4M3[usize::from(*code)] * scale;
    }
}

fn unpack_e2m1(bytes: &[u8], scale: f32, out: &mut [f32]) {
    for (pair, byte) in out.chunks_mut(2).zip(bytes) {
        pair[0] = E2M1[usize::from(byte & 15)] * scale;
        if let Some(v) = pair.get_mut(1) {
            *v = E2M1[usize::from(byte >> 4)] * scale;
        }
    }
}

fn unpack_f32(bytes: &[u8], out: &mut [f32]) {
    for (v, b) in out.iter_mut().zip(bytes.chunks_exact(4)) {
        *v = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    }
}

fn unpack_bf16(bytes: &[u8], out: &mut [f32]) {
    for (v, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
        *v = half::bf16::from_le_bytes([b[0], b[1]]).to_f32();
    }
}

/// Packs one row of `x.len()` channels into `out`, of [`RowFormat::row_bytes`].
///
/// # Errors
/// `out` has another length.
pub fn pack_row(format: RowFormat, x: &[f32], out: &mut [u8]) -> Result<(), FormatError> {
    let channels = x.len() as u64;
    need("a packed row", format.row_bytes(channels) as usize, out.len())?;
    let (data, scales) = out.split_at_mut(format.data_bytes(channels) as usize);
    match format {
        RowFormat::F32 => {
            for (bytes, v) in data.chunks_exact_mut(4).zip(x) {
                bytes.copy_from_slice(&v.to_le_bytes());
            }
        }
        RowFormat::Bf16 => pack_bf16(x, data),
        RowFormat::Fp8 => {
            for ((x, codes), scale) in x.chunks(32).zip(data.chunks_mut(32)).zip(scales) {
                *scale = fp8_scale(x);
                pack_e4m3(x, ue8m0_decode(*scale), codes);
            }
        }
        RowFormat::MxFp4 => {
            for ((x, codes), scale) in x.chunks(32).zip(data.chunks_mut(16)).zip(scales) {
                *scale = mxfp4_scale(x);
                pack_e2m1(x, ue8m0_decode(*scale), codes);
            }
        }
        RowFormat::Fp4 => {
            for ((x, codes), scale) in x.chunks(16).zip(data.chunks_mut(8)).zip(scales) {
                *scale = fp4_scale(x);
                pack_e2m1(x, e4m3_decode(*scale), codes);
            }
        }
        RowFormat::Fp8Rope { rope } => {
            let quantised = x.len().saturating_sub(usize::from(rope));
            let (x, rotary) = x.split_at(quantised);
            let (codes, halves) = data.split_at_mut(quantised);
            scales.fill(0);
            for ((x, codes), scale) in x.chunks(64).zip(codes.chunks_mut(64)).zip(scales) {
                *scale = fp8_scale(x);
                pack_e4m3(x, ue8m0_decode(*scale), codes);
            }
            pack_bf16(rotary, halves);
        }
    }
    Ok(())
}

/// Decodes one packed row of `out.len()` channels.
///
/// # Errors
/// `row` has a length other than [`RowFormat::row_bytes`].
pub fn unpack_row(format: RowFormat, row: &[u8], out: &mut [f32]) -> Result<(), FormatError> {
    let channels = out.len() as u64;
    need("a packed row", format.row_bytes(channels) as usize, row.len())?;
    let (data, scales) = row.split_at(format.data_bytes(channels) as usize);
    match format {
        RowFormat::F32 => unpack_f32(data, out),
        RowFormat::Bf16 => unpack_bf16(data, out),
        RowFormat::Fp8 => {
            for ((out, codes), scale) in out.chunks_mut(32).zip(data.chunks(32)).zip(scales) {
                unpack_e4m3(codes, ue8m0_decode(*scale), out);
            }
        }
        RowFormat::MxFp4 => {
            for ((out, codes), scale) in out.chunks_mut(32).zip(data.chunks(16)).zip(scales) {
                unpack_e2m1(codes, ue8m0_decode(*scale), out);
            }
        }
        RowFormat::Fp4 => {
            for ((out, codes), scale) in out.chunks_mut(16).zip(data.chunks(8)).zip(scales) {
                unpack_e2m1(codes, e4m3_decode(*scale), out);
            }
        }
        RowFormat::Fp8Rope { rope } => {
            let quantised = out.len().saturating_sub(usize::from(rope));
            let (out, rotary) = out.split_at_mut(quantised);
            let (codes, halves) = data.split_at(quantised);
            for ((out, codes), scale) in out.chunks_mut(64).zip(codes.chunks(64)).zip(scales) {
                unpack_e4m3(codes, ue8m0_decode(*scale), out);
            }
            unpack_bf16(halves, rotary);
        }
    }
    Ok(())
}

fn check_weight(format: WeightFormat, data: usize, scales: usize, n: u64, k: u64) -> Result<(), FormatError> {
    need("the data of a weight", format.data_bytes(n, k) as usize, data)?;
    need("the scales of a weight", format.scale_bytes(n, k) as usize, scales)
}

/// Decodes row `row` of an `[n, k]` weight into `out`, of `k` floats.
///
/// # Errors
/// A slice of the wrong length, or a row outside the matrix.
pub fn decode_weight_row(
    format: WeightFormat,
    data: &[u8],
    scales: &[u8],
    n: usize,
    k: usize,
    row: usize,
    out: &mut [f32],
) -> Result<(), FormatError> {
    check_weight(format, data.len(), scales.len(), n as u64, k as u64)?;
    need("a decoded weight row", k, out.len())?;
    if row >= n {
        return Err(FormatError { what: "a weight with that row", want: row + 1, got: n });
    }
    let row_bytes = format.data_bytes(1, k as u64) as usize;
    let codes = &data[row * row_bytes..(row + 1) * row_bytes];
    match format {
        WeightFormat::F32 => unpack_f32(codes, out),
        WeightFormat::Bf16 => unpack_bf16(codes, out),
        WeightFormat::Fp8 { tile } => {
            let tile = usize::from(tile).max(1);
            let per_row = k.div_ceil(tile);
            let scales = &scales[row / tile * per_row..(row / tile + 1) * per_row];
            for ((out, codes), scale) in out.chunks_mut(tile).zip(codes.chunks(tile)).zip(scales) {
                unpack_e4m3(codes, ue8m0_decode(*scale), out);
            }
        }
        WeightFormat::Fp4 => {
            let per_row = k.div_ceil(32);
            let scales = &scales[row * per_row..(row + 1) * per_row];
            for ((out, codes), scale) in out.chunks_mut(32).zip(codes.chunks(16)).zip(scales) {
                unpack_e2m1(codes, ue8m0_decode(*scale), out);
            }
        }
    }
    Ok(())
}

/// Decodes a whole weight of `matrices` matrices `[n, k]`: all data first, then all scales.
///
/// # Errors
/// `bytes` has another length.
pub fn decode_weight(
    format: WeightFormat,
    bytes: &[u8],
    matrices: usize,
    n: usize,
    k: usize,
) -> Result<Vec<f32>, FormatError> {
    let per_data = format.data_bytes(n as u64, k as u64) as usize;
    let per_scale = format.scale_bytes(n as u64, k as u64) as usize;
    need("a weight", matrices.saturating_mul(per_data + per_scale), bytes.len())?;
    let (data, scales) = bytes.split_at(matrices * per_data);
    let mut out = vec![0.0; matrices * n * k];
    for (i, out) in out.chunks_exact_mut(k.max(1)).enumerate() {
        let (m, row) = (i / n, i % n);
        let data = &data[m * per_data..(m + 1) * per_data];
        let scales = &scales[m * per_scale..(m + 1) * per_scale];
        decode_weight_row(format, data, scales, n, k, row, out)?;
    }
    Ok(out)
}

/// Stores an `[n, k]` matrix in a weight format: data, then scales.
///
/// # Errors
/// `x` does not have `n * k` floats.
pub fn encode_weight(format: WeightFormat, n: usize, k: usize, x: &[f32]) -> Result<Vec<u8>, FormatError> {
    need("a weight matrix", n.saturating_mul(k), x.len())?;
    let mut bytes = vec![0u8; format.bytes(n as u64, k as u64) as usize];
    let (data, scales) = bytes.split_at_mut(format.data_bytes(n as u64, k as u64) as usize);
    if k == 0 {
        return Ok(bytes);
    }
    match format {
        WeightFormat::F32 => pack_row(RowFormat::F32, x, data)?,
        WeightFormat::Bf16 => pack_bf16(x, data),
        WeightFormat::Fp8 { tile } => encode_tiles(usize::from(tile).max(1), k, x, data, scales),
        WeightFormat::Fp4 => {
            let (row_bytes, per_row) = (k.div_ceil(2), k.div_ceil(32));
            let rows = x.chunks(k).zip(data.chunks_mut(row_bytes)).zip(scales.chunks_mut(per_row));
            for ((x, codes), scales) in rows {
                for ((x, codes), scale) in x.chunks(32).zip(codes.chunks_mut(16)).zip(scales) {
                    *scale = mxfp4_scale(x);
                    pack_e2m1(x, ue8m0_decode(*scale), codes);
                }
            }
        }
    }
    Ok(bytes)
}

fn encode_tiles(tile: usize, k: usize, x: &[f32], data: &mut [u8], scales: &mut [u8]) {
    let bands = x.chunks(tile * k).zip(data.chunks_mut(tile * k)).zip(scales.chunks_mut(k.div_ceil(tile)));
    for ((x, codes), scales) in bands {
        for (j, scale) in scales.iter_mut().enumerate() {
            let columns = j * tile..(j * tile + tile).min(k);
            let largest = x.chunks(k).fold(0.0f32, |m, row| m.max(amax(&row[columns.clone()], 0.0)));
            *scale = fp8_scale(&[largest]);
            for (x, codes) in x.chunks(k).zip(codes.chunks_mut(k)) {
                pack_e4m3(&x[columns.clone()], ue8m0_decode(*scale), &mut codes[columns.clone()]);
            }
        }
    }
}
