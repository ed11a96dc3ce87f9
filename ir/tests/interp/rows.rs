//! Streams, linears, hyper-connections and row-wise ops.

use crate::bench::{Bench, Run, assert_close, noise};
use dsc_ir::interp::{self, Array};

#[test]
fn embeds_repeats_and_adds() {
    let mut b = Bench::new(
        r#"%step: i32[n_tokens, 8] = input "step"
        %table: bf16[3, 2] = weight "embed" from "embed"
        %x: f32[n_tokens, 2] = embed(%table, %step)
        %r: f32[n_tokens, 3, 2] = repeat(%x) {n = 3}
        %one: f32[n_tokens, 3] = one_hot(%step) {n = 3, index = 1}
        %sum: bf16[n_tokens, 2] = add(%x, %x)"#,
    );
    b.step(&[Run(0, 0, &[2, 0])]).floats("embed", &[1., 2., 3., 4., 5., 6.]).run();
    assert_eq!(b.get("x"), [5., 6., 1., 2.]);
    assert_eq!(b.get("r"), [5., 6., 5., 6., 5., 6., 1., 2., 1., 2., 1., 2.]);
    assert_eq!(b.get("one"), [0., 1., 0., 0., 1., 0.]);
    assert_eq!(b.get("sum"), [10., 12., 2., 4.]);
}

#[test]
fn takes_packed_rows() {
    let mut b = Bench::new(
        r#"%x: row.fp8[n_tokens, 32] = input "x"
        %rows: i32[n_out_rows] = input "rows"
        %y: row.fp8[n_out_rows, 32] = take_rows(%x, %rows)"#,
    );
    b.env.n_tokens = 3;
    let x = noise(96, 1);
    b.floats("x", &x).ints("rows", vec![2]).run();
    assert_eq!(b.get("y"), b.get("x")[64..]);
}

#[test]
fn linears_read_stored_weights() {
    let mut b = Bench::new(
        r#"%x: row.fp8[n_tokens, 32] = input "x"
        %a: w.fp8_32[2, 32] = weight "a" from "a"
        %b: w.fp4[4, 32] = weight "b" from "b"
        %ya: f32[n_tokens, 2], %yb: bf16[n_tokens, 2, 2] = linear(%x, %a, %b) {heads = [0, 2]} name "ya", "yb""#,
    );
    b.floats("x", &noise(32, 2)).floats("a", &noise(64, 3)).floats("b", &noise(128, 4)).run();
    let (x, a) = (b.get("x"), b.get("a"));
    let want = |j: usize| (0..32).map(|i| f64::from(x[i]) * f64::from(a[j * 32 + i])).sum::<f64>() as f32;
    assert_eq!(b.get("ya"), [want(0), want(1)]);
    for y in b.get("yb") {
        assert_eq!(dsc_ir::format::bf16_round(y), y);
    }
}

#[test]
fn group_linear_is_block_diagonal() {
    let mut b = Bench::new(
        r#"%x: f32[n_tokens, 2, 2] = input "x"
        %w: f32[4, 2] = weight "w" from "w"
        %y: f32[n_tokens, 4] = group_linear(%x, %w) {groups = 2}"#,
    );
    b.floats("x", &[1., 2., 3., 4.]).floats("w", &[1., 0., 0., 1., 1., 1., 2., 0.]).run();
    assert_eq!(b.get("y"), [1., 2., 7., 6.]);
}

#[test]
fn comb_sums_over_its_first_index() {
    let mut b = Bench::new(
        r#"%y: f32[n_tokens, 1] = input "y"
        %x: f32[n_tokens, 2, 1] = input "x"
        %post: f32[n_tokens, 2] = input "post"
        %comb: f32[n_tokens, 2, 2] = input "comb"
        %out: f32[n_tokens, 2, 1] = expand(%y, %x, %post, %comb)
        %back: f32[n_tokens, 1] = collapse(%out, %post)"#,
    );
    b.floats("y", &[10.]).floats("x", &[1., 2.]).floats("post", &[1., 0.5]).floats("comb", &[0., 1., 0., 0.]).run();
    // Stream 0 goes to stream 1: comb[0][1].
    assert_eq!(b.get("out"), [10., 6.]);
    assert_eq!(b.get("back"), [13.]);
}

#[test]
fn mix_statistics_and_coefficients() {
    let mut b = Bench::new(
        r#"%x: f32[n_tokens, 2, 2] = input "x"
        %fn: f32[8, 4] = weight "fn" from "fn"
        %scale: f32[3] = weight "scale" from "scale"
        %base: f32[8] = weight "base" from "base"
        %hs: f32[1] = weight "hs" from "hs"
        %m: f32[n_tokens, 8] = mhc_stats(%x, %fn) {eps = 0.0}
        %pre: f32[n_tokens, 2], %post: f32[n_tokens, 2], %comb: f32[n_tokens, 2, 2] =
            mhc_coeffs(%m, %scale, %base) {iters = 1, eps = 0.0}
        %head: f32[n_tokens, 8] = head_coeffs(%m, %hs, %base) {eps = 0.5}"#,
    );
    let mut w = vec![0.0; 32];
    w[0] = 1.0; // m_0 = x_0 / rms
    w[6 * 4] = 1.0; // and m_6, which is C_10
    b.floats("x", &[2., 2., 2., 2.]).floats("fn", &w).floats("scale", &[0.0, 1.0, 3f32.ln()]);
    b.floats("base", &[0.; 8]).floats("hs", &[0.]).run();
    assert_close(&b.get("m"), &[1., 0., 0., 0., 0., 0., 1., 0.]);
    assert_close(&b.get("pre"), &[0.5, 0.5]);
    assert_close(&b.get("post"), &[1.0, 1.0]);
    assert_close(&b.get("head"), &[1.0; 8]);
    // Rows [1/2, 1/2] and [3/4, 1/4], then columns divided by 5/4 and 3/4.
    assert_close(&b.get("comb"), &[0.4, 2. / 3., 0.6, 1. / 3.]);
}

