//! Conversions. PTX ISA 9.0, 9.7.9 "Data Movement and Conversion Instructions: cvt".

use super::super::builder::KernelBuilder;
use inkwell::values::{FloatValue, IntValue};

impl<'c> KernelBuilder<'c> {
    /// `cvt.rzi.s32.f32`: towards zero; saturates, and NaN gives 0.
    pub(in crate::nvptx) fn float_to_int(&self, a: FloatValue<'c>) -> IntValue<'c> {
        self.int_result(self.intrinsic("llvm.nvvm.f2i.rz", &[], &[a.into()]), self.i32_ty())
    }

    /// f32 to the bits of a bfloat16, to nearest even: `cvt.rn.bf16.f32` where there is one (sm_80), else integer
    /// operations.
    pub(in crate::nvptx) fn to_bf16(&self, a: FloatValue<'c>) -> IntValue<'c> {
        if self.arch >= 80 {
            let half = self.narrow(a, self.cx.bf16_type());
            return match self.ir.build_bit_cast(half, self.i16_ty(), "") {
                Ok(bits) => bits.into_int_value(),
                Err(e) => {
                    self.fail(e);
                    self.i16_ty().get_undef()
                }
            };
        }
        let bits = self.as_bits(a);
        let odd = self.and(self.shr(bits, self.i32(16)), self.i32(1));
        let rounded = self.shr(self.add(self.add(bits, self.i32(0x7FFF)), odd), self.i32(16));
        let is_number = self.fcmp(inkwell::FloatPredicate::OEQ, a, a);
        // The one NaN that cvt gives.
        self.trunc(self.select(is_number, rounded, self.i32(0x7FFF)), self.i16_ty())
    }

    /// The f32 of a bfloat16's bits, exact.
    pub(in crate::nvptx) fn bf16_to_float(&self, bits: IntValue<'c>) -> FloatValue<'c> {
        self.as_float(self.shl(self.zext(bits, self.i32_ty()), self.i32(16)))
    }

    /// The f32 of an E4M3 byte (zero-extended to 32 bits), exact. Its fields moved into place are the value times
    /// 2^-120, subnormals included.
    pub(in crate::nvptx) fn e4m3_to_float(&self, byte: IntValue<'c>) -> FloatValue<'c> {
        let magnitude = self.and(byte, self.i32(0x7F));
        let sign = self.shl(self.and(byte, self.i32(0x80)), self.i32(24));
        let fields = self.or(sign, self.shl(magnitude, self.i32(20)));
        let value = self.fmul(self.as_float(fields), self.f32(2f32.powi(120)));
        let is_nan = self.icmp(inkwell::IntPredicate::EQ, magnitude, self.i32(0x7F));
        self.select(is_nan, self.f32(f32::NAN), value)
    }

    /// The f32 of an E2M1 code (the low 4 bits of 32), exact; as above, times 2^-126.
    pub(in crate::nvptx) fn e2m1_to_float(&self, code: IntValue<'c>) -> FloatValue<'c> {
        let sign = self.shl(self.and(code, self.i32(8)), self.i32(28));
        let fields = self.or(sign, self.shl(self.and(code, self.i32(7)), self.i32(22)));
        self.fmul(self.as_float(fields), self.f32(2f32.powi(126)))
    }

    /// The f32 of a UE8M0 byte (zero-extended to 32 bits): 2^(code - 127), with 2^-127 for 0 and NaN for 255.
    pub(in crate::nvptx) fn ue8m0_to_float(&self, code: IntValue<'c>) -> FloatValue<'c> {
        let is = |c| self.icmp(inkwell::IntPredicate::EQ, code, self.i32(c));
        let bits = self.shl(code, self.i32(23));
        let bits = self.select(is(0), self.i32(0x40_0000), bits);
        self.as_float(self.select(is(255), self.i32(f32::NAN.to_bits()), bits))
    }
}
