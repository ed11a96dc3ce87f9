//! Floating-point instructions, rounding to nearest even, subnormals kept.

use super::super::builder::KernelBuilder;
use inkwell::values::FloatValue;

impl<'c> KernelBuilder<'c> {
    /// `fma.rn`: `a * b + c` rounded once. PTX ISA 9.0, 9.7.3 "Floating Point Instructions: fma".
    pub(in crate::nvptx) fn fma(&self, a: FloatValue<'c>, b: FloatValue<'c>, c: FloatValue<'c>) -> FloatValue<'c> {
        let ty = a.get_type();
        self.float_result(self.intrinsic("llvm.fma", &[ty.into()], &[a.into(), b.into(), c.into()]), ty)
    }

    /// `sqrt.rn`: correctly rounded root. PTX ISA 9.0, 9.7.3 "sqrt".
    pub(in crate::nvptx) fn sqrt(&self, a: FloatValue<'c>) -> FloatValue<'c> {
        self.float_unary("llvm.sqrt", a)
    }

    /// `abs`. PTX ISA 9.0, 9.7.3 "abs".
    pub(in crate::nvptx) fn fabs(&self, a: FloatValue<'c>) -> FloatValue<'c> {
        self.float_unary("llvm.fabs", a)
    }

    /// `cvt.rni`: nearest integer, ties to even. PTX ISA 9.0, 9.7.9 "cvt".
    pub(in crate::nvptx) fn rint(&self, a: FloatValue<'c>) -> FloatValue<'c> {
        self.float_unary("llvm.roundeven", a)
    }

    /// `min`: the smaller, or the one that is a number. PTX ISA 9.0, 9.7.3 "min".
    pub(in crate::nvptx) fn fmin(&self, a: FloatValue<'c>, b: FloatValue<'c>) -> FloatValue<'c> {
        let ty = a.get_type();
        self.float_result(self.intrinsic("llvm.minnum", &[ty.into()], &[a.into(), b.into()]), ty)
    }

    /// `max`: the larger, or the one that is a number. PTX ISA 9.0, 9.7.3 "max".
    pub(in crate::nvptx) fn fmax(&self, a: FloatValue<'c>, b: FloatValue<'c>) -> FloatValue<'c> {
        let ty = a.get_type();
        self.float_result(self.intrinsic("llvm.maxnum", &[ty.into()], &[a.into(), b.into()]), ty)
    }

    fn float_unary(&self, name: &str, a: FloatValue<'c>) -> FloatValue<'c> {
        let ty = a.get_type();
        self.float_result(self.intrinsic(name, &[ty.into()], &[a.into()]), ty)
    }
}