#[test]
fn sinkhorn_makes_rows_and_columns_sum_to_one() {
    let mut b = Bench::new(
        r#"%m: f32[n_tokens, 24] = input "m"
        %scale: f32[3] = weight "scale" from "scale"
        %base: f32[24] = weight "base" from "base"
        %pre: f32[n_tokens, 4], %post: f32[n_tokens, 4], %comb: f32[n_tokens, 4, 4] =
            mhc_coeffs(%m, %scale, %base) {iters = 20, eps = 1e-6}"#,
    );
    b.floats("m", &noise(24, 5)).floats("scale", &[1.; 3]).floats("base", &noise(24, 6)).run();
    let comb = b.get("comb");
    for i in 0..4 {
        let row: f32 = comb[i * 4..i * 4 + 4].iter().sum();
        let column: f32 = comb.iter().skip(i).step_by(4).sum();
        assert!((row - 1.0).abs() < 1e-4 && (column - 1.0).abs() < 1e-4, "{comb:?}");
    }
}

#[test]
fn normalises_rows() {
    let mut b = Bench::new(
        r#"%x: f32[n_tokens, 2, 2] = input "x"
        %w: bf16[2] = weight "w" from "w"
        %y: f32[n_tokens, 2, 2] = rms_norm(%x, %w) {eps = 1e-20}
        %z: f32[n_tokens, 2, 2] = rms_norm(%x) {eps = 0.0}
        %h: f32[n_tokens, 2, 2] = hadamard(%x)"#,
    );
    b.floats("x", &[3., 3., 1., -7.]).floats("w", &[2., 0.5]).run();
    assert_close(&b.get("y"), &[2., 0.5, 0.4, -0.7]);
    assert_close(&b.get("z"), &[1., 1., 0.2, -1.4]);
    let r = 0.5f32.sqrt();
    assert_close(&b.get("h"), &[6. * r, 0., -6. * r, 8. * r]);
}

#[test]
fn hadamard_has_natural_order() {
    let mut b = Bench::new(r#"%x: f32[n_tokens, 4] = input "x" %h: f32[n_tokens, 4] = hadamard(%x)"#);
    b.floats("x", &[0., 1., 0., 0.]).run();
    assert_eq!(b.get("h"), [0.5, -0.5, 0.5, -0.5]);
}

const ROPE: &str =
    "rotary = 2, ratio = 2, base = 10000.0, factor = 0.0, original = 0, beta_fast = 0.0, beta_slow = 0.0";

#[test]
fn rotates_the_last_channels_and_back() {
    let mut b = Bench::new(&format!(
        r#"%step: i32[n_tokens, 8] = input "step"
        %x: f32[n_tokens, 2, 4] = input "x"
        %y: f32[n_tokens, 2, 4] = rope(%x, %step) {{inverse = false, at = token, {ROPE}}}
        %z: f32[n_tokens, 2, 4] = rope(%y, %step) {{inverse = true, at = token, {ROPE}}}
        %e: f32[n_tokens, 2, 4] = rope(%x, %step) {{inverse = false, at = entry, {ROPE}}}"#
    ));
    let x = noise(16, 7);
    b.step(&[Run(0, 3, &[1, 1])]).floats("x", &x).run();
    let (y, e) = (b.get("y"), b.get("e"));
    assert_eq!(y[..2], x[..2]);
    assert_eq!(y[4..6], x[4..6]);
    let turned = |p: f64| {
        let (a, b) = (f64::from(x[2]), f64::from(x[3]));
        [(a * p.cos() - b * p.sin()) as f32, (a * p.sin() + b * p.cos()) as f32]
    };
    assert_close(&y[2..4], &turned(3.0));
    // Position 3 completes the entry that starts at 2.
    assert_close(&e[2..4], &turned(2.0));
    assert_close(&b.get("z"), &x);
}

#[test]
fn quantize_packs_every_row() {
    let mut b = Bench::new(
        r#"%x: f32[n_tokens, 2, 32] = input "x"
        %q: row.mxfp4[n_tokens, 2, 32] = quantize(%x) {format = mxfp4}"#,
    );
    let mut x = vec![0.0; 64];
    (x[0], x[1], x[32]) = (6.0, 0.6, -12.0);
    b.floats("x", &x).run();
    let q = b.get("q");
    assert_eq!((q[0], q[1], q[32]), (6.0, 0.5, -12.0));
}

#[test]
fn all_reduce_sums_ranks() {
    let b = Bench::new(
        r#"%x: f32[n_tokens, 2] = input "x"
        %y: f32[n_tokens, 2] = all_reduce(%x) {ranks = 2}"#,
    );
    let rank = |x: [f32; 2]| [(b.id("x"), Array::f32(&[1, 2], x.to_vec()))].into_iter().collect();
    let mut ranks = [rank([1., 2.]), rank([10., 20.])];
    interp::run_ranks(&b.graph, &b.env, &mut ranks).unwrap();
    for values in &ranks {
        assert_eq!(values[&b.id("y")].to_floats().unwrap(), [11., 22.]);
    }
    assert!(interp::run(&b.graph, &b.env, &mut ranks[0]).is_err(), "one rank is not the group");
}
