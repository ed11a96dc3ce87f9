//! Reads operands: four neighbouring channels of a row at a time, widened to f32, zeros outside the matrix.
//!
//! Nothing branches: an address outside is replaced by the start of the matrix, and what was read by zeros.

use super::super::builder::KernelBuilder;
use super::desc::RowOperand;
use dsc_ir::dtype::{RowFormat, WeightFormat};
use inkwell::IntPredicate;
use inkwell::values::{BasicValueEnum, FloatValue, IntValue, PointerValue};

/// Channels read together.
pub(super) const QUAD: u64 = 4;

/// How a matrix is stored.
#[derive(Clone, Copy)]
pub(super) enum Storage {
    F32,
    Bf16,
    /// E4M3 rows of `channels` side by side, each followed by its UE8M0 scales.
    Fp8Rows {
        channels: u64,
    },
    /// E4M3, and one UE8M0 scale per tile after the data.
    Fp8Tiles {
        tile: u64,
        scales_at: u64,
    },
    /// E2M1, and one UE8M0 scale per 32 after the data.
    Fp4 {
        scales_at: u64,
    },
}

impl Storage {
    pub(super) fn of_rows(x: RowOperand) -> Storage {
        match x {
            RowOperand::F32 => Storage::F32,
            RowOperand::Bf16 => Storage::Bf16,
            RowOperand::Fp8 { channels } => Storage::Fp8Rows { channels },
        }
    }

    pub(super) fn of_weight(format: WeightFormat, n: u64, k: u64) -> Storage {
        let scales_at = format.data_bytes(n, k);
        match format {
            WeightFormat::F32 => Storage::F32,
            WeightFormat::Bf16 => Storage::Bf16,
            WeightFormat::Fp8 { tile } => Storage::Fp8Tiles { tile: u64::from(tile), scales_at },
            WeightFormat::Fp4 => Storage::Fp4 { scales_at },
        }
    }
}

/// A matrix in device memory.
pub(super) struct Matrix<'c> {
    pub(super) base: PointerValue<'c>,
    pub(super) storage: Storage,
    /// Channels of a row as stored.
    pub(super) k: u64,
    /// Rows.
    pub(super) rows: IntValue<'c>,
}

impl<'c> Matrix<'c> {
    /// Whether four channels from a multiple of four on lie together, at an address aligned to their size.
    fn is_quad_aligned(&self) -> bool {
        let rows_fit = match self.storage {
            Storage::Fp8Rows { channels } => {
                channels.is_multiple_of(QUAD) && RowFormat::Fp8.row_bytes(channels).is_multiple_of(QUAD)
            }
            Storage::F32 | Storage::Bf16 | Storage::Fp8Tiles { .. } | Storage::Fp4 { .. } => true,
        };
        rows_fit && self.k.is_multiple_of(QUAD)
    }

    /// Channels `at .. at + 4` of `row`, where those beyond `end` are 0. `at` is a multiple of 4 beyond the start
    /// of a group, and so is a group's start if the matrix is aligned.
    pub(super) fn quad(
        &self,
        b: &KernelBuilder<'c>,
        row: IntValue<'c>,
        at: IntValue<'c>,
        end: IntValue<'c>,
        aligned: bool,
    ) -> [FloatValue<'c>; 4] {
        let row_ok = b.icmp(IntPredicate::SLT, row, self.rows);
        if aligned && self.is_quad_aligned() {
            let ok = b.and(row_ok, b.icmp(IntPredicate::SLT, at, end));
            let (row, at) = (b.select(ok, row, b.i64(0)), b.select(ok, at, b.i64(0)));
            let values = self.aligned_quad(b, row, at);
            return values.map(|v| b.select(ok, v, b.f32(0.0)));
        }
        [0, 1, 2, 3].map(|j| {
            let at = b.add(at, b.i64(j));
            let ok = b.and(row_ok, b.icmp(IntPredicate::SLT, at, end));
            let (row, at) = (b.select(ok, row, b.i64(0)), b.select(ok, at, b.i64(0)));
            b.select(ok, self.element(b, row, at), b.f32(0.0))
        })
    }

