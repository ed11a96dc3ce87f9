//! Index scores and selection.

use crate::bench::{Bench, Run};

const INF: f32 = f32::NEG_INFINITY;

#[test]
fn scores_visible_entries() {
    let mut b = Bench::new(
        r#"%step: i32[n_tokens, 8] = input "step"
        %q: f32[n_tokens, 2, 1] = input "q"
        %w: f32[n_tokens, 2] = input "w"
        %keys: f32[n_seqs, ceil(n_context, 2), 1] = state "keys" pages ratio 2
        %blocks: i32[n_tokens, 2] = input "blocks"
        %s: f32[n_tokens, ceil(n_context, 2)] = index_scores(%q, %w, %keys, %step) {ratio = 2, block = 0, scale = 0.5}
        %t: f32[n_tokens, 4] = index_scores(%q, %w, %keys, %step, %blocks) {ratio = 2, block = 2, scale = 0.5}"#,
    );
    b.env.n_context = 10;
    b.step(&[Run(0, 6, &[1, 1])]).floats("q", &[1., -1., 2., -1.]).floats("w", &[2., 4., 2., 4.]);
    b.floats("keys", &[1., -1., 3., 5., 7.]).ints("blocks", vec![0, -1, 1, 2]).run();
    // Head 0 sees q.k, head 1 its negative; relu keeps one of them.
    assert_eq!(b.get("s"), [1., 2., 3., INF, INF, 2., 2., 6., 10., INF]);
    assert_eq!(b.get("t"), [1., 2., INF, INF, 6., 10., INF, INF]);
}

fn selection() -> Bench {
    Bench::new(
        r#"%step: i32[n_tokens, 8] = input "step"
        %s: f32[n_tokens, ceil(n_context, 1)] = input "s"
        %b: f32[n_tokens, 4] = input "b"
        %blocks: i32[n_tokens, 2] = input "blocks"
        %top: i32[n_tokens, 3] = top_k(%s, %step) {k = 3, ratio = 1, block = 0}
        %in: i32[n_tokens, 3] = top_k(%b, %step, %blocks) {k = 3, ratio = 1, block = 2}
        %keep: i32[n_tokens, 2] = candidate_blocks(%s, %step) {ratio = 1, block = 2, keep = 2}"#,
    )
}

#[test]
fn ties_go_to_the_lower_index() {
    let mut b = selection();
    b.env.n_context = 8;
    b.step(&[Run(0, 6, &[1])]).floats("s", &[1., 3., 3., 0., 3., 3., -1., INF]);
    b.floats("b", &[5., 5., 5., 5.]).ints("blocks", vec![1, 3]).run();
    assert_eq!(b.get_ints("top"), [1, 2, 4]);
    // Columns are entries 2, 3, 6 and the invisible 7.
    assert_eq!(b.get_ints("in"), [2, 3, 6]);
    // Blocks 0, 1, 2 tie at 3; block 3 holds the newest entry.
    assert_eq!(b.get_ints("keep"), [0, 3]);
}

#[test]
fn empty_places_are_padded() {
    let mut b = selection();
    b.env.n_context = 8;
    b.step(&[Run(0, 0, &[1, 1])])
        .floats("s", &[1., INF, INF, INF, INF, INF, INF, INF, 0., 2., INF, INF, INF, INF, INF, INF]);
    b.floats("b", &[INF, INF, INF, INF, 0., 1., INF, INF]).ints("blocks", vec![0, -1, 0, -1]).run();
    assert_eq!(b.get_ints("top"), [0, -1, -1, 0, 1, -1]);
    assert_eq!(b.get_ints("in"), [-1, -1, -1, 0, 1, -1]);
    assert_eq!(b.get_ints("keep"), [0, -1, 0, -1]);
}
