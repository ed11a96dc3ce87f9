//! Each op alone.

use crate::case::{Case, rows_of, run};
use dsc_ir::dtype::{DType, RowFormat, WeightFormat};
use dsc_ir::expr::{Expr, Sym};
use dsc_ir::op::*;

const FLOATS: [DType; 2] = [DType::F32, DType::Bf16];
const PACKED: [DType; 6] = [
    DType::Packed(RowFormat::F32),
    DType::Packed(RowFormat::Bf16),
    DType::Packed(RowFormat::Fp8),
    DType::Packed(RowFormat::MxFp4),
    DType::Packed(RowFormat::Fp4),
    DType::Packed(RowFormat::Fp8Rope { rope: 32 }),
];
const WEIGHTS: [DType; 7] = [
    DType::F32,
    DType::Bf16,
    DType::Weight(WeightFormat::F32),
    DType::Weight(WeightFormat::Bf16),
    DType::Weight(WeightFormat::Fp8 { tile: 32 }),
    DType::Weight(WeightFormat::Fp8 { tile: 128 }),
    DType::Weight(WeightFormat::Fp4),
];

fn two_runs() -> Case {
    Case::new(&[run(1, 3, 5), run(0, 0, 4)])
}

#[test]
fn embed() {
    for dtype in WEIGHTS.into_iter().chain([DType::Packed(RowFormat::Fp8)]) {
        for out in FLOATS {
            let mut c = two_runs();
            let table = c.weight("table", dtype, &[13, 64]);
            c.op(Embed {}, &[table, c.steps], &[("y", out)]);
            c.check(0.0);
        }
    }
}

#[test]
fn repeat_and_one_hot() {
    for n in [3, 11] {
        let mut c = two_runs();
        let x = c.input("x", DType::Bf16, &[7]);
        c.op(Repeat { n }, &[x], &[("y", DType::Bf16)]);
        c.check(0.0);
    }
    let mut c = two_runs();
    c.op(OneHot { n: 5, index: 2 }, &[c.steps], &[("y", DType::F32)]);
    c.check(0.0);
}

#[test]
fn take_rows() {
    for dtype in FLOATS.into_iter().chain(PACKED) {
        let mut c = two_runs();
        c.rows = Expr::Sym(Sym::OutRows);
        let x = c.input("x", dtype, &[3, 96]);
        let rows = c.ints("rows", vec![Expr::Sym(Sym::OutRows)], vec![8, 0, 4]);
        c.op(TakeRows {}, &[x, rows], &[("y", dtype)]);
        c.check(0.0);
    }
}

#[test]
fn add() {
    for a in FLOATS {
        for b in [DType::F32, DType::Bf16, DType::Packed(RowFormat::Fp8)] {
            let mut c = two_runs();
            let x = c.input("x", a, &[2, 64]);
            let y = c.input("y", b, &[2, 64]);
            c.op(Add {}, &[x, y], &[("z", a)]);
            c.check(0.0);
        }
    }
}

#[test]
fn mhc() {
    for (n, d) in [(4, 24), (1, 8), (9, 16)] {
        let m = (2 + n) * n;
        let mut c = two_runs();
        let x = c.input("x", DType::Bf16, &[n, d]);
        let f = c.weight("fn", DType::F32, &[m, n * d]);
        let scale = c.weight("scale", DType::F32, &[3]);
        let base = c.weight("base", DType::F32, &[m]);
        let stats = c.op(MhcStats { eps: 1e-20 }, &[x, f], &[("m", DType::F32)]);
        let parts = [("pre", DType::F32), ("post", DType::F32), ("comb", DType::F32)];
        c.op(MhcCoeffs { iters: 20, eps: 1e-6 }, &[stats[0], scale, base], &parts);
        c.check(2e-5);
    }
}

#[test]
fn mhc_stats_of_a_bf16_matrix() {
    let mut c = two_runs();
    let x = c.input("x", DType::F32, &[4, 24]);
    let f = c.weight("fn", DType::Bf16, &[24, 96]);
    c.op(MhcStats { eps: 1e-6 }, &[x, f], &[("m", DType::F32)]);
    c.check(2e-5);
}

