//! Loop programs in the manner of real row kernels.

use dsc_codegen::loops::{Builder, Cmp, Combine, FOp, FUn, Func, IOp, Mem, Param, Place};
use dsc_ir::expr::Sym;

fn params(names: &[&str]) -> Vec<Param> {
    names.iter().map(|n| Param { name: (*n).into(), written: false }).collect()
}

/// Root-mean-square normalisation of bf16 rows, kept in scratch between both passes.
pub fn rms_norm(hidden: u64) -> Func {
    let mut b = Builder::new("dsc_test_rms_norm", params(&["x", "w", "y"]), 1);
    let kept = b.scratch("x", hidden * 4);
    let row = b.row_begin();
    let base = b.imul_c(row, hidden as i64 * 2);
    let n = b.int(hidden);
    b.lanes(n, |b, i| {
        let at = b.imul_c(i, 2);
        let from = b.iadd(base, at);
        let x = b.load(Place::Param(0), from, Mem::Bf16);
        let at = b.imul_c(i, 4);
        b.store(kept, at, Mem::F32, x);
    });
    let sum = b.reduce(n, Combine::Sum, |b, i| {
        let at = b.imul_c(i, 4);
        let x = b.load(kept, at, Mem::F32);
        b.fmul(x, x)
    });
    let count = b.float(hidden as f32);
    let mean = b.fdiv(sum, count);
    let eps = b.float(1e-6);
    let under = b.fadd(mean, eps);
    let root = b.u(FUn::Sqrt, under);
    let one = b.float(1.0);
    let scale = b.fdiv(one, root);
    b.lanes(n, |b, i| {
        let at = b.imul_c(i, 4);
        let x = b.load(kept, at, Mem::F32);
        let w = b.load(Place::Param(1), at, Mem::F32);
        let y = b.fmul(x, scale);
        let y = b.fmul(y, w);
        let at = b.imul_c(i, 2);
        let to = b.iadd(base, at);
        b.store(Place::Param(2), to, Mem::Bf16, y);
    });
    b.finish()
}

/// Numerically safe softmax of f32 rows, in one reduction of two values after the maximum.
pub fn softmax(n: u64) -> Func {
    let mut b = Builder::new("dsc_test_softmax", params(&["x", "y", "count"]), 1);
    let row = b.row_begin();
    let base = b.imul_c(row, n as i64 * 4);
    let n = b.int(n);
    let max = b.reduce(n, Combine::Max, |b, i| {
        let at = b.imul_c(i, 4);
        let from = b.iadd(base, at);
        b.load(Place::Param(0), from, Mem::F32)
    });
    let sums = b.reduce_n(n, |b, i| {
        let at = b.imul_c(i, 4);
        let from = b.iadd(base, at);
        let x = b.load(Place::Param(0), from, Mem::F32);
        let x = b.fsub(x, max);
        let e = b.u(FUn::Exp, x);
        let half = b.float(0.5);
        let big = b.cmp(Cmp::Gt, e, half);
        let (one, zero) = (b.int(1), b.int(0));
        let hit = b.select(big, one, zero);
        vec![(Combine::Sum, e), (Combine::SumI, hit)]
    });
    b.lanes(n, |b, i| {
        let at = b.imul_c(i, 4);
        let from = b.iadd(base, at);
        let x = b.load(Place::Param(0), from, Mem::F32);
        let x = b.fsub(x, max);
        let e = b.u(FUn::Exp, x);
        let y = b.fdiv(e, sums[0]);
        b.store(Place::Param(1), from, Mem::F32, y);
    });
    let at = b.imul_c(row, 4);
    b.store(Place::Param(2), at, Mem::I32, sums[1]);
    b.finish()
}

/// The `k` best of `n` scores by repeated selection; the chosen column is struck out by a uniform store.
pub fn top_k(n: u64, k: u64) -> Func {
    let mut b = Builder::new("dsc_test_top_k", params(&["scores", "best"]), 1);
    let left = b.scratch("scores", n * 4);
    let row = b.row_begin();
    let base = b.imul_c(row, n as i64 * 4);
    let count = b.int(n);
    b.lanes(count, |b, i| {
        let at = b.imul_c(i, 4);
        let from = b.iadd(base, at);
        let x = b.load(Place::Param(0), from, Mem::F32);
        b.store(left, at, Mem::F32, x);
    });
    let (zero, k_var) = (b.int(0), b.int(k));
    b.for_(zero, k_var, |b, j| {
        let (_, best) = b.argmax(count, |b, i| {
            let at = b.imul_c(i, 4);
            b.load(left, at, Mem::F32)
        });
        let some = b.cmp(Cmp::Ge, best, zero);
        b.if_(some, |b| {
            let at = b.imul_c(best, 4);
            let worst = b.float(f32::NEG_INFINITY);
            b.store(left, at, Mem::F32, worst);
        });
        let at = b.imul_c(row, k as i64);
        let at = b.iadd(at, j);
        let at = b.imul_c(at, 4);
        b.store(Place::Param(1), at, Mem::I32, best);
    });
    b.finish()
}

