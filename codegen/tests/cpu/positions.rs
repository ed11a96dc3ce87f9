//! Ops that read other positions: states, pooling, indexer, attention.

use crate::case::{Case, Run, rows_of, run};
use dsc_codegen::lower::LowerOptions;
use dsc_ir::dtype::{DType, RowFormat};
use dsc_ir::expr::{Expr, Sym};
use dsc_ir::graph::ValueId;
use dsc_ir::interp::Array;
use dsc_ir::op::*;

const KV: [DType; 4] =
    [DType::F32, DType::Bf16, DType::Packed(RowFormat::Fp8), DType::Packed(RowFormat::Fp8Rope { rope: 64 })];

fn steps_of() -> Vec<Vec<Run>> {
    vec![
        vec![run(0, 0, 1)],
        vec![run(0, 0, 13)],
        vec![run(1, 5, 9), run(0, 0, 3), run(2, 30, 1)],
        vec![run(0, 41, 1), run(1, 7, 1)],
    ]
}

#[test]
fn rings_and_pages() {
    for dtype in KV.into_iter().chain([DType::Packed(RowFormat::Fp4)]) {
        for runs in steps_of() {
            let mut c = Case::new(&runs);
            let ring = c.ring("ring", dtype, 6, 64);
            let pages = c.pages("pages", dtype, 4, 64);
            let x = c.input("x", dtype, &[64]);
            c.op(RingWrite {}, &[ring, x, c.steps], &[]);
            c.op(PageWrite { ratio: 4 }, &[pages, x, c.steps], &[]);
            c.check(0.0);
        }
    }
}

#[test]
fn pool() {
    for (ratio, overlap, bias) in [(2, false, false), (4, false, true), (4, true, true), (1, false, false)] {
        for runs in steps_of() {
            let mut c = Case::new(&runs);
            let v = c.input("v", DType::F32, &[24]);
            let s = c.input("s", DType::F32, &[24]);
            let (vr, sr) = (c.ring("vr", DType::F32, 9, 24), c.ring("sr", DType::F32, 9, 24));
            let mut inputs = vec![v, s, vr, sr, c.steps];
            if bias {
                inputs.push(c.weight("ape", DType::F32, &[u64::from(ratio), 24]));
            }
            c.op(Pool { ratio, overlap, bias }, &inputs, &[("y", DType::F32)]);
            c.check(2e-6);
        }
    }
}

/// Candidate blocks of every row, ascending, padded with -1.
fn blocks_of(c: &Case, runs: &[Run], ratio: u64, block: u64, keep: usize) -> Vec<i32> {
    let mut out = Vec::new();
    for r in runs {
        for i in 0..r.len {
            let seen = (r.start + i + 1) / ratio;
            let ids: Vec<i32> = (0..seen.div_ceil(block)).step_by(2).take(keep).map(|b| b as i32).collect();
            out.extend((0..keep).map(|j| ids.get(j).copied().unwrap_or(-1)));
        }
    }
    assert_eq!(out.len() as u64, c.env.n_tokens * keep as u64);
    out
}

#[test]
fn index_scores() {
    for keys in [DType::F32, DType::Packed(RowFormat::MxFp4)] {
        for listed in [false, true] {
            for runs in steps_of() {
                let mut c = Case::with(&runs, 43, &[]);
                let q = c.input("q", keys, &[8, 32]);
                let w = c.input("w", DType::Bf16, &[8]);
                let pages = c.pages("keys", keys, 1, 32);
                let mut inputs = vec![q, w, pages, c.steps];
                let block = if listed { 3 } else { 0 };
                if listed {
                    let blocks = blocks_of(&c, &runs, 1, 3, 4);
                    inputs.push(c.ints("blocks", rows_of(&[4]), blocks));
                }
                c.op(IndexScores { ratio: 1, block, scale: 0.125 }, &inputs, &[("i", DType::F32)]);
                c.check(5e-6);
            }
        }
    }
}

/// Scores with many ties, -inf where nothing is visible.
fn scores(c: &mut Case, runs: &[Run], columns: u64, seen: impl Fn(u64, u64) -> bool) -> Vec<f32> {
    let mut out = Vec::new();
    for r in runs {
        for i in 0..r.len {
            for g in 0..columns {
                let x = (c.random() * 4.0).round() / 2.0 * if c.random() > 0.0 { -0.0 } else { 1.0 };
                out.push(if seen(r.start + i, g) { x } else { f32::NEG_INFINITY });
            }
        }
    }
    out
}

#[test]
fn top_k() {
    for k in [1, 5, 16, 64] {
        for runs in steps_of() {
            let mut c = Case::with(&runs, 64, &[]);
            let data = scores(&mut c, &runs, 32, |pos, g| 2 * (g + 1) <= pos + 1);
            let columns = Expr::Sym(Sym::Context).ceil_div(2);
            let s = c.input_shaped("s", DType::F32, vec![Expr::tokens(), columns], data);
            c.op(TopK { k, ratio: 2, block: 0 }, &[s, c.steps], &[("idx", DType::I32)]);
            c.check(0.0);
        }
    }
}