#[test]
fn head_coeffs() {
    let mut c = two_runs();
    let m = c.input("m", DType::F32, &[4]);
    let scale = c.weight("scale", DType::F32, &[1]);
    let base = c.weight("base", DType::F32, &[4]);
    c.op(HeadCoeffs { eps: 1e-6 }, &[m, scale, base], &[("w", DType::F32)]);
    c.check(2e-7);
}

#[test]
fn collapse_and_expand() {
    for n in [4, 10] {
        for dtype in FLOATS {
            let mut c = two_runs();
            let x = c.input("x", dtype, &[n, 13]);
            let p = c.input("p", DType::F32, &[n]);
            c.op(Collapse {}, &[x, p], &[("y", dtype)]);
            c.check(2e-6);
            let mut c = two_runs();
            let y = c.input("y", dtype, &[13]);
            let x = c.input("x", dtype, &[n, 13]);
            let post = c.input("post", DType::F32, &[n]);
            let comb = c.input("comb", DType::F32, &[n, n]);
            c.op(Expand {}, &[y, x, post, comb], &[("z", dtype)]);
            c.check(2e-6);
        }
    }
}

#[test]
fn rms_norm() {
    for dtype in FLOATS.into_iter().chain([DType::Packed(RowFormat::Fp8)]) {
        for shape in [&[96][..], &[3, 32]] {
            for weighted in [false, true] {
                let mut c = two_runs();
                let x = c.input("x", dtype, shape);
                let mut inputs = vec![x];
                if weighted {
                    inputs.push(c.weight("w", DType::Bf16, &shape[shape.len() - 1..]));
                }
                c.op(RmsNorm { eps: 1e-6 }, &inputs, &[("y", DType::F32)]);
                c.check(1e-5);
            }
        }
    }
}

fn rope_op(inverse: bool, at: RopeAt, factor: f64) -> Rope {
    Rope { rotary: 6, inverse, at, ratio: 4, base: 10000.0, factor, original: 16, beta_fast: 32.0, beta_slow: 1.0 }
}

#[test]
fn rope() {
    for dtype in FLOATS {
        for (inverse, at, factor) in
            [(false, RopeAt::Token, 0.0), (true, RopeAt::Token, 4.0), (false, RopeAt::Entry, 4.0)]
        {
            for shape in [&[10][..], &[3, 10], &[2, 6]] {
                let mut c = Case::new(&[run(0, 1000, 5), run(1, 0, 2)]);
                let x = c.input("x", dtype, shape);
                c.op(rope_op(inverse, at, factor), &[x, c.steps], &[("y", dtype)]);
                c.check(5e-7);
            }
        }
    }
}

#[test]
fn hadamard() {
    for shape in [&[1][..], &[32], &[3, 8]] {
        let mut c = two_runs();
        let x = c.input("x", DType::F32, shape);
        c.op(Hadamard {}, &[x], &[("y", DType::F32)]);
        c.check(2e-6);
    }
}

/// Values that meet every branch of the quantisers: ties, zeros, huge, tiny, special ones.
fn awkward(c: &mut Case, n: usize) -> Vec<f32> {
    let special = [0.0, -0.0, 1e-30, -1e-42, 448.0, 464.0, 1e30, -3e38, f32::INFINITY, 0.25, 0.75, 2.5, 5.0, -1.25];
    (0..n)
        .map(|i| match i % 5 {
            0 if i % 3 == 0 => special[(i / 15) % special.len()],
            1 => c.random() * 1000.0,
            2 => (c.random() * 16.0).round() / 4.0,
            3 => c.random() * 1e-6,
            _ => c.random(),
        })
        .collect()
}

#[test]
fn quantize() {
    for dtype in FLOATS {
        for format in PACKED {
            let DType::Packed(format) = format else { continue };
            for wild in [false, true] {
                let mut c = Case::new(&[run(0, 0, 9)]);
                let mut data = c.randoms(9 * 2 * 96);
                if wild {
                    data = awkward(&mut c, 9 * 2 * 96);
                }
                let x = c.input_of("x", dtype, &[2, 96], data);
                c.op(Quantize { format }, &[x], &[("y", DType::Packed(format))]);
                c.check(0.0);
            }
        }
    }
}

