//! The functions lent to CPU kernels, as [`dsc_ir::cpu_abi`] lists them.
//!
//! Elementary functions are computed in f64 and rounded once, so that they do not depend on a C library's f32
//! versions. The dense micro-kernel multiplies and adds without fusing, so that every machine gets equal sums.

use dsc_ir::cpu_abi::{self, Lent};

/// Partial sums of the dense micro-kernel.
const LANES: usize = 16;

/// A lent function with its address.
pub(super) struct Address {
    pub lent: Lent,
    pub code: *const u8,
}

/// All of them.
pub(super) fn all() -> [Address; 6] {
    [
        Address { lent: cpu_abi::EXP, code: exp as *const u8 },
        Address { lent: cpu_abi::LOG1P, code: log1p as *const u8 },
        Address { lent: cpu_abi::SIN, code: sin as *const u8 },
        Address { lent: cpu_abi::COS, code: cos as *const u8 },
        Address { lent: cpu_abi::FMA, code: fma as *const u8 },
        Address { lent: cpu_abi::DENSE, code: dense_entry as *const u8 },
    ]
}

/// C functions that Cranelift calls where the host lacks an instruction.
pub(super) fn library() -> [(&'static str, *const u8); 10] {
    [
        ("ceilf", ceilf as *const u8),
        ("ceil", ceil as *const u8),
        ("floorf", floorf as *const u8),
        ("floor", floor as *const u8),
        ("truncf", truncf as *const u8),
        ("trunc", trunc as *const u8),
        ("nearbyintf", nearbyintf as *const u8),
        ("nearbyint", nearbyint as *const u8),
        ("fmaf", fma as *const u8),
        ("fma", fma64 as *const u8),
    ]
}

macro_rules! scalar {
    ($($name:ident($x:ident: $t:ty) = $e:expr;)*) => {
        $( extern "C" fn $name($x: $t) -> $t { $e } )*
    };
}

scalar! {
    exp(x: f32) = f64::from(x).exp() as f32;
    log1p(x: f32) = f64::from(x).ln_1p() as f32;
    sin(x: f32) = f64::from(x).sin() as f32;
    cos(x: f32) = f64::from(x).cos() as f32;
    ceilf(x: f32) = x.ceil();
    ceil(x: f64) = x.ceil();
    floorf(x: f32) = x.floor();
    floor(x: f64) = x.floor();
    truncf(x: f32) = x.trunc();
    trunc(x: f64) = x.trunc();
    nearbyintf(x: f32) = x.round_ties_even();
    nearbyint(x: f64) = x.round_ties_even();
}

extern "C" fn fma(a: f32, b: f32, c: f32) -> f32 {
    a.mul_add(b, c)
}

extern "C" fn fma64(a: f64, b: f64, c: f64) -> f64 {
    a.mul_add(b, c)
}

/// Panels of the dense micro-kernel: rows of `k` floats, `y` and `x` strided.
#[derive(Clone, Copy)]
struct Panels {
    y: *mut u8,
    y_stride: usize,
    x: *const u8,
    x_stride: usize,
    w: *const f32,
    m: usize,
    n: usize,
    k: usize,
}

/// The entry that kernels call; sizes that are not positive do nothing.
#[allow(clippy::too_many_arguments)] // the signature is fixed by `cpu_abi`
extern "C" fn dense_entry(y: i64, y_stride: i64, x: i64, x_stride: i64, w: i64, m: i64, n: i64, k: i64) {
    let size = |v: i64| usize::try_from(v).unwrap_or(0);
    let p = Panels {
        y: y as *mut u8,
        y_stride: size(y_stride),
        x: x as *const u8,
        x_stride: size(x_stride),
        w: w as *const f32,
        m: size(m),
        n: size(n),
        k: size(k),
    };
    // SAFETY: code generator and runtime agree in `cpu_abi` that the panels are readable and writable, aligned to
    // floats, and that `y` overlaps neither `x` nor `w`.
    #[allow(unsafe_code)] // a function called from compiled kernels takes addresses
    unsafe {
        dispatch(p);
    }
}

/// Picks the widest vectors; the order of sums is the same in all.
#[allow(unsafe_code)] // see `dense_entry`
unsafe fn dispatch(p: Panels) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        unsafe fn wide(p: Panels) {
            // SAFETY: as for `dispatch`.
            unsafe { dense(p) }
        }
        if std::is_x86_feature_detected!("avx2") {
            // SAFETY: the feature is there.
            return unsafe { wide(p) };
        }
    }
    // SAFETY: as for this function.
    unsafe { dense(p) }
}

#[inline(always)]
#[allow(unsafe_code)] // see `dense_entry`
unsafe fn dense(p: Panels) {
    let mut i = 0;
    // SAFETY: all rows `i .. i + M < m` and `j .. j + N < n` are within the panels.
    unsafe {
        while i + 2 <= p.m {
            columns::<2, 2>(p, i);
            i += 2;
        }
        if i < p.m {
            columns::<1, 4>(p, i);
        }
    }
}

