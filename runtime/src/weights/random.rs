//! Random weights: the same from the same seed on every machine, each weight on its own, of sane size.
//!
//! Matrices have variance about `1/k`, so that a linear keeps the size of its input; vectors that scale a
//! normalised row are around 1, biases around 0. No code is a NaN.

use super::{WeightError, weight_bytes};
use crate::memory::Bytes;
use dsc_ir::dtype::{DType, RowFormat, WeightFormat};
use dsc_ir::manifest::Weight;

/// SplitMix64 (Steele, Lea & Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// A stream of its own for every seed and name.
    pub fn new(seed: u64, name: &str) -> Rng {
        // FNV-1a of the name.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        let mut rng = Rng(seed ^ hash);
        rng.next();
        rng
    }

    /// 64 random bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`, which must be positive.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// Uniform in `-1 .. 1`.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Size that weights of `k` inputs get: the standard deviation of uniform values is `a / sqrt(3)`.
fn amplitude(k: u64) -> f32 {
    (3.0 / k.max(1) as f32).sqrt()
}

/// A weight's bytes.
pub(crate) fn weight(seed: u64, w: &Weight, experts: Option<u64>) -> Result<Bytes, WeightError> {
    let layer = w.layer.map_or(String::new(), |l| l.to_string());
    let mut rng = Rng::new(seed, &format!("{layer}/{}", w.name));
    let mut out = Bytes::zeroed(weight_bytes(w))?;
    let k = w.shape.last().copied().unwrap_or(1);
    match w.dtype {
        DType::F32 => fill_f32(out.as_mut(), value_rule(w), &mut rng),
        DType::Bf16 => fill_bf16(out.as_mut(), value_rule(w), &mut rng),
        DType::I32 => integers(out.as_mut(), w, experts, &mut rng),
        DType::Packed(f) => rows(f, k, out.as_mut(), &mut rng),
        DType::Weight(f) => matrices(f, w, k, out.as_mut(), &mut rng),
    }
    Ok(out)
}

/// `mean + amplitude * unit`.
#[derive(Clone, Copy)]
struct Rule {
    mean: f32,
    amplitude: f32,
}

/// Norms scale a normalised row; scales of mixes, sinks, biases and tables are smaller.
fn value_rule(w: &Weight) -> Rule {
    let last = w.name.rsplit('.').next().unwrap_or(&w.name);
    let scales = last.contains("norm") || matches!(last, "q_weight" | "k_weight");
    match (scales, last) {
        (true, _) => Rule { mean: 1.0, amplitude: 0.25 },
        (_, "bias" | "bias_vl") => Rule { mean: 0.0, amplitude: 0.05 },
        (_, _) if last.ends_with("scale") => Rule { mean: 0.5, amplitude: 0.25 },
        _ => Rule { mean: 0.0, amplitude: 0.5 },
    }
}

fn fill_f32(out: &mut [u8], rule: Rule, rng: &mut Rng) {
    for b in out.chunks_exact_mut(4) {
        b.copy_from_slice(&(rule.mean + rule.amplitude * rng.unit()).to_le_bytes());
    }
}

fn fill_bf16(out: &mut [u8], rule: Rule, rng: &mut Rng) {
    for b in out.chunks_exact_mut(2) {
        b.copy_from_slice(&half::bf16::from_f32(rule.mean + rule.amplitude * rng.unit()).to_le_bytes());
    }
}

/// Expert ids of a hash table, distinct within a row.
fn integers(out: &mut [u8], w: &Weight, experts: Option<u64>, rng: &mut Rng) {
    let k = w.shape.last().copied().unwrap_or(1).max(1);
    let experts = experts.unwrap_or(k).max(k);
    for row in out.chunks_exact_mut(4 * k as usize) {
        let first = rng.below(experts);
        for (i, b) in row.chunks_exact_mut(4).enumerate() {
            b.copy_from_slice(&(((first + i as u64) % experts) as i32).to_le_bytes());
        }
    }
}

/// Random bits eight at a time.
fn bits(out: &mut [u8], rng: &mut Rng) {
    for chunk in out.chunks_mut(8) {
        let r = rng.next().to_le_bytes();
        let n = chunk.len();
        chunk.copy_from_slice(&r[..n]);
    }
}