#[test]
fn packed_rows_read_back() {
    for dtype in PACKED {
        let mut c = Case::new(&[run(0, 0, 9)]);
        let data = awkward(&mut c, 9 * 2 * 96).into_iter().map(|x| x.clamp(-1e30, 1e30)).collect();
        let x = c.input_of("x", dtype, &[2, 96], data);
        let zero = c.input_of("zero", DType::F32, &[2, 96], vec![0.0; 9 * 2 * 96]);
        c.op(Add {}, &[x, zero], &[("y", DType::F32)]);
        c.check(0.0);
    }
}

#[test]
fn linear() {
    for w in WEIGHTS {
        for x in FLOATS.into_iter().chain([DType::Packed(RowFormat::Fp8)]) {
            for out in FLOATS {
                let mut c = two_runs();
                let x = c.input("x", x, &[2, 64]);
                let (a, b) = (c.weight("a", w, &[70, 128]), c.weight("b", w, &[3, 128]));
                c.op(Linear { heads: vec![0, 1] }, &[x, a, b], &[("y", out), ("z", out)]);
                c.check(2e-5);
            }
        }
    }
}

#[test]
fn linear_of_odd_sizes() {
    for w in [DType::F32, DType::Bf16, DType::Weight(WeightFormat::Fp8 { tile: 32 }), DType::Weight(WeightFormat::Fp4)]
    {
        let mut c = two_runs();
        let x = c.input("x", DType::Bf16, &[37]);
        let a = c.weight("a", w, &[33, 37]);
        c.op(Linear { heads: vec![3] }, &[x, a], &[("y", DType::F32)]);
        c.check(1e-5);
    }
}

#[test]
fn group_linear() {
    for w in WEIGHTS {
        let mut c = two_runs();
        let x = c.input("x", DType::Bf16, &[4, 64]);
        let a = c.weight("a", w, &[12, 128]);
        c.op(GroupLinear { groups: 2 }, &[x, a], &[("y", DType::Bf16)]);
        c.check(2e-5);
    }
}

#[test]
fn expert_linear() {
    for w in WEIGHTS {
        for per_slot in [false, true] {
            let mut c = two_runs();
            let shape: &[u64] = if per_slot { &[2, 64] } else { &[64] };
            let x = c.input("x", DType::Packed(RowFormat::Fp8), shape);
            let ids: Vec<i32> = (0..9).flat_map(|t| [(t * 3) % 5, (t * 3 + 1 + t % 2) % 5]).collect();
            let ids = c.ints("ids", rows_of(&[2]), ids);
            let (a, b) = (c.weight("a", w, &[5, 40, 64]), c.weight("b", w, &[5, 7, 64]));
            c.op(ExpertLinear {}, &[x, ids, a, b], &[("y", DType::Bf16), ("z", DType::F32)]);
            c.check(1e-5);
        }
    }
}

#[test]
fn swiglu() {
    for limit in [0.0, 1.5] {
        for dtype in FLOATS {
            let mut c = two_runs();
            let data: Vec<f32> = c.randoms(9 * 2 * 13).into_iter().map(|x| 4.0 * x).collect();
            let g = c.input_of("g", dtype, &[2, 13], data);
            let u = c.input("u", dtype, &[2, 13]);
            c.op(SwiGlu { limit, weighted: false }, &[g, u], &[("y", dtype)]);
            let w = c.input("w", DType::F32, &[2]);
            c.op(SwiGlu { limit, weighted: true }, &[g, u, w], &[("z", dtype)]);
            c.check(2e-6);
        }
    }
}

#[test]
fn expert_sum() {
    for shared in [false, true] {
        let mut c = two_runs();
        let y = c.input("y", DType::Bf16, &[3, 17]);
        let ids: Vec<i32> = (0..9).flat_map(|t| [(t * 5) % 7, (t * 5 + 3) % 7, (t * 5 + 1) % 7]).collect();
        let ids = c.ints("ids", rows_of(&[3]), ids);
        let mut inputs = vec![y, ids];
        if shared {
            inputs.push(c.input("s", DType::Bf16, &[17]));
        }
        c.op(ExpertSum { shared }, &inputs, &[("z", DType::F32)]);
        c.check(1e-6);
    }
}

