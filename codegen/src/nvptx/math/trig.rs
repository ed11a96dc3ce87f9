//! Sine and cosine of f32 angles of any size.

use super::{Arith, polynomial};

/// π/2 in two f64 parts.
const HALF_PI_HIGH: f64 = std::f64::consts::FRAC_PI_2;
const HALF_PI_LOW: f64 = 6.123_233_995_736_766e-17;

/// Below it two fused steps reduce an angle to 2^-50: the quadrant number has at most 28 bits.
const SMALL_ANGLE: f32 = 268_435_456.0;

/// Binary digits of 2/π behind the point, 32 a word.
/// Source: Payne & Hanek, "Radian reduction for trigonometric functions", 1983.
const TWO_OVER_PI: [u32; 7] =
    [0xA2F9_836E, 0x4E44_1529, 0xFC27_57D1, 0xF534_DDC0, 0xDB62_9599, 0x3C43_9041, 0xFE51_63AB];

/// `sin(r) / r` in `r²` and `cos(r)` in `r²` on `[-π/4, π/4]`, errors below 2^-27.
const SINE: [f32; 5] = [1.0, -1.666_666_7e-1, 8.333_386e-3, -1.985_599_2e-4, 2.865_679_6e-6];
const COSINE: [f32; 5] = [1.0, -5e-1, 4.166_665_7e-2, -1.388_773e-3, 2.446_770_7e-5];

/// Sine of `x`, within 2^-23.
pub(crate) fn sin<A: Arith>(a: &A, x: A::F) -> A::F {
    wave(a, x, 0)
}

/// Cosine of `x`, within 2^-23.
pub(crate) fn cos<A: Arith>(a: &A, x: A::F) -> A::F {
    wave(a, x, 1)
}

/// `sin(x + quarters * π/2)`.
fn wave<A: Arith>(a: &A, x: A::F, quarters: i32) -> A::F {
    let small = a.f_lt(a.f_abs(x), a.f(SMALL_ANGLE));
    let (r, quadrant) = a.either(small, || reduce_small(a, x), || reduce_any(a, x));
    let quadrant = a.i_add(quadrant, a.i(quarters));
    let r = a.f_from_d(r);
    let square = a.f_mul(r, r);
    // Written as r + r·r²·p so that the leading term is not rounded.
    let sine = a.f_fma(a.f_mul(r, square), polynomial(a, square, &SINE[1..]), r);
    let cosine = polynomial(a, square, &COSINE);
    let odd = a.i_eq(a.i_and(quadrant, a.i(1)), a.i(0));
    let y = a.f_select(odd, sine, cosine);
    let positive = a.i_eq(a.i_and(quadrant, a.i(2)), a.i(0));
    let y = a.f_select(positive, y, a.f_neg(y));
    // Infinite angles and NaN have no sine.
    let finite = a.f_lt(a.f_abs(x), a.f(f32::INFINITY));
    a.f_select(finite, y, a.f_sub(x, x))
}

/// `x = quadrant * π/2 + r` by Cody and Waite's two steps, fused.
fn reduce_small<A: Arith>(a: &A, x: A::F) -> (A::D, A::I) {
    let x = a.d_from_f(x);
    let k = a.d_rint(a.d_mul(x, a.d(std::f64::consts::FRAC_2_PI)));
    let r = a.d_fma(k, a.d(-HALF_PI_HIGH), x);
    let r = a.d_fma(k, a.d(-HALF_PI_LOW), r);
    (r, a.i_from_l(a.l_from_d(k)))
}

/// The same for any `x` of at least [`SMALL_ANGLE`]: `m 2^e` times the 96 digits of 2/π from the first whose
/// weight is below 4; of the product, 2 bits are the quadrant and 62 the fraction of it.
fn reduce_any<A: Arith>(a: &A, x: A::F) -> (A::D, A::I) {
    let bits = a.l_from_i(a.f_bits(a.f_abs(x)));
    let m = a.l_or(a.l_and(bits, a.l(0x7F_FFFF)), a.l(0x80_0000));
    // e - 2, where e is the exponent field less 150: the first digit that counts. At most 103 for infinity.
    let at = a.l_and(a.l_sub(a.l_shr(bits, a.l(23)), a.l(152)), a.l(127));
    let word = a.l_shr(at, a.l(5));
    let by = a.l_and(at, a.l(31));
    let digits = |j: usize| {
        let pick = |i: usize| a.l(i64::from(TWO_OVER_PI[i + j]));
        (1..4).fold(pick(0), |acc, i| a.l_select(a.l_eq(word, a.l(i as i64)), pick(i), acc))
    };
    let (w0, w1, w2, w3) = (digits(0), digits(1), digits(2), digits(3));
    let join = |high, low| a.l_or(a.l_shl(high, a.l(32)), low);
    let carry = a.l_shr(w2, a.l_sub(a.l(32), by));
    let high = a.l_or(a.l_shl(join(w0, w1), by), carry);
    let low = a.l_shr(a.l_shl(join(w2, w3), by), a.l(32));
    let product = a.l_add(a.l_mul(m, high), a.l_shr(a.l_mul(m, low), a.l(32)));
    let fraction = a.l_shl(product, a.l(2));
    let round_up = a.l_shr(fraction, a.l(63));
    let quadrant = a.i_from_l(a.l_add(a.l_shr(product, a.l(62)), round_up));
    let r = a.d_mul(a.d_from_l(fraction), a.d(HALF_PI_HIGH / 18_446_744_073_709_551_616.0));
    // sin(-x) = -sin(x): the sign goes to both parts.
    let sign = a.i_sar(a.f_bits(x), 31);
    let unit = a.d_from_f(a.f_from_i(a.i_add(a.i_shl(sign, 1), a.i(1))));
    let twice = a.i_shl(a.i_and(quadrant, sign), 1);
    (a.d_mul(r, unit), a.i_sub(quadrant, twice))
}

#[cfg(test)]
mod tests {
    use super::super::host::Host;
    use super::*;

    /// Largest error against f64's sine and cosine, in units of 2^-23.
    fn worst(step: usize, from: f32, to: f32) -> f64 {
        let mut worst = 0.0f64;
        for bits in (from.to_bits()..to.to_bits()).step_by(step) {
            for x in [f32::from_bits(bits), -f32::from_bits(bits)] {
                let s = (f64::from(sin(&Host, x)) - f64::from(x).sin()).abs();
                let c = (f64::from(cos(&Host, x)) - f64::from(x).cos()).abs();
                worst = worst.max(s).max(c);
            }
        }
        worst * 8_388_608.0
    }

    #[test]
    fn small_and_huge_angles() {
        assert!(worst(997, 1e-30, 1e6) < 1.0);
        assert!(worst(997, 1e6, f32::MAX) < 1.0);
    }

    #[test]
    fn limits() {
        assert_eq!(sin(&Host, 0.0), 0.0);
        assert_eq!(cos(&Host, 0.0), 1.0);
        assert_eq!(sin(&Host, f32::MIN_POSITIVE), f32::MIN_POSITIVE);
        assert!(sin(&Host, f32::INFINITY).is_nan());
        assert!(cos(&Host, f32::NAN).is_nan());
    }
}
