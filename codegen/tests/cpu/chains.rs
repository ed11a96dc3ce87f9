//! Chains of ops in one kernel, and hand-computed results.

use crate::case::{Case, rows_of, run};
use dsc_codegen::lower::{LowerOptions, lower};
use dsc_ir::dtype::{DType, RowFormat, WeightFormat};
use dsc_ir::op::*;

#[test]
fn norm_quantize_linear_swiglu() {
    for mid in [DType::Bf16, DType::F32] {
        let mut c = Case::new(&[run(0, 0, 7)]);
        let x = c.input("x", DType::Bf16, &[4, 64]);
        let p = c.input("p", DType::F32, &[4]);
        let w = c.weight("norm", DType::Bf16, &[64]);
        let up = c.weight("up", DType::Weight(WeightFormat::Fp8 { tile: 32 }), &[96, 64]);
        let gate = c.weight("gate", DType::Weight(WeightFormat::Fp8 { tile: 32 }), &[96, 64]);
        let down = c.weight("down", DType::Weight(WeightFormat::Fp4), &[64, 96]);
        let u = c.op(Collapse {}, &[x, p], &[("u", mid)])[0];
        let n = c.op(RmsNorm { eps: 1e-6 }, &[u, w], &[("n", mid)])[0];
        let q = c.op(Quantize { format: RowFormat::Fp8 }, &[n], &[("q", DType::Packed(RowFormat::Fp8))])[0];
        let g = c.op(Linear { heads: vec![0, 0] }, &[q, gate, up], &[("g", mid), ("v", mid)]);
        let h = c.op(SwiGlu { limit: 10.0, weighted: false }, &[g[0], g[1]], &[("h", mid)])[0];
        let hq = c.op(Quantize { format: RowFormat::Fp8 }, &[h], &[("hq", DType::Packed(RowFormat::Fp8))])[0];
        let y = c.op(Linear { heads: vec![0] }, &[hq, down], &[("y", mid)])[0];
        let s = c.op(Add {}, &[y, u], &[("s", DType::Bf16)])[0];
        c.keep = vec![s];
        c.check(2e-4);
    }
}

#[test]
fn queries_per_head() {
    let mut c = Case::new(&[run(0, 3, 6), run(1, 0, 2)]);
    let x = c.input("x", DType::Bf16, &[32]);
    let w = c.weight("w", DType::Bf16, &[128, 32]);
    let flat = c.op(Linear { heads: vec![4] }, &[x, w], &[("flat", DType::Bf16)])[0];
    let normed = c.op(RmsNorm { eps: 1e-6 }, &[flat], &[("normed", DType::Bf16)])[0];
    let rope = Rope {
        rotary: 16,
        inverse: false,
        at: RopeAt::Token,
        ratio: 0,
        base: 10000.0,
        factor: 0.0,
        original: 0,
        beta_fast: 0.0,
        beta_slow: 0.0,
    };
    let turned = c.op(rope, &[normed, c.steps], &[("turned", DType::Bf16)])[0];
    let mixed = c.op(Hadamard {}, &[turned], &[("mixed", DType::Bf16)])[0];
    let packed = DType::Packed(RowFormat::MxFp4);
    c.op(Quantize { format: RowFormat::MxFp4 }, &[mixed], &[("q", packed)]);
    c.check(1e-5);
}

#[test]
fn router_and_experts() {
    let mut c = Case::new(&[run(0, 0, 10)]);
    let x = c.input("x", DType::Bf16, &[64]);
    let gate = c.weight("gate", DType::Bf16, &[6, 64]);
    let bias = c.weight("bias", DType::F32, &[6]);
    let fp4 = DType::Weight(WeightFormat::Fp4);
    let (w1, w3, w2) =
        (c.weight("w1", fp4, &[6, 32, 64]), c.weight("w3", fp4, &[6, 32, 64]), c.weight("w2", fp4, &[6, 64, 32]));
    let shared = c.input("shared", DType::Bf16, &[64]);
    let z = c.op(Linear { heads: vec![0] }, &[x, gate], &[("z", DType::F32)])[0];
    let router = RouterTopK { k: 2, norm: true, scale: 1.5, image_bias: false };
    let chosen = c.op(router, &[z, bias, c.steps], &[("ids", DType::I32), ("w", DType::F32)]);
    let h = c.op(ExpertLinear {}, &[x, chosen[0], w1, w3], &[("g", DType::Bf16), ("u", DType::Bf16)]);
    let a = c.op(SwiGlu { limit: 10.0, weighted: true }, &[h[0], h[1], chosen[1]], &[("a", DType::Bf16)])[0];
    let y = c.op(ExpertLinear {}, &[a, chosen[0], w2], &[("y", DType::Bf16)])[0];
    c.op(ExpertSum { shared: true }, &[y, chosen[0], shared], &[("sum", DType::Bf16)]);
    c.check(5e-5);
}

