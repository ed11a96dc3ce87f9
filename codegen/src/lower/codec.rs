//! The small float formats in integer operations: bit for bit what `dsc_ir::format` defines.

use crate::loops::{Builder, Cmp, FUn, IOp, Mem, Place, Var};
use dsc_ir::format::{FP4_AMAX_FLOOR, FP8_AMAX_FLOOR, MXFP4_AMAX_FLOOR};

/// How the scale of a group is stored and found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// UE8M0 for codes up to 448.
    Fp8,
    /// UE8M0 for codes up to 6.
    MxFp4,
    /// E4M3 for codes up to 6.
    Fp4,
}

impl Scale {
    /// Smallest group maximum.
    pub fn floor(self) -> f32 {
        match self {
            Scale::Fp8 => FP8_AMAX_FLOOR,
            Scale::MxFp4 => MXFP4_AMAX_FLOOR,
            Scale::Fp4 => FP4_AMAX_FLOOR,
        }
    }

    /// Value of a stored scale.
    pub fn decode(self, b: &mut Builder, code: Var) -> Var {
        match self {
            Scale::Fp8 | Scale::MxFp4 => ue8m0_decode(b, code),
            Scale::Fp4 => e4m3_decode(b, code),
        }
    }

    /// Stored scale of a group with this maximum.
    pub fn encode(self, b: &mut Builder, amax: Var) -> Var {
        match self {
            Scale::Fp8 => {
                let c = b.float(1.0 / 448.0);
                let x = b.fmul(amax, c);
                ue8m0_ceil(b, x)
            }
            Scale::MxFp4 => {
                let c = b.float(1.0 / 6.0);
                let x = b.fmul(amax, c);
                ue8m0_ceil(b, x)
            }
            Scale::Fp4 => {
                let six = b.float(6.0);
                let x = b.fdiv(amax, six);
                e4m3_encode(b, x)
            }
        }
    }
}

/// `a op c`.
pub fn int_c(b: &mut Builder, op: IOp, a: Var, c: i64) -> Var {
    let c = b.int(c);
    b.i(op, a, c)
}

fn cmp_c(b: &mut Builder, cmp: Cmp, a: Var, c: i64) -> Var {
    let c = b.int(c);
    b.cmp(cmp, a, c)
}

fn power_of_two(b: &mut Builder, exponent: u32) -> Var {
    b.float(f32::from_bits((exponent + 127) << 23))
}

/// Value of an E4M3 byte: its exponent and mantissa as those of a float, moved by `2^120`.
pub fn e4m3_decode(b: &mut Builder, code: Var) -> Var {
    let magnitude = int_c(b, IOp::And, code, 0x7F);
    let sign = int_c(b, IOp::And, code, 0x80);
    let (m, s) = (int_c(b, IOp::Shl, magnitude, 20), int_c(b, IOp::Shl, sign, 24));
    let bits = b.i(IOp::Or, m, s);
    let (small, unit) = (b.from_bits(bits), power_of_two(b, 120));
    let x = b.fmul(small, unit);
    let is_nan = cmp_c(b, Cmp::Eq, magnitude, 0x7F);
    let nan = b.float(f32::NAN);
    b.select(is_nan, nan, x)
}

/// Value of an E2M1 code (4 bits), likewise.
pub fn e2m1_decode(b: &mut Builder, code: Var) -> Var {
    let magnitude = int_c(b, IOp::And, code, 7);
    let sign = int_c(b, IOp::And, code, 8);
    let (m, s) = (int_c(b, IOp::Shl, magnitude, 22), int_c(b, IOp::Shl, sign, 28));
    let bits = b.i(IOp::Or, m, s);
    let (small, unit) = (b.from_bits(bits), power_of_two(b, 126));
    b.fmul(small, unit)
}

/// Value of a UE8M0 byte; codes 0 (subnormal) and 255 (NaN) need one more bit.
fn ue8m0_decode(b: &mut Builder, code: Var) -> Var {
    let next = b.iadd_c(code, 1);
    let wrapped = int_c(b, IOp::And, next, 255);
    let special = cmp_c(b, Cmp::Le, wrapped, 1);
    let (bit, zero) = (b.int(0x40_0000), b.int(0));
    let extra = b.select(special, bit, zero);
    let exponent = int_c(b, IOp::Shl, code, 23);
    let bits = b.i(IOp::Or, exponent, extra);
    b.from_bits(bits)
}

/// UE8M0 code of the smallest power of two that is at least `x`, for positive `x`.
fn ue8m0_ceil(b: &mut Builder, x: Var) -> Var {
    let bits = b.bits(x);
    let mantissa = int_c(b, IOp::And, bits, 0x7F_FFFF);
    let inexact = cmp_c(b, Cmp::Ne, mantissa, 0);
    let (one, zero) = (b.int(1), b.int(0));
    let up = b.select(inexact, one, zero);
    let exponent = int_c(b, IOp::Shr, bits, 23);
    let code = b.iadd(exponent, up);
    let tiny = cmp_c(b, Cmp::Le, bits, 0x40_0000);
    b.select(tiny, zero, code)
}

/// E4M3 byte of a float.
pub fn e4m3_encode(b: &mut Builder, x: Var) -> Var {
    let raw = b.bits(x);
    let bits = int_c(b, IOp::And, raw, 0x7FFF_FFFF);
    let normal = e4m3_normal(b, bits);
    let subnormal = e4m3_subnormal(b, x);
    let is_small = cmp_c(b, Cmp::Lt, bits, i64::from((1.0f32 / 64.0).to_bits()));
    let finite = b.select(is_small, subnormal, normal);
    let is_nan = cmp_c(b, Cmp::Gt, bits, 0x7F80_0000);
    let nan = b.int(0x7F);
    let magnitude = b.select(is_nan, nan, finite);
    let top = int_c(b, IOp::Shr, raw, 24);
    let sign = int_c(b, IOp::And, top, 0x80);
    b.i(IOp::Or, magnitude, sign)
}

