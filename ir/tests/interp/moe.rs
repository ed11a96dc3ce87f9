//! Routing and experts.

use crate::bench::{Bench, Run, assert_close};

fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

fn score(z: f32) -> f32 {
    z.exp().ln_1p().sqrt()
}

#[test]
fn routes_by_biased_score_and_weighs_without_bias() {
    let mut b = Bench::new(
        r#"%step: i32[n_tokens, 8] = input "step"
        %z: f32[n_tokens, 3] = input "z"
        %bias: f32[3] = weight "bias" from "bias"
        %vl: f32[3] = weight "vl" from "vl"
        %ids: i32[n_tokens, 2], %w: f32[n_tokens, 2] = router_top_k(%z, %bias, %step, %vl)
            {k = 2, norm = true, scale = 1.5, image_bias = true}
        %raw: i32[n_tokens, 1], %one: f32[n_tokens, 1] = router_top_k(%z, %bias, %step)
            {k = 1, norm = true, scale = 1.0, image_bias = false}"#,
    );
    b.step(&[Run(0, 0, &[1, -1, 1])]).floats("z", &[1., 0., 0.5, 1., 0., 0.5, 2., 2., 2.]);
    b.floats("bias", &[0., 5., 0.]).floats("vl", &[0., 0., 5.]).run();
    assert_eq!(b.get_ints("ids"), [1, 0, 2, 0, 1, 0]);
    let share = |a: f32, b: f32| [1.5 * score(a) / (score(a) + score(b)), 1.5 * score(b) / (score(a) + score(b))];
    let want = [share(0., 1.), share(0.5, 1.), share(2., 2.)].concat();
    assert_close(&b.get("w"), &want);
    // A single expert keeps its score.
    assert_close(&b.get("one"), &[score(0.), score(0.), score(2.)]);
}

#[test]
fn routes_by_token() {
    let mut b = Bench::new(
        r#"%step: i32[n_tokens, 8] = input "step"
        %z: f32[n_tokens, 3] = input "z"
        %table: i32[4, 2] = weight "table" from "table"
        %ids: i32[n_tokens, 2], %w: f32[n_tokens, 2] = router_hash(%z, %table, %step) {k = 2, norm = false, scale = 2.0}"#,
    );
    b.step(&[Run(0, 0, &[3])]).floats("z", &[25., 0., 0.5]).ints("table", vec![0, 1, 0, 1, 0, 1, 2, 0]).run();
    assert_eq!(b.get_ints("ids"), [2, 0]);
    assert_close(&b.get("w"), &[2. * score(0.5), 10.]);
}

#[test]
fn swiglu_clamps_the_gate_above_and_the_other_on_both_sides() {
    let mut b = Bench::new(
        r#"%g: f32[n_tokens, 2, 2] = input "g"
        %u: f32[n_tokens, 2, 2] = input "u"
        %w: f32[n_tokens, 2] = input "w"
        %y: f32[n_tokens, 2, 2] = swiglu(%g, %u, %w) {limit = 1.0, weighted = true}
        %z: f32[n_tokens, 2, 2] = swiglu(%g, %u) {limit = 0.0, weighted = false}"#,
    );
    b.floats("g", &[5., -5., 0.5, 2.]).floats("u", &[2., -3., 0.5, 1.]).floats("w", &[2., 10.]).run();
    assert_close(&b.get("y"), &[2. * silu(1.), -2. * silu(-5.), 5. * silu(0.5), 10. * silu(1.)]);
    assert_close(&b.get("z"), &[2. * silu(5.), -3. * silu(-5.), 0.5 * silu(0.5), silu(2.)]);
}

#[test]
fn experts_compute_their_tokens() {
    let mut b = Bench::new(
        r#"%x: f32[n_tokens, 2] = input "x"
        %ids: i32[n_tokens, 2] = input "ids"
        %w: w.fp4[3, 1, 2] = weight "w" from "w.{e}"
        %w2: f32[3, 2, 1] = weight "w2" from "w2.{e}"
        %shared: f32[n_tokens, 2] = input "shared"
        %h: f32[n_tokens, 2, 1] = expert_linear(%x, %ids, %w)
        %y: f32[n_tokens, 2, 2] = expert_linear(%h, %ids, %w2)
        %sum: f32[n_tokens, 2] = expert_sum(%y, %ids, %shared) {shared = true}"#,
    );
    b.env.n_tokens = 2;
    b.floats("x", &[1., 2., 3., 4.]).ints("ids", vec![2, 0, 1, 2]).floats("w", &[1., 0., 0., 1., 1., 1.]);
    b.floats("w2", &[1., 10., 2., 20., 3., 30.]).floats("shared", &[0.5; 4]).run();
    assert_eq!(b.get("h"), [3., 1., 4., 7.]);
    assert_eq!(b.get("y"), [9., 90., 1., 10., 8., 80., 21., 210.]);
    assert_eq!(b.get("sum"), [10.5, 100.5, 29.5, 290.5]);
}