#[test]
fn hyper_connections() {
    let mut c = Case::new(&[run(0, 0, 5)]);
    let x = c.input("x", DType::Bf16, &[4, 32]);
    let y = c.input("y", DType::Bf16, &[32]);
    let f = c.weight("fn", DType::F32, &[24, 128]);
    let (scale, base) = (c.weight("scale", DType::F32, &[3]), c.weight("base", DType::F32, &[24]));
    let m = c.op(MhcStats { eps: 1e-6 }, &[x, f], &[("m", DType::F32)])[0];
    let parts = [("pre", DType::F32), ("post", DType::F32), ("comb", DType::F32)];
    let k = c.op(MhcCoeffs { iters: 20, eps: 1e-6 }, &[m, scale, base], &parts);
    let new = c.op(Expand {}, &[y, x, k[1], k[2]], &[("new", DType::Bf16)])[0];
    c.op(Collapse {}, &[new, k[0]], &[("u", DType::Bf16)]);
    c.check(2e-5);
}

#[test]
fn a_local_is_rounded_where_it_is_stored() {
    let mut c = Case::new(&[run(0, 0, 1)]);
    // 1 + 2^-9 is a bf16 tie that rounds to 1, so the second sum gives 1 and not 1 + 2^-8.
    let x = c.input_of("x", DType::F32, &[1], vec![1.0]);
    let e = c.input_of("e", DType::F32, &[1], vec![1.0 / 512.0]);
    let a = c.op(Add {}, &[x, e], &[("a", DType::Bf16)])[0];
    let b = c.op(Add {}, &[a, e], &[("b", DType::F32)])[0];
    let got = c.execute(&c.kernel(&[b]), &LowerOptions::cpu(4), &[(0, 1)]);
    assert_eq!(got[&b].to_floats().unwrap(), [1.0 + 1.0 / 512.0]);
}

#[test]
fn scratch_of_dead_values_is_used_again() {
    let mut c = Case::new(&[run(0, 0, 3)]);
    let mut x = c.input("x", DType::F32, &[16]);
    let y = c.input("y", DType::F32, &[16]);
    for name in ["a", "b", "c", "d", "e"] {
        x = c.op(Add {}, &[x, y], &[(name, DType::F32)])[0];
    }
    let func = lower(&c.kernel(&[x]), "dsc_test", &LowerOptions::cpu(4)).unwrap();
    assert_eq!(func.scratch.len(), 2);
    c.check(0.0);
}

#[test]
fn rows_of_another_kernel_are_refused() {
    let mut c = Case::new(&[run(0, 0, 3)]);
    let x = c.ints("x", rows_of(&[2]), vec![0; 6]);
    c.rows = dsc_ir::expr::Expr::Sym(dsc_ir::expr::Sym::Seqs);
    let y = c.op(Repeat { n: 2 }, &[x], &[("y", DType::F32)]);
    assert!(lower(&c.kernel(&y), "dsc_test", &LowerOptions::lanes(None)).is_err());
}

/// A kernel of ops drawn at random, each on values drawn from those made before.
fn random_chain(seed: u64) -> Case {
    let mut c = Case::new(&[run(0, 5, 6), run(1, 0, 3)]);
    c.reseed(seed);
    c.relative = 1e-5;
    let floats = [DType::F32, DType::Bf16];
    let mut flat = vec![c.input("x0", DType::Bf16, &[64]), c.input("x1", DType::F32, &[64])];
    let mut streams = vec![c.input("s0", DType::Bf16, &[3, 64])];
    for i in 0..14 {
        let dtype = floats[c.below(2)];
        let (x, y, s) = (flat[c.below(flat.len())], flat[c.below(flat.len())], streams[c.below(streams.len())]);
        let name = format!("v{i}");
        let out = [(name.as_str(), dtype)];
        match c.below(10) {
            0 => flat.extend(c.op(Add {}, &[x, y], &out)),
            1 => {
                let w = c.weight("w", DType::Bf16, &[64]);
                flat.extend(c.op(RmsNorm { eps: 1e-6 }, &[x, w], &out));
            }
            2 => flat.extend(c.op(Hadamard {}, &[x], &out)),
            3 => flat.extend(c.op(SwiGlu { limit: 2.0, weighted: false }, &[x, y], &out)),
            4 => {
                let format = [RowFormat::Fp8, RowFormat::MxFp4, RowFormat::Fp4][c.below(3)];
                let packed = [(name.as_str(), DType::Packed(format))];
                flat.extend(c.op(Quantize { format }, &[x], &packed));
            }
            5 => {
                let format = [WeightFormat::Fp8 { tile: 32 }, WeightFormat::Fp4, WeightFormat::Bf16][c.below(3)];
                let w = c.weight("w", DType::Weight(format), &[64, 64]);
                let made = c.op(Linear { heads: vec![0] }, &[x, w], &out);
                let scaled = format!("n{i}");
                flat.extend(c.op(RmsNorm { eps: 1e-6 }, &made, &[(scaled.as_str(), dtype)]));
            }
            6 => streams.extend(c.op(Repeat { n: 3 }, &[x], &out)),
            7 => {
                let p = c.input("p", DType::F32, &[3]);
                flat.extend(c.op(Collapse {}, &[s, p], &out));
            }
            8 => {
                let (post, comb) = (c.input("post", DType::F32, &[3]), c.input("comb", DType::F32, &[3, 3]));
                streams.extend(c.op(Expand {}, &[x, s, post, comb], &out));
            }
            _ => streams.extend(c.op(RmsNorm { eps: 1e-6 }, &[s], &out)),
        }
    }
    c
}

#[test]
fn random_chains() {
    for seed in 0..12 {
        random_chain(seed).check(1e-5);
    }
}
