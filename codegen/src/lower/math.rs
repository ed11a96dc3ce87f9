//! Functions that several ops share, and sums of few or many terms.

use crate::loops::{Builder, Cmp, FUn, Var};

/// Terms up to which a loop is written out.
const UNROLL: u64 = 8;

/// `1 / (1 + e^-x)`.
pub fn sigmoid(b: &mut Builder, x: Var) -> Var {
    let neg = b.u(FUn::Neg, x);
    let e = b.u(FUn::Exp, neg);
    let one = b.float(1.0);
    let sum = b.fadd(one, e);
    b.fdiv(one, sum)
}

/// `1 / sqrt(sum / n + eps)`.
pub fn inverse_rms(b: &mut Builder, sum_of_squares: Var, n: u64, eps: f32) -> Var {
    let (count, eps, one) = (b.float(n as f32), b.float(eps), b.float(1.0));
    let mean = b.fdiv(sum_of_squares, count);
    let under = b.fadd(mean, eps);
    let root = b.u(FUn::Sqrt, under);
    b.fdiv(one, root)
}

/// `sqrt(softplus(x))`, the softplus being `x` above 20.
pub fn sqrt_softplus(b: &mut Builder, x: Var) -> Var {
    let limit = b.float(20.0);
    let large = b.cmp(Cmp::Gt, x, limit);
    let bounded = b.select(large, limit, x);
    let e = b.u(FUn::Exp, bounded);
    let soft = b.u(FUn::Log1p, e);
    let soft = b.select(large, x, soft);
    b.u(FUn::Sqrt, soft)
}

/// The smaller of both; NaN in `x` stays.
pub fn clamp_above(b: &mut Builder, x: Var, limit: Var) -> Var {
    let above = b.cmp(Cmp::Gt, x, limit);
    b.select(above, limit, x)
}

/// The larger of both; NaN in `x` stays.
pub fn clamp_below(b: &mut Builder, x: Var, limit: Var) -> Var {
    let below = b.cmp(Cmp::Lt, x, limit);
    b.select(below, limit, x)
}

/// Runs `f` for `0 .. n`, written out where `n` is small.
pub fn each(b: &mut Builder, n: u64, mut f: impl FnMut(&mut Builder, Var)) {
    if n <= UNROLL {
        for i in 0..n {
            let i = b.int(i);
            f(b, i);
        }
    } else {
        let (zero, n) = (b.int(0), b.int(n));
        b.for_(zero, n, f);
    }
}

/// Sum of `f` over `0 .. n` in ascending order.
pub fn sum(b: &mut Builder, n: u64, mut f: impl FnMut(&mut Builder, Var) -> Var) -> Var {
    let zero = b.float(0.0);
    if n > UNROLL {
        let (lo, hi) = (b.int(0), b.int(n));
        return b.fold_(lo, hi, [zero], |b, i, [acc]| {
            let term = f(b, i);
            [b.fadd(acc, term)]
        })[0];
    }
    let mut acc = None;
    for i in 0..n {
        let i = b.int(i);
        let term = f(b, i);
        acc = Some(match acc {
            Some(a) => b.fadd(a, term),
            None => term,
        });
    }
    acc.unwrap_or(zero)
}

/// Things at constant or computed indices; a few of them are formed ahead of the loops that use them.
pub struct Ahead<T, F> {
    held: Vec<T>,
    form: F,
}

impl<T: Copy, F: Fn(&mut Builder, Var) -> T> Ahead<T, F> {
    /// The things `form(0) .. form(n - 1)`.
    pub fn new(b: &mut Builder, n: u64, form: F) -> Ahead<T, F> {
        let ahead = if n <= UNROLL * UNROLL { n } else { 0 };
        let mut held = Vec::new();
        for i in 0..ahead {
            let i = b.int(i);
            held.push(form(b, i));
        }
        Ahead { held, form }
    }

    /// One of them.
    pub fn at(&self, b: &mut Builder, i: Var) -> T {
        let held = b.known(i).and_then(|i| self.held.get(usize::try_from(i).ok()?).copied());
        held.unwrap_or_else(|| (self.form)(b, i))
    }
}
