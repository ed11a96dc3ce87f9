//! The transcendental functions of kernels, each written once over [`Arith`].
//!
//! Kernels get them as LLVM IR (`super::builder`), tests as plain Rust (`host`): every operation is an IEEE
//! operation with one defined result, so what the tests measure is what the GPU computes. The approximate
//! instructions (`ex2.approx`, `lg2.approx`, `sin.approx`) are not used: none holds the promised 2 ulp.

mod exp;
#[cfg(test)]
mod host;
mod log1p;
mod trig;

pub(crate) use exp::exp;
pub(crate) use log1p::log1p;
pub(crate) use trig::{cos, sin};

/// Scalar arithmetic: `F` is f32, `D` f64, `I` i32, `L` i64 (wrapping), `B` truth.
#[allow(missing_docs)] // the names say it
pub(crate) trait Arith {
    type F: Copy;
    type D: Copy;
    type I: Copy;
    type L: Copy;
    type B: Copy;

    fn f(&self, c: f32) -> Self::F;
    fn d(&self, c: f64) -> Self::D;
    fn i(&self, c: i32) -> Self::I;
    fn l(&self, c: i64) -> Self::L;

    fn f_add(&self, a: Self::F, b: Self::F) -> Self::F;
    fn f_sub(&self, a: Self::F, b: Self::F) -> Self::F;
    fn f_mul(&self, a: Self::F, b: Self::F) -> Self::F;
    fn f_fma(&self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    fn f_min(&self, a: Self::F, b: Self::F) -> Self::F;
    fn f_max(&self, a: Self::F, b: Self::F) -> Self::F;
    fn f_abs(&self, a: Self::F) -> Self::F;
    fn f_neg(&self, a: Self::F) -> Self::F;
    fn f_rint(&self, a: Self::F) -> Self::F;
    /// Ordered `a < b`.
    fn f_lt(&self, a: Self::F, b: Self::F) -> Self::B;
    /// Ordered `a == b`.
    fn f_eq(&self, a: Self::F, b: Self::F) -> Self::B;
    fn f_select(&self, c: Self::B, a: Self::F, b: Self::F) -> Self::F;
    fn f_bits(&self, a: Self::F) -> Self::I;
    fn f_from_bits(&self, a: Self::I) -> Self::F;
    fn f_from_i(&self, a: Self::I) -> Self::F;
    fn f_from_d(&self, a: Self::D) -> Self::F;

    fn d_mul(&self, a: Self::D, b: Self::D) -> Self::D;
    fn d_fma(&self, a: Self::D, b: Self::D, c: Self::D) -> Self::D;
    fn d_rint(&self, a: Self::D) -> Self::D;
    fn d_from_f(&self, a: Self::F) -> Self::D;
    fn d_from_l(&self, a: Self::L) -> Self::D;

    fn i_add(&self, a: Self::I, b: Self::I) -> Self::I;
    fn i_sub(&self, a: Self::I, b: Self::I) -> Self::I;
    fn i_and(&self, a: Self::I, b: Self::I) -> Self::I;
    fn i_shl(&self, a: Self::I, by: u32) -> Self::I;
    /// Arithmetic shift.
    fn i_sar(&self, a: Self::I, by: u32) -> Self::I;
    fn i_eq(&self, a: Self::I, b: Self::I) -> Self::B;
    /// Towards zero; of values that fit.
    fn i_from_f(&self, a: Self::F) -> Self::I;
    /// Low half.
    fn i_from_l(&self, a: Self::L) -> Self::I;

    fn l_add(&self, a: Self::L, b: Self::L) -> Self::L;
    fn l_sub(&self, a: Self::L, b: Self::L) -> Self::L;
    fn l_mul(&self, a: Self::L, b: Self::L) -> Self::L;
    fn l_or(&self, a: Self::L, b: Self::L) -> Self::L;
    fn l_and(&self, a: Self::L, b: Self::L) -> Self::L;
    /// By less than 64.
    fn l_shl(&self, a: Self::L, by: Self::L) -> Self::L;
    /// Logical, by less than 64.
    fn l_shr(&self, a: Self::L, by: Self::L) -> Self::L;
    fn l_eq(&self, a: Self::L, b: Self::L) -> Self::B;
    fn l_select(&self, c: Self::B, a: Self::L, b: Self::L) -> Self::L;
    /// Zero-extended.
    fn l_from_i(&self, a: Self::I) -> Self::L;
    /// Towards zero; of values that fit.
    fn l_from_d(&self, a: Self::D) -> Self::L;

    /// Runs one of two pieces of code.
    fn either(
        &self,
        cond: Self::B,
        then: impl FnOnce() -> (Self::D, Self::I),
        otherwise: impl FnOnce() -> (Self::D, Self::I),
    ) -> (Self::D, Self::I);
}

/// `c[0] + x c[1] + x² c[2] …` by fused multiply-adds.
fn polynomial<A: Arith>(a: &A, x: A::F, coefficients: &[f32]) -> A::F {
    let mut terms = coefficients.iter().rev();
    let last = a.f(terms.next().copied().unwrap_or(0.0));
    terms.fold(last, |acc, c| a.f_fma(acc, x, a.f(*c)))
}