/// E4M3 codes of magnitude 1 to below 4: sign, exponent 7 or 8, any mantissa.
fn e4m3(out: &mut [u8], rng: &mut Rng) {
    bits(out, rng);
    for b in out.iter_mut() {
        *b = (*b & 0x8F) | if *b & 0x10 == 0 { 7 << 3 } else { 8 << 3 };
    }
}

/// UE8M0 codes around `target / rms`, a binade up or down so that neighbours differ.
fn ue8m0(out: &mut [u8], target: f32, rms: f32, rng: &mut Rng) {
    let middle = 127.0 + (target / rms).log2().round();
    for b in out.iter_mut() {
        *b = (middle + rng.below(2) as f32 - 1.0).clamp(1.0, 254.0) as u8;
    }
}

/// Root of the mean square of the E4M3 codes above.
const E4M3_RMS: f32 = 2.2;
/// Root of the mean square of all E2M1 codes.
const E2M1_RMS: f32 = 2.9;

fn matrices(format: WeightFormat, w: &Weight, k: u64, out: &mut [u8], rng: &mut Rng) {
    let rule = Rule { mean: 0.0, amplitude: amplitude(k) };
    let std = rule.amplitude / 3f32.sqrt();
    let n = w.shape.iter().rev().nth(1).copied().unwrap_or(1);
    let count: u64 = w.shape.iter().rev().skip(2).product();
    let (data, scales) = out.split_at_mut((format.data_bytes(n, k) * count) as usize);
    match format {
        WeightFormat::F32 => fill_f32(data, rule, rng),
        WeightFormat::Bf16 => fill_bf16(data, rule, rng),
        WeightFormat::Fp8 { .. } => {
            e4m3(data, rng);
            ue8m0(scales, std, E4M3_RMS, rng);
        }
        WeightFormat::Fp4 => {
            bits(data, rng);
            ue8m0(scales, std, E2M1_RMS, rng);
        }
    }
}

/// Packed rows of unit size.
fn rows(format: RowFormat, c: u64, out: &mut [u8], rng: &mut Rng) {
    let (row, data) = (format.row_bytes(c) as usize, format.data_bytes(c) as usize);
    for out in out.chunks_exact_mut(row.max(1)) {
        let (codes, scales) = out.split_at_mut(data);
        let unit = Rule { mean: 0.0, amplitude: 1.0 };
        match format {
            RowFormat::F32 => fill_f32(codes, unit, rng),
            RowFormat::Bf16 => fill_bf16(codes, unit, rng),
            RowFormat::Fp8 => {
                e4m3(codes, rng);
                ue8m0(scales, 1.0, E4M3_RMS, rng);
            }
            RowFormat::MxFp4 => {
                bits(codes, rng);
                ue8m0(scales, 1.0, E2M1_RMS, rng);
            }
            RowFormat::Fp4 => {
                bits(codes, rng);
                // E4M3 scales of 0.25 to below 0.5.
                bits(scales, rng);
                scales.iter_mut().for_each(|s| *s = (5 << 3) | (*s & 7));
            }
            RowFormat::Fp8Rope { rope } => {
                let quantised = c.saturating_sub(u64::from(rope));
                let (codes, halves) = codes.split_at_mut(quantised as usize);
                e4m3(codes, rng);
                fill_bf16(halves, unit, rng);
                let used = quantised.div_ceil(64) as usize;
                ue8m0(&mut scales[..used], 1.0, E4M3_RMS, rng);
            }
        }
    }
}

/// Random bytes of an activation or state, for checks.
pub(crate) fn tensor(dtype: DType, c: u64, out: &mut [u8], rng: &mut Rng) {
    let unit = Rule { mean: 0.0, amplitude: 1.5 };
    match dtype {
        DType::F32 => fill_f32(out, unit, rng),
        DType::Bf16 => fill_bf16(out, unit, rng),
        DType::Packed(f) => rows(f, c, out, rng),
        DType::I32 | DType::Weight(_) => {}
    }
}
