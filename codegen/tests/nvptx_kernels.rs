//! Whole kernels as PTX, run by the emulator: every node against the interpreter, and the same bits when values stay
//! inside the kernel and when heads are done one at a time.
#![cfg(feature = "nvptx")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests may panic
#![allow(unsafe_code, dead_code)] // the shared helpers call compiled kernels

#[path = "cpu/case.rs"]
mod case;
#[path = "cpu/jit.rs"]
mod jit;
mod nvptx_common;

use case::{Case, run, same};
use dsc_codegen::lower::{LowerOptions, lower};
use dsc_codegen::nvptx::row::{RowPlan, emit_row};
use dsc_ir::dtype::{DType, RowFormat, WeightFormat};
use dsc_ir::interp::Values;
use dsc_ir::kernel::Kernel;
use dsc_ir::op::*;
use nvptx_common::emulator::{Launch, Order, Program};
use nvptx_common::target;

const FP4: DType = DType::Weight(WeightFormat::Fp4);
const FP8: DType = DType::Weight(WeightFormat::Fp8 { tile: 32 });
const FP8_ROWS: DType = DType::Packed(RowFormat::Fp8);

/// Runs a kernel as PTX, with the threads of a block in both orders, which must not matter.
fn emulate(c: &Case, kernel: &Kernel, limit: Option<u64>) -> Values {
    let target = target("sm_75");
    let func = lower(kernel, "dsc_test", &LowerOptions::lanes(limit)).unwrap();
    let plan = RowPlan::new(&func, kernel.rows.clone(), &target).unwrap();
    let gpu = emit_row(&func, &target, &plan).unwrap();
    let program = Program::parse(&gpu.ptx);
    let [up, down] = [Order::Ascending, Order::Descending].map(|order| {
        let mut buffers = c.contents(kernel);
        program.run(&mut Launch {
            grid: [0, 1, 2].map(|i: usize| gpu.grid[i].eval(&c.env) as u32),
            threads: gpu.threads,
            smem_dynamic: gpu.smem_dynamic_bytes,
            dims: c.env.dims(),
            buffers: &mut buffers,
            order,
        });
        c.written(kernel, &buffers)
    });
    same(&c.graph, &up, &down, "another order of threads");
    up
}

fn check(c: &Case, slack: f32) {
    let all = c.kernel(&c.all_results());
    let base = emulate(c, &all, None);
    c.against_interpreter(&base, slack);
    let kept = c.kernel(&c.keep);
    for limit in [None, Some(0)] {
        same(&c.graph, &base, &emulate(c, &kept, limit), "values inside");
    }
}

fn rope(inverse: bool) -> Rope {
    let at = RopeAt::Token;
    Rope { rotary: 8, inverse, at, ratio: 0, base: 1e4, factor: 0.0, original: 0, beta_fast: 0.0, beta_slow: 0.0 }
}

#[test]
fn experts_with_a_shared_one() {
    let mut c = Case::new(&[run(0, 0, 2)]);
    let x = c.input("x", FP8_ROWS, &[64]);
    let table: Vec<i32> = vec![4, 1, 2, 0, 5, 3];
    let ids = c.ints("ids", case::rows_of(&[3]), table);
    let w = c.input("w", DType::F32, &[3]);
    let [w1, w3] = ["w1", "w3"].map(|name| c.weight(name, FP4, &[6, 32, 64]));
    let w2 = c.weight("w2", FP4, &[6, 64, 32]);
    let [s1, s3] = ["s1", "s3"].map(|name| c.weight(name, FP8, &[32, 64]));
    let s2 = c.weight("s2", FP8, &[64, 32]);
    let h = c.op(ExpertLinear {}, &[x, ids, w1, w3], &[("g", DType::Bf16), ("u", DType::Bf16)]);
    let a = c.op(SwiGlu { limit: 10.0, weighted: true }, &[h[0], h[1], w], &[("a", DType::Bf16)])[0];
    let q = c.op(Quantize { format: RowFormat::Fp8 }, &[a], &[("q", FP8_ROWS)])[0];
    let y = c.op(ExpertLinear {}, &[q, ids, w2], &[("y", DType::Bf16)])[0];
    let h = c.op(Linear { heads: vec![0, 0] }, &[x, s1, s3], &[("sg", DType::Bf16), ("su", DType::Bf16)]);
    let a = c.op(SwiGlu { limit: 10.0, weighted: false }, &[h[0], h[1]], &[("sa", DType::Bf16)])[0];
    let shared = c.op(Linear { heads: vec![0] }, &[a, s2], &[("sy", DType::Bf16)])[0];
    c.op(ExpertSum { shared: true }, &[y, ids, shared], &[("sum", DType::Bf16)]);
    check(&c, 5e-5);
}

