//! [`Arith`] as LLVM IR, so that the functions of `math` can be written into kernels.

use super::builder::KernelBuilder;
use super::math::Arith;
use inkwell::values::{FloatValue, IntValue};
use inkwell::{FloatPredicate, IntPredicate};

impl<'c> Arith for KernelBuilder<'c> {
    type F = FloatValue<'c>;
    type D = FloatValue<'c>;
    type I = IntValue<'c>;
    type L = IntValue<'c>;
    type B = IntValue<'c>;

    fn f(&self, c: f32) -> Self::F {
        self.f32(c)
    }
    fn d(&self, c: f64) -> Self::D {
        self.f64_ty().const_float(c)
    }
    fn i(&self, c: i32) -> Self::I {
        self.i32(c as u32)
    }
    fn l(&self, c: i64) -> Self::L {
        self.i64(c)
    }
    fn f_add(&self, a: Self::F, b: Self::F) -> Self::F {
        self.fadd(a, b)
    }
    fn f_sub(&self, a: Self::F, b: Self::F) -> Self::F {
        self.fsub(a, b)
    }
    fn f_mul(&self, a: Self::F, b: Self::F) -> Self::F {
        self.fmul(a, b)
    }
    fn f_fma(&self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        self.fma(a, b, c)
    }
    fn f_min(&self, a: Self::F, b: Self::F) -> Self::F {
        self.fmin(a, b)
    }
    fn f_max(&self, a: Self::F, b: Self::F) -> Self::F {
        self.fmax(a, b)
    }
    fn f_abs(&self, a: Self::F) -> Self::F {
        self.fabs(a)
    }
    fn f_neg(&self, a: Self::F) -> Self::F {
        self.fneg(a)
    }
    fn f_rint(&self, a: Self::F) -> Self::F {
        self.rint(a)
    }
    fn f_lt(&self, a: Self::F, b: Self::F) -> Self::B {
        self.fcmp(FloatPredicate::OLT, a, b)
    }
    fn f_eq(&self, a: Self::F, b: Self::F) -> Self::B {
        self.fcmp(FloatPredicate::OEQ, a, b)
    }
    fn f_select(&self, c: Self::B, a: Self::F, b: Self::F) -> Self::F {
        self.select(c, a, b)
    }
    fn f_bits(&self, a: Self::F) -> Self::I {
        self.as_bits(a)
    }
    fn f_from_bits(&self, a: Self::I) -> Self::F {
        self.as_float(a)
    }
    fn f_from_i(&self, a: Self::I) -> Self::F {
        self.int_to_float(a, self.f32_ty())
    }
    fn f_from_d(&self, a: Self::D) -> Self::F {
        self.narrow(a, self.f32_ty())
    }
    fn d_mul(&self, a: Self::D, b: Self::D) -> Self::D {
        self.fmul(a, b)
    }
    fn d_fma(&self, a: Self::D, b: Self::D, c: Self::D) -> Self::D {
        self.fma(a, b, c)
    }
    fn d_rint(&self, a: Self::D) -> Self::D {
        self.rint(a)
    }
    fn d_from_f(&self, a: Self::F) -> Self::D {
        self.widen(a)
    }
    fn d_from_l(&self, a: Self::L) -> Self::D {
        self.int_to_float(a, self.f64_ty())
    }
    fn i_add(&self, a: Self::I, b: Self::I) -> Self::I {
        self.add(a, b)
    }
    fn i_sub(&self, a: Self::I, b: Self::I) -> Self::I {
        self.sub(a, b)
    }
    fn i_and(&self, a: Self::I, b: Self::I) -> Self::I {
        self.and(a, b)
    }
    fn i_shl(&self, a: Self::I, by: u32) -> Self::I {
        self.shl(a, self.i32(by))
    }
    fn i_sar(&self, a: Self::I, by: u32) -> Self::I {
        self.sar(a, self.i32(by))
    }
    fn i_eq(&self, a: Self::I, b: Self::I) -> Self::B {
        self.icmp(IntPredicate::EQ, a, b)
    }
    fn i_from_f(&self, a: Self::F) -> Self::I {
        self.float_to_int(a)
    }
    fn i_from_l(&self, a: Self::L) -> Self::I {
        self.trunc(a, self.i32_ty())
    }
    fn l_add(&self, a: Self::L, b: Self::L) -> Self::L {
        self.add(a, b)
    }
    fn l_sub(&self, a: Self::L, b: Self::L) -> Self::L {
        self.sub(a, b)
    }
    fn l_mul(&self, a: Self::L, b: Self::L) -> Self::L {
        self.mul(a, b)
    }
    fn l_or(&self, a: Self::L, b: Self::L) -> Self::L {
        self.or(a, b)
    }
    fn l_and(&self, a: Self::L, b: Self::L) -> Self::L {
        self.and(a, b)
    }
    fn l_shl(&self, a: Self::L, by: Self::L) -> Self::L {
        self.shl(a, by)
    }
    fn l_shr(&self, a: Self::L, by: Self::L) -> Self::L {
        self.shr(a, by)
    }
    fn l_eq(&self, a: Self::L, b: Self::L) -> Self::B {
        self.icmp(IntPredicate::EQ, a, b)
    }
    fn l_select(&self, c: Self::B, a: Self::L, b: Self::L) -> Self::L {
        self.select(c, a, b)
    }
    fn l_from_i(&self, a: Self::I) -> Self::L {
        self.zext(a, self.i64_ty())
    }
    fn l_from_d(&self, a: Self::D) -> Self::L {
        // Only of small values, so that LLVM's undefined case does not occur.
        self.keep(self.ir.build_float_to_signed_int(a, self.i64_ty(), ""), self.i64_ty().get_undef())
    }
    fn either(
        &self,
        cond: Self::B,
        then: impl FnOnce() -> (Self::D, Self::I),
        otherwise: impl FnOnce() -> (Self::D, Self::I),
    ) -> (Self::D, Self::I) {
        let (yes, no, after) = (self.block("yes"), self.block("no"), self.block("joined"));
        self.branch(cond, yes, no);
        let leave = |result: (Self::D, Self::I)| {
            let end = self.here();
            self.jump(after);
            (result, end)
        };
        self.at(yes);
        let (a, from_a) = leave(then());
        self.at(no);
        let (b, from_b) = leave(otherwise());
        self.at(after);
        let (Some(d), Some(i)) = (self.phi(self.f64_ty().into()), self.phi(self.i32_ty().into())) else {
            return a;
        };
        d.add_incoming(&[(&a.0, from_a), (&b.0, from_b)]);
        i.add_incoming(&[(&a.1, from_a), (&b.1, from_b)]);
        (d.as_basic_value().into_float_value(), i.as_basic_value().into_int_value())
    }
}