#[test]
fn top_k_of_blocks() {
    for runs in steps_of() {
        let mut c = Case::with(&runs, 64, &[]);
        let blocks = blocks_of(&c, &runs, 1, 3, 4);
        let listed = blocks.clone();
        let t = std::cell::Cell::new(0);
        let row = |pos: u64, g: u64| {
            let b = listed[t.get() / 12 * 4 + g as usize / 3];
            t.set(t.get() + 1);
            b >= 0 && u64::from(b as u32) * 3 + g % 3 < pos + 1
        };
        let data = scores(&mut c, &runs, 12, row);
        let s = c.input_of("s", DType::F32, &[12], data);
        let blocks = c.ints("blocks", rows_of(&[4]), blocks);
        c.op(TopK { k: 5, ratio: 1, block: 3 }, &[s, c.steps, blocks], &[("idx", DType::I32)]);
        c.check(0.0);
    }
}

#[test]
fn candidate_blocks() {
    for keep in [1, 3, 20] {
        for runs in steps_of() {
            let mut c = Case::with(&runs, 64, &[]);
            let data = scores(&mut c, &runs, 64, |pos, g| g < pos + 1);
            let columns = Expr::Sym(Sym::Context);
            let s = c.input_shaped("s", DType::F32, vec![Expr::tokens(), columns], data);
            c.op(CandidateBlocks { ratio: 1, block: 4, keep }, &[s, c.steps], &[("b", DType::I32)]);
            c.check(0.0);
        }
    }
}

fn attention(runs: &[Run], dtype: DType, select: Select, sink: bool, round_probs: bool, window: u64) -> Case {
    let mut c = Case::with(runs, 64, &[]);
    let (heads, d) = (3, 128);
    let q = c.input("q", if dtype == DType::F32 { DType::F32 } else { DType::Bf16 }, &[heads, d]);
    let rows = c.input("rows", dtype, &[d]);
    let ring = c.ring("ring", dtype, window + 2, d);
    let mut inputs = vec![q, rows, ring, c.steps];
    if sink {
        inputs.push(c.weight("sink", DType::F32, &[heads]));
    }
    let ratio = if select == Select::None { 0 } else { 2 };
    if select != Select::None {
        inputs.push(c.pages("pages", if dtype == DType::F32 { dtype } else { DType::Packed(RowFormat::Fp4) }, 2, d));
    }
    if select == Select::Listed {
        let mut idx = Vec::new();
        for r in runs {
            for i in 0..r.len {
                let end = r.start + i + 1;
                let seen = (end / 2) as i32;
                idx.extend((0..5).map(|j| if 2 * j < seen && j != 1 { 2 * j } else { -1 }));
            }
        }
        inputs.push(c.ints("idx", rows_of(&[5]), idx));
    }
    let op = SparseAttention { window, ratio, scale: 0.3, sink, select, round_probs };
    c.op(op, &inputs, &[("o", DType::F32)]);
    c
}

#[test]
fn sparse_attention() {
    for dtype in KV {
        for (select, sink) in [(Select::None, false), (Select::Listed, true), (Select::All, true)] {
            for runs in steps_of() {
                attention(&runs, dtype, select, sink, false, 8).check(2e-5);
            }
        }
    }
}

#[test]
fn sparse_attention_of_long_windows_and_rounded_probabilities() {
    attention(&[run(0, 0, 40)], DType::F32, Select::All, true, false, 37).check(2e-5);
    // A probability on the edge may round to the other neighbour.
    attention(&[run(0, 20, 5)], DType::Bf16, Select::Listed, true, true, 8).check(4e-3);
}

/// One sequence of 31 rows in one step, against the same rows as two steps with rings between them.
#[test]
fn chunks_give_the_same_bits() {
    let dtype = DType::Packed(RowFormat::Fp8);
    let (len, window) = (31u64, 8u64);
    let options = LowerOptions::cpu(4);
    for split in [1, 7, 8, 19, 30] {
        let whole = attention(&[run(0, 0, len)], dtype, Select::All, true, false, window);
        let all = whole.execute(&whole.kernel(&whole.keep), &options, &[(0, len)]);
        let mut tail = attention(&[run(0, split, len - split)], dtype, Select::All, true, false, window);
        for v in whole.graph.value_ids() {
            let name = whole.graph.value(v).name.clone();
            match name.as_str() {
                "q" | "rows" => tail.values.insert(v, rows_from(&whole.values[&v], split)),
                "ring" => tail.values.insert(v, ring_of(&whole.values[&v], &whole.values[&ValueId(v.0 - 1)], split)),
                "o" | "step" => None,
                _ => tail.values.insert(v, whole.values[&v].clone()),
            };
        }
        let rest = tail.execute(&tail.kernel(&tail.keep), &options, &[(0, len - split)]);
        let o = whole.keep[0];
        assert_eq!(rows_from(&all[&o], split), rest[&o], "split at {split}");
    }
}

/// The rows of an array from `first` on.
fn rows_from(x: &Array, first: u64) -> Array {
    let bytes = x.to_storage();
    let row = bytes.len() / x.shape[0];
    let mut shape = x.shape.clone();
    shape[0] -= first as usize;
    Array::from_storage(x.ty_dtype, &shape, &bytes[row * first as usize..]).unwrap()
}

/// A ring after the first `n` of these rows.
fn ring_of(ring: &Array, rows: &Array, n: u64) -> Array {
    let (mut bytes, rows) = (ring.to_storage(), rows.to_storage());
    let slots = ring.shape[1];
    let width = bytes.len() / slots;
    for p in 0..n as usize {
        bytes[p % slots * width..(p % slots + 1) * width].copy_from_slice(&rows[p * width..(p + 1) * width]);
    }
    Array::from_storage(ring.ty_dtype, &ring.shape, &bytes).unwrap()
}