#[test]
fn router_top_k() {
    for image_bias in [false, true] {
        for (k, norm) in [(1, true), (3, true), (6, false)] {
            let mut c = Case::with(&[run(0, 0, 9)], 64, &[2, 3]);
            let data: Vec<f32> = c.randoms(9 * 12).into_iter().map(|x| 30.0 * x).collect();
            let z = c.input_of("z", DType::F32, &[12], data);
            let bias = c.weight("bias", DType::F32, &[12]);
            let mut inputs = vec![z, bias, c.steps];
            if image_bias {
                inputs.push(c.weight("image", DType::F32, &[12]));
            }
            let outs = [("ids", DType::I32), ("w", DType::F32)];
            c.op(RouterTopK { k, norm, scale: 1.5, image_bias }, &inputs, &outs);
            c.check(2e-6);
        }
    }
}

#[test]
fn router_ties_go_to_the_lower_expert() {
    let mut c = Case::new(&[run(0, 0, 2)]);
    let z = c.input_of("z", DType::F32, &[6], vec![1.0; 12]);
    let bias = c.weight_of("bias", &[6], vec![0.0, 1.0, 0.0, 1.0, 1.0, 0.0]);
    let outs = [("ids", DType::I32), ("w", DType::F32)];
    c.op(RouterTopK { k: 4, norm: true, scale: 1.0, image_bias: false }, &[z, bias, c.steps], &outs);
    c.check(2e-6);
}

#[test]
fn router_hash() {
    let mut c = two_runs();
    let z = c.input("z", DType::F32, &[8]);
    let table = c.int_weight("table", &[13, 2], (0..26).map(|i| (i * 3) % 8).collect());
    let outs = [("ids", DType::I32), ("w", DType::F32)];
    c.op(RouterHash { k: 2, norm: true, scale: 2.5 }, &[z, table, c.steps], &outs);
    c.check(2e-6);
}

#[test]
fn engram_hash() {
    let mut c = Case::with(&[run(1, 3, 6), run(0, 0, 5)], 64, &[2, 7]);
    let map = c.int_weight("map", &[13], (0..13).map(|i| (i * 5) % 9).collect());
    let ring = c.ring("ids", DType::I32, 5, 1);
    let op = EngramHash {
        layers: 2,
        max_ngram: 4,
        heads: 2,
        pad_token: 2,
        multipliers: (0..8).map(|i| (1u64 << 55) + 2 * i + 1).collect(),
        primes: vec![97, 101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151],
    };
    c.op(op, &[map, c.steps, ring], &[("rows", DType::I32), ("own", DType::I32)]);
    c.check(0.0);
}

#[test]
fn engram_gather_and_inject() {
    for dtype in [DType::Packed(RowFormat::Fp8), DType::Packed(RowFormat::Bf16)] {
        let mut c = two_runs();
        let table = c.weight("table", dtype, &[20, 32]);
        let ids = c.ints("ids", rows_of(&[2, 3]), (0..54).map(|i| (i * 7) % 20).collect());
        c.op(EngramGather { plane: 1 }, &[table, ids], &[("y", DType::Bf16)]);
        c.check(0.0);
    }
    let mut c = Case::with(&[run(0, 0, 5)], 64, &[1]);
    let x = c.input("x", DType::Bf16, &[4, 24]);
    let kv = c.input("kv", DType::Bf16, &[5 * 24]);
    let (qw, kw) = (c.weight("qw", DType::Bf16, &[4, 24]), c.weight("kw", DType::Bf16, &[4, 24]));
    c.op(EngramInject { eps: 1e-6 }, &[x, kv, qw, kw, c.steps], &[("y", DType::F32)]);
    c.check(5e-6);
}

#[test]
fn all_reduce() {
    let mut c = two_runs();
    let x = c.input("x", DType::Bf16, &[7]);
    c.op(AllReduce { ranks: 1 }, &[x], &[("y", DType::F32)]);
    c.check(0.0);
}
