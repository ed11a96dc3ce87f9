//! Random weights: the same from the same seed on every machine, each weight on its own, of sane size.
//!
//! What a weight holds is said by a [`Fill`]: which numbers of a stream of random numbers make which bytes. Any of
//! them can be had without those before it, so threads, and a GPU, make a weight in any order.
//!
//! Matrices have variance about `1/k`, so that a linear keeps the size of its input; vectors that scale a
//! normalised row are around 1, biases around 0. No code is a NaN.

use super::{WeightError, weight_bytes};
use crate::memory::Bytes;
use dsc_ir::dtype::{DType, RowFormat, WeightFormat};
use dsc_ir::manifest::Weight;
use rayon::prelude::*;

/// What the state of [`Rng`] grows by.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

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
        let bits = self.draw(0);
        self.0 = self.0.wrapping_add(GAMMA);
        bits
    }

    /// What the call of [`Rng::next`] after `i` others would give.
    fn draw(&self, i: u64) -> u64 {
        let state = self.0.wrapping_add(GAMMA.wrapping_mul(i.wrapping_add(1)));
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`, which must be positive.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// Uniform in `-1 .. 1`.
    #[cfg(test)]
    pub fn unit(&mut self) -> f32 {
        unit(self.next())
    }
}

/// Uniform in `-1 .. 1`; exact, since 24 bits fit an f32.
fn unit(bits: u64) -> f32 {
    (bits >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

/// Size that weights of `k` inputs get: the standard deviation of uniform values is `a / sqrt(3)`.
fn amplitude(k: u64) -> f32 {
    (3.0 / k.max(1) as f32).sqrt()
}

/// A weight's bytes.
pub(crate) fn weight(seed: u64, w: &Weight, experts: Option<u64>) -> Result<Bytes, WeightError> {
    let mut out = Bytes::zeroed(weight_bytes(w))?;
    match fill(seed, w) {
        Some(fill) => fill.write(out.as_mut()),
        None => integers(out.as_mut(), w, experts, &mut stream(seed, w)),
    }
    Ok(out)
}

fn stream(seed: u64, w: &Weight) -> Rng {
    let layer = w.layer.map_or(String::new(), |l| l.to_string());
    Rng::new(seed, &format!("{layer}/{}", w.name))
}

/// How a weight of floats or codes is made; integers have no such form.
pub(crate) fn fill(seed: u64, w: &Weight) -> Option<Fill> {
    let bytes = weight_bytes(w);
    let k = w.shape.last().copied().unwrap_or(1);
    let parts = match w.dtype {
        DType::F32 => vec![Part::whole(Kind::F32(value_rule(w)), 0, bytes, 0)],
        DType::Bf16 => vec![Part::whole(Kind::Bf16(value_rule(w)), 0, bytes, 0)],
        DType::I32 => return None,
        DType::Packed(f) => rows(f, k, bytes),
        DType::Weight(f) => matrices(f, w, k, bytes),
    };
    Some(Fill { stream: stream(seed, w), parts })
}

/// `mean + amplitude * unit`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rule {
    pub mean: f32,
    pub amplitude: f32,
}

impl Rule {
    fn value(self, bits: u64) -> f32 {
        self.mean + self.amplitude * unit(bits)
    }
}

/// What a random number makes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    /// One f32.
    F32(Rule),
    /// One bf16.
    Bf16(Rule),
    /// Eight random bytes.
    Bits,
    /// Eight E4M3 codes of magnitude 1 to below 4: sign, exponent 7 or 8, any mantissa.
    E4m3,
    /// One UE8M0 code: `middle` or the one below, so that neighbours differ.
    Ue8m0 { middle: u8 },
    /// Eight E4M3 scales of 0.25 to below 0.5.
    SmallScales,
}

impl Kind {
    /// Bytes that a random number makes; fewer at the end of a row.
    pub fn bytes(self) -> u64 {
        match self {
            Kind::F32(_) => 4,
            Kind::Bf16(_) => 2,
            Kind::Ue8m0 { .. } => 1,
            Kind::Bits | Kind::E4m3 | Kind::SmallScales => 8,
        }
    }

    fn make(self, bits: u64, out: &mut [u8]) {
        let word = |x: u64, out: &mut [u8]| out.copy_from_slice(&x.to_le_bytes()[..out.len()]);
        match self {
            Kind::F32(rule) => word(rule.value(bits).to_bits().into(), out),
            Kind::Bf16(rule) => word(half::bf16::from_f32(rule.value(bits)).to_bits().into(), out),
            Kind::Bits => word(bits, out),
            // Exponent 7, and 8 where bit 4 is set: nothing carries into the next byte.
            Kind::E4m3 => word((bits & (EACH * 0x87)) | (EACH * 0x38 + ((bits >> 4) & EACH) * 8), out),
            Kind::Ue8m0 { middle } => word(u64::from(middle) - 1 + bits % 2, out),
            Kind::SmallScales => word((bits & (EACH * 7)) | (EACH * 0x28), out),
        }
    }
}

/// A one in each byte.
const EACH: u64 = 0x0101_0101_0101_0101;

/// Equally long runs of bytes at equal distances, all of one kind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Part {
    pub kind: Kind,
    /// First byte.
    pub offset: u64,
    /// Bytes of each run.
    pub bytes: u64,
    /// Runs.
    pub rows: u64,
    /// Bytes from one run to the next.
    pub stride: u64,
    /// The first random number of the first run.
    pub draw: u64,
    /// Random numbers from one run's first to the next one's.
    pub draws: u64,
}

impl Part {
    fn whole(kind: Kind, offset: u64, bytes: u64, draw: u64) -> Part {
        Part { kind, offset, bytes, rows: 1, stride: bytes, draw, draws: 0 }
    }

    /// Random numbers of a run.
    pub fn draws_of_run(&self) -> u64 {
        self.bytes.div_ceil(self.kind.bytes())
    }

    /// Makes a piece of a run that starts with its random number `first`.
    fn make(&self, stream: &Rng, first: u64, out: &mut [u8]) {
        for (i, out) in (0..).zip(out.chunks_mut(self.kind.bytes() as usize)) {
            self.kind.make(stream.draw(first + i), out);
        }
    }

    fn write(&self, stream: &Rng, all: &mut [u8]) {
        if self.bytes == 0 || self.rows == 0 {
            return;
        }
        let out = &mut all[self.offset as usize..];
        if self.rows == 1 {
            let piece = DRAWS_OF_PIECE * self.kind.bytes();
            let pieces = out[..self.bytes as usize].par_chunks_mut(piece as usize).enumerate();
            return pieces.for_each(|(i, out)| self.make(stream, self.draw + i as u64 * DRAWS_OF_PIECE, out));
        }
        let rows = (DRAWS_OF_PIECE / self.draws_of_run()).max(1);
        let pieces = out.par_chunks_mut((rows * self.stride) as usize).enumerate();
        pieces.for_each(|(i, out)| {
            let runs = out.chunks_mut(self.stride as usize);
            for (row, out) in (i as u64 * rows..self.rows).zip(runs) {
                self.make(stream, self.draw + row * self.draws, &mut out[..self.bytes as usize]);
            }
        });
    }
}

/// Random numbers that one thread makes at a time.
const DRAWS_OF_PIECE: u64 = 1 << 15;

/// How contents are made from a stream of random numbers. Bytes of no part are zero.
#[derive(Debug, Clone)]
pub(crate) struct Fill {
    stream: Rng,
    pub parts: Vec<Part>,
}

impl Fill {
    /// State of the stream: [`Rng`] has what a number is made of.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))] // for GPUs
    pub fn state(&self) -> u64 {
        self.stream.0
    }

    /// Makes the contents; `out` is zeroed and has the size that the fill was made for.
    pub fn write(&self, out: &mut [u8]) {
        self.parts.iter().for_each(|p| p.write(&self.stream, out));
    }
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

/// UE8M0 codes around `target / rms`.
fn ue8m0(target: f32, rms: f32) -> Kind {
    Kind::Ue8m0 { middle: (127.0 + (target / rms).log2().round()).clamp(2.0, 254.0) as u8 }
}

/// Root of the mean square of the E4M3 codes above.
const E4M3_RMS: f32 = 2.2;
/// Root of the mean square of all E2M1 codes.
const E2M1_RMS: f32 = 2.9;

fn matrices(format: WeightFormat, w: &Weight, k: u64, bytes: u64) -> Vec<Part> {
    let rule = Rule { mean: 0.0, amplitude: amplitude(k) };
    let std = rule.amplitude / 3f32.sqrt();
    let n = w.shape.iter().rev().nth(1).copied().unwrap_or(1);
    let count: u64 = w.shape.iter().rev().skip(2).product();
    let data = format.data_bytes(n, k) * count;
    let coded = |kind: Kind, rms| {
        let data = Part::whole(kind, 0, data, 0);
        vec![data, Part::whole(ue8m0(std, rms), data.bytes, bytes - data.bytes, data.draws_of_run())]
    };
    match format {
        WeightFormat::F32 => vec![Part::whole(Kind::F32(rule), 0, data, 0)],
        WeightFormat::Bf16 => vec![Part::whole(Kind::Bf16(rule), 0, data, 0)],
        WeightFormat::Fp8 { .. } => coded(Kind::E4m3, E4M3_RMS),
        WeightFormat::Fp4 => coded(Kind::Bits, E2M1_RMS),
    }
}

/// Packed rows of unit size: codes, then scales, row by row.
fn rows(format: RowFormat, c: u64, bytes: u64) -> Vec<Part> {
    let (row, data) = (format.row_bytes(c).max(1), format.data_bytes(c));
    let unit = Rule { mean: 0.0, amplitude: 1.0 };
    let scales = row.saturating_sub(data);
    let runs = match format {
        RowFormat::F32 => vec![(Kind::F32(unit), data)],
        RowFormat::Bf16 => vec![(Kind::Bf16(unit), data)],
        RowFormat::Fp8 => vec![(Kind::E4m3, data), (ue8m0(1.0, E4M3_RMS), scales)],
        RowFormat::MxFp4 => vec![(Kind::Bits, data), (ue8m0(1.0, E2M1_RMS), scales)],
        RowFormat::Fp4 => vec![(Kind::Bits, data), (Kind::SmallScales, scales)],
        RowFormat::Fp8Rope { rope } => {
            let quantised = c.saturating_sub(u64::from(rope));
            let halves = (Kind::Bf16(unit), data - quantised);
            vec![(Kind::E4m3, quantised), halves, (ue8m0(1.0, E4M3_RMS), quantised.div_ceil(64))]
        }
    };
    let (mut offset, mut draw) = (0, 0);
    let mut parts = Vec::with_capacity(runs.len());
    for (kind, run) in runs {
        let part = Part { kind, offset, bytes: run, rows: bytes / row, stride: row, draw, draws: 0 };
        (offset, draw) = (offset + run, draw + part.draws_of_run());
        parts.push(part);
    }
    parts.iter_mut().for_each(|p| p.draws = draw);
    parts
}

/// Random bytes of an activation or state, for checks.
pub(crate) fn tensor(dtype: DType, c: u64, out: &mut [u8], stream: Rng) {
    let unit = Rule { mean: 0.0, amplitude: 1.5 };
    let bytes = out.len() as u64;
    let parts = match dtype {
        DType::F32 => vec![Part::whole(Kind::F32(unit), 0, bytes, 0)],
        DType::Bf16 => vec![Part::whole(Kind::Bf16(unit), 0, bytes, 0)],
        DType::Packed(f) => rows(f, c, bytes),
        DType::I32 | DType::Weight(_) => Vec::new(),
    };
    Fill { stream, parts }.write(out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_can_be_had_in_any_order() {
        let (mut rng, stream) = (Rng::new(5, "x"), Rng::new(5, "x"));
        let in_order: Vec<u64> = (0..4).map(|_| rng.next()).collect();
        assert_eq!((0..4).map(|i| stream.draw(i)).collect::<Vec<_>>(), in_order);
    }

    /// Every format, at sizes that leave pieces and rows unfilled, against one number after the other.
    #[test]
    fn fills_take_their_numbers_row_by_row() {
        let rope = RowFormat::Fp8Rope { rope: 64 };
        for format in [RowFormat::F32, RowFormat::Bf16, RowFormat::Fp8, RowFormat::MxFp4, RowFormat::Fp4, rope] {
            let c = 192;
            let row = format.row_bytes(c);
            let mut out = vec![0; (row * 500) as usize];
            let stream = Rng::new(1, "rows");
            let fill = Fill { stream: stream.clone(), parts: rows(format, c, out.len() as u64) };
            fill.write(&mut out);
            let mut rng = stream;
            for row in out.chunks_exact(row as usize) {
                for part in &fill.parts {
                    let run = &row[part.offset as usize..(part.offset + part.bytes) as usize];
                    for got in run.chunks(part.kind.bytes() as usize) {
                        let mut want = vec![0; got.len()];
                        part.kind.make(rng.next(), &mut want);
                        assert_eq!(got, want, "{format:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn codes_keep_to_their_ranges() {
        let mut rng = Rng::new(2, "codes");
        for _ in 0..100 {
            let (bits, mut codes, mut scales, mut scale) = (rng.next(), [0; 8], [0; 8], [0]);
            Kind::E4m3.make(bits, &mut codes);
            assert!(codes.iter().all(|c| matches!(c & 0x78, 0x38 | 0x40)));
            Kind::SmallScales.make(bits, &mut scales);
            assert!(scales.iter().all(|s| (0x28..0x30).contains(s)));
            Kind::Ue8m0 { middle: 120 }.make(bits, &mut scale);
            assert!(matches!(scale[0], 119 | 120));
        }
    }
}
