//! [`Arith`] in plain Rust, for tests.

use super::Arith;

pub(crate) struct Host;

/// Largest distance between `f` and the exact function, in units in the last place of the exact result, over every
/// `step`-th f32.
pub(crate) fn worst_ulp(step: usize, f: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) -> f64 {
    let mut worst = 0.0f64;
    for bits in (0..=u32::MAX).step_by(step) {
        let x = f32::from_bits(bits);
        let want = exact(f64::from(x));
        if x.is_nan() || want.is_nan() || want.abs() > f64::from(f32::MAX) {
            continue;
        }
        let rounded = (want as f32).abs();
        let ulp = f64::from(f32::from_bits(rounded.to_bits() + 1)) - f64::from(rounded);
        let ulp = if ulp.is_finite() { ulp } else { 2f64.powi(104) };
        worst = worst.max((f64::from(f(x)) - want).abs() / ulp);
    }
    worst
}

impl Arith for Host {
    type F = f32;
    type D = f64;
    type I = i32;
    type L = i64;
    type B = bool;

    fn f(&self, c: f32) -> f32 {
        c
    }
    fn d(&self, c: f64) -> f64 {
        c
    }
    fn i(&self, c: i32) -> i32 {
        c
    }
    fn l(&self, c: i64) -> i64 {
        c
    }
    fn f_add(&self, a: f32, b: f32) -> f32 {
        a + b
    }
    fn f_sub(&self, a: f32, b: f32) -> f32 {
        a - b
    }
    fn f_mul(&self, a: f32, b: f32) -> f32 {
        a * b
    }
    fn f_fma(&self, a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    fn f_min(&self, a: f32, b: f32) -> f32 {
        a.min(b)
    }
    fn f_max(&self, a: f32, b: f32) -> f32 {
        a.max(b)
    }
    fn f_abs(&self, a: f32) -> f32 {
        a.abs()
    }
    fn f_neg(&self, a: f32) -> f32 {
        -a
    }
    fn f_rint(&self, a: f32) -> f32 {
        a.round_ties_even()
    }
    fn f_lt(&self, a: f32, b: f32) -> bool {
        a < b
    }
    fn f_eq(&self, a: f32, b: f32) -> bool {
        a == b
    }
    fn f_select(&self, c: bool, a: f32, b: f32) -> f32 {
        if c { a } else { b }
    }
    fn f_bits(&self, a: f32) -> i32 {
        a.to_bits() as i32
    }
    fn f_from_bits(&self, a: i32) -> f32 {
        f32::from_bits(a as u32)
    }
    fn f_from_i(&self, a: i32) -> f32 {
        a as f32
    }
    fn f_from_d(&self, a: f64) -> f32 {
        a as f32
    }
    fn d_mul(&self, a: f64, b: f64) -> f64 {
        a * b
    }
    fn d_fma(&self, a: f64, b: f64, c: f64) -> f64 {
        a.mul_add(b, c)
    }
    fn d_rint(&self, a: f64) -> f64 {
        a.round_ties_even()
    }
    fn d_from_f(&self, a: f32) -> f64 {
        f64::from(a)
    }
    fn d_from_l(&self, a: i64) -> f64 {
        a as f64
    }
    fn i_add(&self, a: i32, b: i32) -> i32 {
        a.wrapping_add(b)
    }
    fn i_sub(&self, a: i32, b: i32) -> i32 {
        a.wrapping_sub(b)
    }
    fn i_and(&self, a: i32, b: i32) -> i32 {
        a & b
    }
    fn i_shl(&self, a: i32, by: u32) -> i32 {
        a << by
    }
    fn i_sar(&self, a: i32, by: u32) -> i32 {
        a >> by
    }
    fn i_eq(&self, a: i32, b: i32) -> bool {
        a == b
    }
    fn i_from_f(&self, a: f32) -> i32 {
        a as i32
    }
    fn i_from_l(&self, a: i64) -> i32 {
        a as i32
    }
    fn l_add(&self, a: i64, b: i64) -> i64 {
        a.wrapping_add(b)
    }
    fn l_sub(&self, a: i64, b: i64) -> i64 {
        a.wrapping_sub(b)
    }
    fn l_mul(&self, a: i64, b: i64) -> i64 {
        a.wrapping_mul(b)
    }
    fn l_or(&self, a: i64, b: i64) -> i64 {
        a | b
    }
    fn l_and(&self, a: i64, b: i64) -> i64 {
        a & b
    }
    fn l_shl(&self, a: i64, by: i64) -> i64 {
        a << by
    }
    fn l_shr(&self, a: i64, by: i64) -> i64 {
        ((a as u64) >> by) as i64
    }
    fn l_eq(&self, a: i64, b: i64) -> bool {
        a == b
    }
    fn l_select(&self, c: bool, a: i64, b: i64) -> i64 {
        if c { a } else { b }
    }
    fn l_from_i(&self, a: i32) -> i64 {
        i64::from(a as u32)
    }
    fn l_from_d(&self, a: f64) -> i64 {
        a as i64
    }
    fn either(
        &self,
        cond: bool,
        then: impl FnOnce() -> (f64, i32),
        otherwise: impl FnOnce() -> (f64, i32),
    ) -> (f64, i32) {
        if cond { then() } else { otherwise() }
    }
}
