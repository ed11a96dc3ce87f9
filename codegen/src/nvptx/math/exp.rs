//! `e^x`.

use super::{Arith, polynomial};

/// ln 2, its leading 17 bits and the rest: `n * LN2_HIGH` is exact for the `n` of [`exp`].
const LN2_HIGH: f32 = f32::from_bits(0x3F31_7200);
const LN2_LOW: f32 = f32::from_bits(0x35BF_BE8E);

/// Coefficients of `e^r` on `[-ln 2 / 2, ln 2 / 2]`, minimax with an error of 2^-27.
const SERIES: [f32; 7] = [1.0, 1.0, 4.999_998_5e-1, 1.666_647_2e-1, 4.166_953_6e-2, 8.373_124_5e-3, 1.378_059_4e-3];

/// `e^x`, within 1 ulp: `x = n ln 2 + r`, a polynomial in `r`, and 2^n in two exact steps so that subnormal
/// results round once.
pub(crate) fn exp<A: Arith>(a: &A, x: A::F) -> A::F {
    // e^-104 rounds to 0 and e^89 to infinity.
    let clamped = a.f_min(a.f_max(x, a.f(-104.0)), a.f(89.0));
    let n = a.f_rint(a.f_mul(clamped, a.f(std::f32::consts::LOG2_E)));
    let r = a.f_fma(n, a.f(-LN2_HIGH), clamped);
    let r = a.f_fma(n, a.f(-LN2_LOW), r);
    let y = polynomial(a, r, &SERIES);
    let n = a.i_from_f(n);
    let half = a.i_sar(n, 1);
    let rest = a.i_sub(n, half);
    let y = a.f_mul(a.f_mul(y, power_of_two(a, half)), power_of_two(a, rest));
    a.f_select(a.f_eq(x, x), y, x)
}

/// `2^n` for normal results.
fn power_of_two<A: Arith>(a: &A, n: A::I) -> A::F {
    a.f_from_bits(a.i_shl(a.i_add(n, a.i(127)), 23))
}

#[cfg(test)]
mod tests {
    use super::super::host::{Host, worst_ulp};
    use super::*;

    #[test]
    fn within_one_ulp_everywhere() {
        let worst = worst_ulp(1499, |x| exp(&Host, x), f64::exp);
        assert!(worst < 1.0, "{worst}");
    }

    #[test]
    fn limits() {
        assert_eq!(exp(&Host, f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(&Host, -1e30), 0.0);
        assert_eq!(exp(&Host, f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(&Host, 88.8), f32::INFINITY);
        assert_eq!(exp(&Host, 0.0), 1.0);
        assert!(exp(&Host, f32::NAN).is_nan());
    }
}