/// Rounds the mantissa to 3 bits, ties to even, and saturates.
fn e4m3_normal(b: &mut Builder, bits: Var) -> Var {
    let last = int_c(b, IOp::Shr, bits, 20);
    let odd = int_c(b, IOp::And, last, 1);
    let up = b.iadd_c(bits, 0x7_FFFF);
    let up = b.iadd(up, odd);
    let code = int_c(b, IOp::Shr, up, 20);
    let code = b.iadd_c(code, -(120 << 3));
    int_c(b, IOp::Min, code, 0x7E)
}

/// Subnormals are multiples of `2^-9`; larger values are replaced by 0 so that the conversion is defined.
fn e4m3_subnormal(b: &mut Builder, x: Var) -> Var {
    let a = b.u(FUn::Abs, x);
    let limit = b.float(1.0 / 64.0);
    let small = b.cmp(Cmp::Lt, a, limit);
    let zero = b.float(0.0);
    let a = b.select(small, a, zero);
    let unit = b.float(512.0);
    let scaled = b.fmul(a, unit);
    let rounded = b.u(FUn::Rint, scaled);
    b.ftoi(rounded)
}

/// E2M1 code of a float: the number of boundaries that are not above it. NaN gives +6.
pub fn e2m1_encode(b: &mut Builder, x: Var) -> Var {
    let a = b.u(FUn::Abs, x);
    let (one, zero) = (b.int(1), b.int(0));
    let mut magnitude = zero;
    let boundaries = [
        (Cmp::Le, 0.25),
        (Cmp::Lt, 0.75),
        (Cmp::Le, 1.25),
        (Cmp::Lt, 1.75),
        (Cmp::Le, 2.5),
        (Cmp::Lt, 3.5),
        (Cmp::Le, 5.0),
    ];
    for (cmp, boundary) in boundaries {
        let boundary = b.float(boundary);
        let below = b.cmp(cmp, a, boundary);
        let step = b.select(below, zero, one);
        magnitude = b.iadd(magnitude, step);
    }
    let raw = b.bits(x);
    let top = int_c(b, IOp::Shr, raw, 28);
    let sign = int_c(b, IOp::And, top, 8);
    let is_number = b.cmp(Cmp::Eq, a, a);
    let sign = b.select(is_number, sign, zero);
    b.i(IOp::Or, magnitude, sign)
}

/// Largest of `m` and `|x|`, where NaN counts as nothing.
pub fn amax(b: &mut Builder, m: Var, x: Var) -> Var {
    let a = b.u(FUn::Abs, x);
    let above = b.cmp(Cmp::Gt, a, m);
    b.select(above, a, m)
}

/// The nearest bfloat16 of a float, ties to even.
pub fn bf16_round(b: &mut Builder, x: Var) -> Var {
    let bits = b.bits(x);
    let top = int_c(b, IOp::Shr, bits, 16);
    let odd = int_c(b, IOp::And, top, 1);
    let up = b.iadd_c(bits, 0x7FFF);
    let up = b.iadd(up, odd);
    let rounded = int_c(b, IOp::And, up, 0xFFFF_0000);
    let y = b.from_bits(rounded);
    let is_number = b.cmp(Cmp::Eq, x, x);
    b.select(is_number, y, x)
}

/// Scratch tables of decoded bytes. A CPU decodes panels by them; elsewhere bits are cheaper than memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tables {
    /// Value of each E4M3 byte.
    pub e4m3: Option<Place>,
    /// Both values of each byte of E2M1 codes, the low nibble first.
    pub e2m1: Option<Place>,
}

impl Tables {
    /// Fills a table of E4M3 bytes, of [`Tables::E4M3_BYTES`].
    pub fn fill_e4m3(b: &mut Builder, table: Place) {
        let n = b.int(256);
        b.lanes(n, |b, code| {
            let (x, at) = (e4m3_decode(b, code), b.imul_c(code, 4));
            b.store(table, at, Mem::F32, x);
        });
    }

    /// Fills a table of bytes of E2M1 codes, of [`Tables::E2M1_BYTES`].
    pub fn fill_e2m1(b: &mut Builder, table: Place) {
        let n = b.int(256);
        b.lanes(n, |b, byte| {
            let (high, at) = (int_c(b, IOp::Shr, byte, 4), b.imul_c(byte, 8));
            let (low, high) = (e2m1_decode(b, byte), e2m1_decode(b, high));
            let next = b.iadd_c(at, 4);
            b.store(table, at, Mem::F32, low);
            b.store(table, next, Mem::F32, high);
        });
    }

    /// Size of the table of E4M3 bytes.
    pub const E4M3_BYTES: u64 = 256 * 4;
    /// Size of the table of bytes of E2M1 codes.
    pub const E2M1_BYTES: u64 = 256 * 8;

    /// Value of an E4M3 byte.
    pub fn e4m3(&self, b: &mut Builder, code: Var) -> Var {
        let Some(table) = self.e4m3 else { return e4m3_decode(b, code) };
        let at = b.imul_c(code, 4);
        b.load(table, at, Mem::F32)
    }

    /// Both values of a byte of E2M1 codes.
    pub fn e2m1(&self, b: &mut Builder, byte: Var) -> [Var; 2] {
        let Some(table) = self.e2m1 else {
            let high = int_c(b, IOp::Shr, byte, 4);
            return [byte, high].map(|code| e2m1_decode(b, code));
        };
        let at = b.imul_c(byte, 8);
        let next = b.iadd_c(at, 4);
        [at, next].map(|at| b.load(table, at, Mem::F32))
    }
}
