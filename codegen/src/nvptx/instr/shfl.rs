//! Exchange of values between the threads of a warp.

use super::super::builder::KernelBuilder;
use inkwell::values::{FloatValue, IntValue};

impl<'c> KernelBuilder<'c> {
    /// `shfl.sync.bfly.b32`: the value of the lane whose number differs by `mask`; all 32 lanes take part.
    /// PTX ISA 9.0, 9.7.9 "Data Movement and Conversion Instructions: shfl.sync".
    pub(in crate::nvptx) fn shuffle(&self, value: IntValue<'c>, mask: u32) -> IntValue<'c> {
        let args = [self.i32(u32::MAX), value, self.i32(mask), self.i32(31)].map(Into::into);
        self.int_result(self.intrinsic("llvm.nvvm.shfl.sync.bfly.i32", &[], &args), self.i32_ty())
    }

    /// The same of an f32.
    pub(in crate::nvptx) fn shuffle_float(&self, value: FloatValue<'c>, mask: u32) -> FloatValue<'c> {
        self.as_float(self.shuffle(self.as_bits(value), mask))
    }

    /// The same of 64 bits, as two exchanges.
    pub(in crate::nvptx) fn shuffle_long(&self, value: IntValue<'c>, mask: u32) -> IntValue<'c> {
        let half = self.u64(32);
        let low = self.shuffle(self.trunc(value, self.i32_ty()), mask);
        let high = self.shuffle(self.trunc(self.shr(value, half), self.i32_ty()), mask);
        self.or(self.shl(self.zext(high, self.i64_ty()), half), self.zext(low, self.i64_ty()))
    }
}
