//! `ln(1 + x)`.

use super::{Arith, polynomial};

/// Coefficients of `(ln(1 + m) - m) / m²` on `[-1/4, 1/2]`: least squares reweighted to a minimax of the relative
/// error of `ln(1 + m)`, 2^-27.
const SERIES: [f32; 9] = [
    -0.5,
    0.333_334_54,
    -0.250_000_54,
    0.199_906_07,
    -0.166_477_68,
    0.144_820_68,
    -0.131_622_24,
    0.104_482_78,
    -0.044_909_09,
];

/// `ln(1 + x)`, within 2 ulp: `1 + x = 2^k (1 + m)` with `m` in `[-1/4, 1/2]` computed without rounding `1 + x`.
pub(crate) fn log1p<A: Arith>(a: &A, x: A::F) -> A::F {
    let sum = a.f_add(x, a.f(1.0));
    // k in the place of an exponent.
    let shift = a.i_and(a.i_sub(a.f_bits(sum), a.i(0.75f32.to_bits() as i32)), a.i(0xFF80_0000_u32 as i32));
    // 4 * 2^-k, in range for every k.
    let scale = a.f_from_bits(a.i_sub(a.i(4.0f32.to_bits() as i32), shift));
    let m = a.f_mul(a.f_mul(x, a.f(0.25)), scale);
    let m = a.f_add(m, a.f_fma(a.f(0.25), scale, a.f(-1.0)));
    let k = a.f_mul(a.f_from_i(shift), a.f(1.0 / 8_388_608.0));
    let y = a.f_fma(a.f_mul(m, m), polynomial(a, m, &SERIES), m);
    let y = a.f_fma(k, a.f(std::f32::consts::LN_2), y);
    // Tiny x are their own result (0.25 x would lose the bits of a subnormal).
    let y = a.f_select(a.f_lt(a.f_abs(x), a.f(1e-8)), x, y);
    let edge = a.f_select(a.f_eq(x, a.f(-1.0)), a.f(f32::NEG_INFINITY), a.f(f32::NAN));
    let y = a.f_select(a.f_lt(a.f(-1.0), x), y, edge);
    a.f_select(a.f_eq(x, a.f(f32::INFINITY)), x, y)
}

#[cfg(test)]
mod tests {
    use super::super::host::{Host, worst_ulp};
    use super::*;

    #[test]
    fn within_two_ulp_everywhere() {
        let worst = worst_ulp(
            1499,
            |x| if x > -1.0 { log1p(&Host, x) } else { 0.0 },
            |x| {
                if x > -1.0 { x.ln_1p() } else { 0.0 }
            },
        );
        assert!(worst < 2.0, "{worst}");
    }

    #[test]
    fn limits() {
        assert_eq!(log1p(&Host, -1.0), f32::NEG_INFINITY);
        assert_eq!(log1p(&Host, f32::INFINITY), f32::INFINITY);
        assert_eq!(log1p(&Host, 0.0).to_bits(), 0);
        assert_eq!(log1p(&Host, -0.0).to_bits(), (-0.0f32).to_bits());
        assert!(log1p(&Host, -2.0).is_nan());
        assert!(log1p(&Host, f32::NAN).is_nan());
        assert!(log1p(&Host, f32::NEG_INFINITY).is_nan());
    }
}