    /// Byte address of the datum of a channel, and of its scale.
    fn address(&self, b: &KernelBuilder<'c>, row: IntValue<'c>, at: IntValue<'c>) -> (IntValue<'c>, IntValue<'c>) {
        let times = |v, c| b.mul(v, b.u64(c));
        let over = |v, c| b.div(v, b.u64(c));
        let flat = || b.add(times(row, self.k), at);
        match self.storage {
            Storage::F32 => (times(flat(), 4), b.i64(0)),
            Storage::Bf16 => (times(flat(), 2), b.i64(0)),
            Storage::Fp8Rows { channels } => {
                let (packed, column) = (over(at, channels), b.rem(at, b.u64(channels)));
                let packed = b.add(times(row, self.k / channels), packed);
                let start = times(packed, RowFormat::Fp8.row_bytes(channels));
                (b.add(start, column), b.add(b.add(start, b.u64(channels)), over(column, RowFormat::Fp8.group())))
            }
            Storage::Fp8Tiles { tile, scales_at } => {
                let scale = b.add(times(over(row, tile), self.k.div_ceil(tile)), over(at, tile));
                (flat(), b.add(scale, b.u64(scales_at)))
            }
            Storage::Fp4 { scales_at } => {
                let scale = b.add(times(row, self.k.div_ceil(32)), over(at, 32));
                (b.add(times(row, self.k.div_ceil(2)), over(at, 2)), b.add(scale, b.u64(scales_at)))
            }
        }
    }

    fn int(&self, b: &KernelBuilder<'c>, bits: u32, at: IntValue<'c>, align: u32) -> IntValue<'c> {
        let ty = match bits {
            8 => b.i8_ty(),
            16 => b.i16_ty(),
            _ => b.i32_ty(),
        };
        b.zext(b.load(ty, b.offset(self.base, at), align).into_int_value(), b.i32_ty())
    }

    fn scale(&self, b: &KernelBuilder<'c>, at: IntValue<'c>) -> FloatValue<'c> {
        b.ue8m0_to_float(self.int(b, 8, at, 1))
    }

    fn aligned_quad(&self, b: &KernelBuilder<'c>, row: IntValue<'c>, at: IntValue<'c>) -> [FloatValue<'c>; 4] {
        let (datum, scale) = self.address(b, row, at);
        let vector = |element, align| {
            let value: BasicValueEnum<'c> = b.load(element, b.offset(self.base, datum), align);
            [0, 1, 2, 3].map(|j| b.lane(value, j))
        };
        let fields = |word: IntValue<'c>, width: u32| {
            let mask = b.i32((1 << width) - 1);
            [0, 1, 2, 3].map(|j| b.and(b.shr(word, b.i32(j * width)), mask))
        };
        match self.storage {
            Storage::F32 => vector(b.f32_ty().vec_type(4), 16).map(BasicValueEnum::into_float_value),
            Storage::Bf16 => {
                let word = |at| self.int(b, 32, at, 4);
                let (low, high) = (word(datum), word(b.add(datum, b.i64(4))));
                let shift = |w| b.as_float(b.shl(w, b.i32(16)));
                let mask = |w| b.as_float(b.and(w, b.i32(0xFFFF_0000)));
                [shift(low), mask(low), shift(high), mask(high)]
            }
            Storage::Fp8Rows { .. } | Storage::Fp8Tiles { .. } => {
                let scale = self.scale(b, scale);
                fields(self.int(b, 32, datum, 4), 8).map(|c| b.fmul(b.e4m3_to_float(c), scale))
            }
            Storage::Fp4 { .. } => {
                let scale = self.scale(b, scale);
                fields(self.int(b, 16, datum, 2), 4).map(|c| b.fmul(b.e2m1_to_float(c), scale))
            }
        }
    }

    fn element(&self, b: &KernelBuilder<'c>, row: IntValue<'c>, at: IntValue<'c>) -> FloatValue<'c> {
        let (datum, scale) = self.address(b, row, at);
        match self.storage {
            Storage::F32 => b.load(b.f32_ty(), b.offset(self.base, datum), 4).into_float_value(),
            Storage::Bf16 => b.bf16_to_float(self.int(b, 16, datum, 2)),
            Storage::Fp8Rows { .. } | Storage::Fp8Tiles { .. } => {
                b.fmul(b.e4m3_to_float(self.int(b, 8, datum, 1)), self.scale(b, scale))
            }
            Storage::Fp4 { .. } => {
                let byte = self.int(b, 8, datum, 1);
                let odd = b.trunc(b.and(at, b.i64(1)), b.i32_ty());
                let code = b.shr(byte, b.mul(odd, b.i32(4)));
                b.fmul(b.e2m1_to_float(code), self.scale(b, scale))
            }
        }
    }
}
