//! Attention over window and compressed entries.

use crate::bench::{Bench, Run, assert_close, noise};

fn bench(attrs: &str, extra: &str, operands: &str) -> Bench {
    Bench::new(&format!(
        r#"%step: i32[n_tokens, 8] = input "step"
        %q: f32[n_tokens, 1, 2] = input "q"
        %rows: f32[n_tokens, 2] = input "rows"
        %ring: f32[n_seqs, 4, 2] = state "ring" ring keep 3
        %sink: f32[1] = weight "sink" from "sink"
        {extra}
        %o: f32[n_tokens, 1, 2] = sparse_attention(%q, %rows, %ring, %step{operands}) {{{attrs}}}"#
    ))
}

#[test]
fn sink_takes_its_share() {
    // All scores are 0, so the result is the mean of the n keys times n / (n + e^sink).
    let attrs = "window = 8, ratio = 0, scale = 0.0, sink = true, select = none, round_probs = false";
    let mut b = bench(attrs, "", ", %sink");
    b.step(&[Run(0, 0, &[1, 1, 1])]).floats("q", &noise(6, 1)).zeros("ring").floats("sink", &[1.5]);
    b.floats("rows", &[1., 2., 3., 4., 5., 6.]).run();
    let share = |n: f32| n / (n + 1.5f32.exp());
    let want = [share(1.), 2. * share(1.), 2. * share(2.), 3. * share(2.), 3. * share(3.), 4. * share(3.)];
    assert_close(&b.get("o"), &want);
}

#[test]
fn window_is_read_by_position_across_steps() {
    let attrs = "window = 3, ratio = 0, scale = 0.7, sink = false, select = none, round_probs = false";
    let extra = "%unused: f32[1] = input \"unused\"";
    let (q, rows) = (noise(12, 1), noise(12, 2));
    let run = |b: &mut Bench, from: usize, to: usize| {
        b.step(&[Run(0, from, &vec![1; to - from])]);
        b.floats("q", &q[2 * from..2 * to]).floats("rows", &rows[2 * from..2 * to]);
        b.floats("sink", &[0.]).floats("unused", &[0.]).run();
        b.get("o")
    };
    let mut whole = bench(attrs, extra, "");
    whole.zeros("ring");
    let want = run(&mut whole, 0, 6);
    let mut parts = Bench::new(&format!(
        r#"%step: i32[n_tokens, 8] = input "step"
        %q: f32[n_tokens, 1, 2] = input "q"
        %rows: f32[n_tokens, 2] = input "rows"
        %ring: f32[n_seqs, 4, 2] = state "ring" ring keep 3
        %sink: f32[1] = weight "sink" from "sink"
        {extra}
        %o: f32[n_tokens, 1, 2] = sparse_attention(%q, %rows, %ring, %step) {{{attrs}}}
        ring_write(%ring, %rows, %step)"#
    ));
    parts.zeros("ring");
    let got: Vec<f32> = [(0, 1), (1, 4), (4, 6)].iter().flat_map(|(a, b)| run(&mut parts, *a, *b)).collect();
    assert_eq!(got, want);
}

#[test]
fn listed_and_all_entries_join_the_window() {
    let pages = r#"%pages: f32[n_seqs, ceil(n_context, 2), 2] = state "pages" pages ratio 2"#;
    let idx = r#"%idx: i32[n_tokens, 3] = input "idx""#;
    let page_rows: Vec<f32> = (0..16).map(|i| i as f32).collect();
    let common = "window = 1, ratio = 2, scale = 0.0, sink = false, round_probs = false";
    let mut b = bench(&format!("{common}, select = listed"), &format!("{pages} {idx}"), ", %pages, %idx");
    b.step(&[Run(0, 5, &[1])]).floats("q", &[1., 1.]).floats("rows", &[30., 30.]).zeros("ring").floats("sink", &[0.]);
    b.floats("pages", &page_rows).ints("idx", vec![0, 2, -1]).run();
    // Entries 0 = (0, 1) and 2 = (4, 5), and the row itself.
    assert_close(&b.get("o"), &[34. / 3., 12.]);
    let mut b = bench(&format!("{common}, select = all"), pages, ", %pages");
    b.step(&[Run(0, 4, &[1])]).floats("q", &[1., 1.]).floats("rows", &[30., 30.]).zeros("ring").floats("sink", &[0.]);
    b.floats("pages", &page_rows).run();
    // Position 4 sees 5 / 2 = 2 entries.
    assert_close(&b.get("o"), &[32. / 3., 34. / 3.]);
}

#[test]
fn rounded_probabilities_leave_the_sum_exact() {
    let attrs = "window = 2, ratio = 0, scale = 1.0, sink = false, select = none, round_probs = true";
    let mut b = bench(attrs, "", "");
    b.step(&[Run(0, 0, &[1, 1])]).floats("q", &[0., 0., 1., 0.]).zeros("ring").floats("sink", &[0.]);
    b.floats("rows", &[-0.3, 1., 0., 1.]).run();
    let p = (-0.3f32 as f64).exp();
    let rounded = f64::from(dsc_ir::format::bf16_round(p as f32));
    assert_close(&b.get("o")[2..], &[(-0.3f32 as f64 * rounded / (1. + p)) as f32, ((1. + rounded) / (1. + p)) as f32]);
}

#[test]
fn inverse_rotation_undoes_self_attention() {
    let rope = "rotary = 2, at = token, ratio = 0, base = 10000.0, factor = 0.0, original = 0, beta_fast = 0.0, beta_slow = 0.0";
    let mut b = Bench::new(&format!(
        r#"%step: i32[n_tokens, 8] = input "step"
        %q: f32[n_tokens, 1, 4] = input "q"
        %kv: f32[n_tokens, 4] = input "kv"
        %ring: f32[n_seqs, 4, 4] = state "ring" ring keep 3
        %k: f32[n_tokens, 4] = rope(%kv, %step) {{inverse = false, {rope}}}
        %o: f32[n_tokens, 1, 4] = sparse_attention(%q, %k, %ring, %step)
            {{window = 1, ratio = 0, scale = 0.5, sink = false, select = none, round_probs = false}}
        %out: f32[n_tokens, 1, 4] = rope(%o, %step) {{inverse = true, {rope}}}"#
    ));
    let kv = noise(12, 3);
    b.step(&[Run(0, 7, &[1, 1, 1])]).floats("q", &noise(12, 4)).floats("kv", &kv).zeros("ring").run();
    assert_close(&b.get("out"), &kv);
}
