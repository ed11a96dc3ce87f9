//! Rings, pages and pooling, in steps of any length.

use crate::bench::{Bench, Run, assert_close, noise};

#[test]
fn a_ring_keeps_the_last_slots_of_each_sequence() {
    let mut b = Bench::new(
        r#"%step: i32[n_tokens, 8] = input "step"
        %x: f32[n_tokens, 1] = input "x"
        %ring: f32[n_seqs, 3, 1] = state "ring" ring keep 2
        ring_write(%ring, %x, %step)"#,
    );
    b.env.n_seqs = 2;
    b.zeros("ring");
    b.step(&[Run(1, 0, &[1; 5]), Run(0, 7, &[1])]).floats("x", &[0., 1., 2., 3., 4., 70.]).run();
    assert_eq!(b.get("ring"), [0., 70., 0., 3., 4., 2.]);
    b.step(&[Run(1, 5, &[1])]).floats("x", &[5.]).run();
    assert_eq!(b.get("ring"), [0., 70., 0., 3., 4., 5.]);
}

#[test]
fn pages_take_rows_that_complete_an_entry() {
    let mut b = Bench::new(
        r#"%step: i32[n_tokens, 8] = input "step"
        %x: row.fp8[n_tokens, 32] = input "x"
        %pages: row.fp8[n_seqs, ceil(n_context, 2), 32] = state "pages" pages ratio 2
        page_write(%pages, %x, %step) {ratio = 2}"#,
    );
    b.env.n_context = 6;
    let rows: Vec<f32> = (0..5).flat_map(|i| vec![i as f32; 32]).collect();
    b.zeros("pages");
    b.step(&[Run(0, 0, &[1; 3])]).floats("x", &rows[..96]).run();
    b.step(&[Run(0, 3, &[1; 2])]).floats("x", &rows[96..]).run();
    let pages = b.get("pages");
    assert_eq!([pages[0], pages[32], pages[64]], [1., 3., 0.]);
}

fn pool(overlap: bool, bias: bool, c: usize) -> Bench {
    let d = if overlap { c / 2 } else { c };
    let (ape, operand) = match bias {
        true => (format!(r#"%ape: f32[2, {c}] = weight "ape" from "ape""#), ", %ape"),
        false => (String::new(), ""),
    };
    Bench::new(&format!(
        r#"%step: i32[n_tokens, 8] = input "step"
        %v: f32[n_tokens, {c}] = input "v"
        %s: f32[n_tokens, {c}] = input "s"
        %rv: f32[n_seqs, 8, {c}] = state "rv" ring keep 3
        %rs: f32[n_seqs, 8, {c}] = state "rs" ring keep 3
        {ape}
        %y: f32[n_tokens, {d}] = pool(%v, %s, %rv, %rs, %step{operand}) {{ratio = 2, overlap = {overlap}, bias = {bias}}}
        ring_write(%rv, %v, %step)
        ring_write(%rs, %s, %step)"#
    ))
}

#[test]
fn pools_complete_groups() {
    let mut b = pool(false, false, 1);
    b.step(&[Run(0, 0, &[1; 3])]).floats("v", &[1., 5., 9.]).floats("s", &[0., 3f32.ln(), 0.]);
    b.zeros("rv").zeros("rs").run();
    assert_close(&b.get("y"), &[0., 4., 0.]);
}

#[test]
fn overlapping_pools_start_with_one_window() {
    let mut b = pool(true, true, 2);
    b.step(&[Run(0, 0, &[1; 4])]).floats("v", &[100., 1., 200., 3., 300., 5., 400., 7.]).floats("s", &[0.; 8]);
    // Slot 1 of the second window counts three times as much.
    b.floats("ape", &[0., 0., 0., 3f32.ln()]).zeros("rv").zeros("rs").run();
    let second = (100. + 200. + 5. + 3. * 7.) / 6.;
    assert_close(&b.get("y"), &[0., (1. + 9.) / 4., 0., second]);
}

#[test]
fn pooling_in_parts_equals_pooling_at_once() {
    for overlap in [false, true] {
        let (v, s, ape) = (noise(44, 1), noise(44, 2), noise(8, 3));
        let mut whole = pool(overlap, true, 4);
        whole.step(&[Run(0, 0, &[1; 11])]).floats("v", &v).floats("s", &s).floats("ape", &ape);
        whole.zeros("rv").zeros("rs").run();
        let mut parts = pool(overlap, true, 4);
        parts.zeros("rv").zeros("rs").floats("ape", &ape);
        let mut got = Vec::new();
        for (from, to) in [(0, 1), (1, 4), (4, 5), (5, 6), (6, 11)] {
            parts.step(&[Run(0, from, &vec![1; to - from])]);
            parts.floats("v", &v[4 * from..4 * to]).floats("s", &s[4 * from..4 * to]).run();
            got.extend(parts.get("y"));
        }
        assert_eq!(got, whole.get("y"));
    }
}