/// Uniform loads and stores of scratch in a sequential loop: a running sum, read back and stored each step.
pub fn running_sum(n: u64) -> Func {
    let mut b = Builder::new("dsc_test_running_sum", params(&["x", "y"]), 1);
    let acc = b.scratch("sum", 16);
    let row = b.row_begin();
    let base = b.imul_c(row, n as i64 * 4);
    let (zero, n) = (b.int(0), b.int(n));
    let nothing = b.float(0.0);
    b.store(acc, zero, Mem::F32, nothing);
    let last = b.fold_(zero, n, [nothing], |b, i, [seen]| {
        let at = b.imul_c(i, 4);
        let from = b.iadd(base, at);
        let x = b.load(Place::Param(0), from, Mem::F32);
        let sum = b.load(acc, zero, Mem::F32);
        let sum = b.fadd(sum, x);
        b.store(acc, zero, Mem::F32, sum);
        b.store(Place::Param(1), from, Mem::F32, sum);
        [b.f(FOp::Max, seen, sum)]
    });
    let at = b.imul_c(row, 4);
    let end = b.dim(Sym::Tokens);
    let end = b.imul(end, n);
    let end = b.imul_c(end, 4);
    let at = b.iadd(end, at);
    b.store(Place::Param(1), at, Mem::F32, last[0]);
    b.finish()
}

/// Every function and integer operation, element by element.
pub fn functions(n: u64) -> Func {
    let mut b = Builder::new("dsc_test_functions", params(&["x", "y"]), 1);
    let row = b.row_begin();
    let base = b.imul_c(row, n as i64 * 4);
    let total = b.dim(Sym::Tokens);
    let plane = b.imul_c(total, n as i64 * 4);
    let n = b.int(n);
    let all = [FUn::Neg, FUn::Abs, FUn::Sqrt, FUn::Exp, FUn::Log1p, FUn::Sin, FUn::Cos, FUn::Rint];
    b.lanes(n, |b, i| {
        let at = b.imul_c(i, 4);
        let from = b.iadd(base, at);
        let x = b.load(Place::Param(0), from, Mem::F32);
        let mut to = from;
        for f in all {
            let y = b.u(f, x);
            b.store(Place::Param(1), to, Mem::F32, y);
            to = b.iadd(to, plane);
        }
        let y = b.fma(x, x, x);
        b.store(Place::Param(1), to, Mem::F32, y);
        to = b.iadd(to, plane);
        let bits = b.bits(x);
        let mask = b.int(0xFF_FFFF);
        let mut z = b.i(IOp::And, bits, mask);
        let seven = b.int(7);
        for op in [IOp::Div, IOp::Rem, IOp::Or, IOp::Xor, IOp::Shl, IOp::Shr, IOp::Min, IOp::Max, IOp::Sub, IOp::Add] {
            let shifted = b.iadd_c(z, 1000);
            z = b.i(op, shifted, seven);
        }
        let z = b.itof(z);
        b.store(Place::Param(1), to, Mem::F32, z);
    });
    b.finish()
}

/// Byte codes out of and into memory: groups of 32 to E4M3-like bytes with a power-of-two scale.
pub fn byte_codes(n: u64) -> Func {
    let mut b = Builder::new("dsc_test_byte_codes", params(&["x", "y"]), 1);
    let row = b.row_begin();
    let groups = n / 32;
    let row_bytes = (n + groups) as i64;
    let base = b.imul_c(row, n as i64 * 4);
    let out = b.imul_c(row, row_bytes);
    let (zero, per) = (b.int(0), b.int(32));
    let count = b.int(groups);
    b.lanes(count, |b, g| {
        let first = b.imul_c(g, 32);
        let floor = b.float(1e-4);
        let [amax] = b.fold_(zero, per, [floor], |b, i, [m]| {
            let at = b.iadd(first, i);
            let at = b.imul_c(at, 4);
            let from = b.iadd(base, at);
            let x = b.load(Place::Param(0), from, Mem::F32);
            let x = b.u(FUn::Abs, x);
            [b.f(FOp::Max, m, x)]
        });
        let bits = b.bits(amax);
        let (shift, low) = (b.int(23), b.int(0x7F_FFFF));
        let exponent = b.i(IOp::Shr, bits, shift);
        let fraction = b.i(IOp::And, bits, low);
        let some = b.cmp(Cmp::Ne, fraction, zero);
        let one = b.int(1);
        let up = b.select(some, one, zero);
        let code = b.iadd(exponent, up);
        let at = b.iadd_c(g, n as i64);
        let to = b.iadd(out, at);
        b.store(Place::Param(1), to, Mem::U8, code);
        let scale = b.i(IOp::Shl, code, shift);
        let scale = b.from_bits(scale);
        b.for_(zero, per, |b, i| {
            let at = b.iadd(first, i);
            let bytes = b.imul_c(at, 4);
            let from = b.iadd(base, bytes);
            let x = b.load(Place::Param(0), from, Mem::F32);
            let x = b.fdiv(x, scale);
            let steps = b.float(100.0);
            let x = b.fmul(x, steps);
            let x = b.u(FUn::Rint, x);
            let x = b.ftoi(x);
            let x = b.iadd_c(x, 128);
            let to = b.iadd(out, at);
            b.store(Place::Param(1), to, Mem::U8, x);
        });
    });
    b.finish()
}

/// All of them at small, awkward sizes.
pub fn all() -> Vec<Func> {
    vec![
        rms_norm(136),
        rms_norm(7168),
        softmax(1000),
        softmax(24),
        top_k(300, 6),
        running_sum(17),
        functions(129),
        byte_codes(416),
    ]
}