#[inline(always)]
#[allow(unsafe_code)] // see `dense_entry`
unsafe fn columns<const M: usize, const N: usize>(p: Panels, i: usize) {
    let mut j = 0;
    // SAFETY: as for `dense`.
    unsafe {
        while j + N <= p.n {
            tile::<M, N>(p, i, j);
            j += N;
        }
        while j < p.n {
            tile::<M, 1>(p, i, j);
            j += 1;
        }
    }
}

/// `M x N` results; their sums never meet, so a result does not depend on the tile it falls into.
#[inline(always)]
#[allow(unsafe_code)] // see `dense_entry`
unsafe fn tile<const M: usize, const N: usize>(p: Panels, i: usize, j: usize) {
    // SAFETY: rows `i .. i + M` of `x` and `y` and `j .. j + N` of `w` are within the panels.
    let (x, w): ([&[f32]; M], [&[f32]; N]) = unsafe {
        (
            std::array::from_fn(|a| std::slice::from_raw_parts(p.x.add((i + a) * p.x_stride).cast(), p.k)),
            std::array::from_fn(|b| std::slice::from_raw_parts(p.w.add((j + b) * p.k), p.k)),
        )
    };
    let sums = sums::<M, N>(x, w);
    for (a, row) in sums.iter().enumerate() {
        for (b, sum) in row.iter().enumerate() {
            // SAFETY: as above.
            unsafe { p.y.add((i + a) * p.y_stride).cast::<f32>().add(j + b).write(*sum) }
        }
    }
}

#[inline(always)]
fn sums<const M: usize, const N: usize>(x: [&[f32]; M], w: [&[f32]; N]) -> [[f32; N]; M] {
    let mut acc = [[[0f32; LANES]; N]; M];
    let x = x.map(|x| x.as_chunks::<LANES>());
    let w = w.map(|w| w.as_chunks::<LANES>());
    let blocks = x[0].0.len();
    for c in 0..blocks {
        for a in 0..M {
            for b in 0..N {
                let (x, w) = (&x[a].0[c], &w[b].0[c]);
                for (acc, (x, w)) in acc[a][b].iter_mut().zip(x.iter().zip(w)) {
                    *acc += x * w;
                }
            }
        }
    }
    std::array::from_fn(|a| {
        std::array::from_fn(|b| {
            let mut lanes = acc[a][b];
            for (acc, (x, w)) in lanes.iter_mut().zip(x[a].1.iter().zip(w[b].1)) {
                *acc += x * w;
            }
            pairwise(lanes)
        })
    })
}

/// Lane `i` and `i + 8`, then `i` and `i + 4`, and so on.
#[inline(always)]
fn pairwise(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::random::Rng;

    fn run(x: &[f32], w: &[f32], m: usize, n: usize, k: usize) -> Vec<f32> {
        let mut y = vec![0f32; m * n];
        let (ys, xs) = ((n * 4) as i64, (k * 4) as i64);
        dense_entry(y.as_mut_ptr() as i64, ys, x.as_ptr() as i64, xs, w.as_ptr() as i64, m as i64, n as i64, k as i64);
        y
    }

    #[test]
    fn dense_is_close_to_f64_and_invariant() {
        let mut rng = Rng::new(1, "dense");
        for (m, n, k) in [(1, 1, 1), (1, 5, 16), (2, 3, 31), (5, 7, 100), (13, 9, 513), (3, 4, 0)] {
            let x: Vec<f32> = (0..m * k).map(|_| rng.unit()).collect();
            let w: Vec<f32> = (0..n * k).map(|_| rng.unit()).collect();
            let y = run(&x, &w, m, n, k);
            for i in 0..m {
                for j in 0..n {
                    let (a, b) = (&x[i * k..(i + 1) * k], &w[j * k..(j + 1) * k]);
                    let exact: f64 = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                    let size: f64 = a.iter().zip(b).map(|(a, b)| f64::from((a * b).abs())).sum();
                    let got = y[i * n + j];
                    assert!((f64::from(got) - exact).abs() <= size * (k as f64).sqrt() * 2f64.powi(-22));
                    assert_eq!(run(a, b, 1, 1, k)[0].to_bits(), got.to_bits(), "m or n changes a sum");
                }
            }
        }
    }

    #[test]
    fn dense_adds_sixteen_partial_sums_pairwise() {
        // Lane 0 gets 1e8 and -1e8 and keeps nothing of a 1 that comes between; lane 1 keeps its 1.
        let mut x = vec![0f32; 48];
        (x[0], x[16], x[32], x[1]) = (1e8, 1.0, -1e8, 1.0);
        assert_eq!(run(&x, &[1.0; 48], 1, 1, 48), [1.0]);
    }

    #[test]
    fn elementary_functions_round_once() {
        assert_eq!(exp(1.0), std::f64::consts::E as f32);
        assert_eq!(log1p(1e-10), 1e-10);
        assert_eq!(sin(1e5), (1e5f64).sin() as f32);
    }
}