#[test]
fn attention_between_rotations() {
    let mut c = Case::new(&[run(0, 9, 2), run(1, 0, 1)]);
    let (heads, d) = (4, 32);
    let q = c.input("q", DType::Bf16, &[heads, d]);
    let rows = c.input("rows", FP8_ROWS, &[d]);
    let ring = c.ring("ring", FP8_ROWS, 8, d);
    let sink = c.weight("sink", DType::F32, &[heads]);
    let pages = c.pages("pages", DType::Packed(RowFormat::Fp4), 4, d);
    let ids = c.ints("ids", case::rows_of(&[3]), vec![0, 1, -1, 1, -1, -1, -1, -1, -1]);
    let normed = c.op(RmsNorm { eps: 1e-6 }, &[q], &[("normed", DType::Bf16)])[0];
    let turned = c.op(rope(false), &[normed, c.steps], &[("turned", DType::Bf16)])[0];
    let scale = 0.2;
    let attention =
        SparseAttention { window: 8, ratio: 4, scale, sink: true, select: Select::Listed, round_probs: false };
    let o = c.op(attention, &[turned, rows, ring, c.steps, sink, pages, ids], &[("o", DType::Bf16)])[0];
    let back = c.op(rope(true), &[o, c.steps], &[("back", DType::Bf16)])[0];
    c.op(Quantize { format: RowFormat::Fp8 }, &[back], &[("packed", FP8_ROWS)]);
    check(&c, 2e-5);
}

#[test]
fn linears_with_ops_after_them() {
    let mut c = Case::new(&[run(0, 0, 2)]);
    let x = c.input("x", DType::Bf16, &[2, 48]);
    let w = c.weight("w", FP8, &[160, 48]);
    let y = c.op(GroupLinear { groups: 2 }, &[x, w], &[("y", DType::Bf16)])[0];
    let gate = c.weight("gate", DType::Bf16, &[9, 160]);
    let bias = c.weight("bias", DType::F32, &[9]);
    let q = c.op(Quantize { format: RowFormat::Fp8 }, &[y], &[("q", FP8_ROWS)])[0];
    let z = c.op(Linear { heads: vec![0] }, &[y, gate], &[("z", DType::F32)])[0];
    let router = RouterTopK { k: 2, norm: true, scale: 1.5, image_bias: false };
    let chosen = c.op(router, &[z, bias, c.steps], &[("ids", DType::I32), ("weights", DType::F32)]);
    c.keep = vec![q, chosen[0], chosen[1]];
    check(&c, 5e-5);
}

#[test]
fn hyper_connections() {
    let mut c = Case::new(&[run(0, 0, 2)]);
    let (x, y) = (c.input("x", DType::Bf16, &[4, 32]), c.input("y", DType::Bf16, &[32]));
    let f = c.weight("fn", DType::F32, &[24, 128]);
    let (scale, base) = (c.weight("scale", DType::F32, &[3]), c.weight("base", DType::F32, &[24]));
    let m = c.op(MhcStats { eps: 1e-6 }, &[x, f], &[("m", DType::F32)])[0];
    let parts = [("pre", DType::F32), ("post", DType::F32), ("comb", DType::F32)];
    let k = c.op(MhcCoeffs { iters: 3, eps: 1e-6 }, &[m, scale, base], &parts);
    let new = c.op(Expand {}, &[y, x, k[1], k[2]], &[("new", DType::Bf16)])[0];
    c.op(Collapse {}, &[new, k[0]], &[("u", DType::Bf16)]);
    check(&c, 2e-5);
}

#[test]
fn index_scores_and_their_best() {
    let mut c = Case::new(&[run(0, 21, 2)]);
    let key = DType::Packed(RowFormat::MxFp4);
    let (q, w) = (c.input("q", key, &[2, 32]), c.input("w", DType::F32, &[2]));
    let keys = c.pages("keys", key, 2, 32);
    let scores = IndexScores { ratio: 2, block: 0, scale: 0.5 };
    let i = c.op(scores, &[q, w, keys, c.steps], &[("scores", DType::F32)])[0];
    c.op(TopK { k: 4, ratio: 2, block: 0 }, &[i, c.steps], &[("best", DType::I32)]);
    // Rows of symbolic size stay parameters.
    c.keep = c.all_results();
    check(&c, 1e-4);
}
