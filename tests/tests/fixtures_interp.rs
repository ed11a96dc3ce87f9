//! The interpreter against the fixtures: numbers made by independent implementations.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failing helper is a failing test

use dsc_tests::{Session, Tensors, argmax, fixture, max_diff, model};

const PLAIN: [&str; 3] = ["numerics.activations=f32", "numerics.linear_inputs=exact", "numerics.caches=exact"];
const PRIMARY: [&str; 3] = ["numerics.activations=f32", "numerics.linear_inputs=exact", "numerics.caches=packed"];

fn prompts(folder: &str) -> Vec<Vec<i32>> {
    let text = std::fs::read_to_string(fixture(&format!("{folder}/inputs.json"))).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    serde_json::from_value(json["prompts"].clone()).unwrap()
}

fn v41(sets: &[&str]) -> Session {
    let weights = fixture("v41-tiny-a/model.safetensors");
    let tables = fixture("v41-tiny-a/engram_tables.json");
    Session::open(&model("tiny-v41.yaml", sets), weights.to_str().unwrap(), Some(&tables), 1, 400)
}

/// Logits of a whole prompt, and the greedy continuation's tokens and logits.
fn generate(s: &mut Session, prompt: &[i32], n: usize) -> (Vec<f32>, Vec<i32>) {
    s.step(&[(0, prompt)]);
    let logits = s.logits();
    let vocab = logits.len() / prompt.len();
    let mut last = logits[logits.len() - vocab..].to_vec();
    let mut tokens = Vec::new();
    for i in 0..n {
        let t = argmax(&last);
        tokens.push(t);
        if i + 1 < n {
            s.step(&[(0, &[t])]);
            last = s.logits();
        }
    }
    (logits, tokens)
}

#[test]
fn v41_plain_logits_and_tokens() {
    let expected = Tensors::open(&fixture("v41-tiny-a/expected.safetensors"));
    for (i, prompt) in prompts("v41-tiny-a").iter().enumerate() {
        let (logits, tokens) = generate(&mut v41(&PLAIN), prompt, 16);
        let want = expected.floats(&format!("plain.p{i}.logits"));
        let got = &logits[logits.len() - want.len()..];
        assert!(max_diff(got, &want) <= 2e-4, "prompt {i}: {}", max_diff(got, &want));
        assert_eq!(tokens, expected.ints(&format!("plain.p{i}.decode_tokens")), "prompt {i}");
    }
}

#[test]
fn v41_primary_intermediates_agree_layer_by_layer() {
    let expected = Tensors::open(&fixture("v41-tiny-a/expected.safetensors"));
    let prompt = &prompts("v41-tiny-a")[0];
    let mut s = v41(&PRIMARY);
    s.step(&[(0, prompt)]);
    let tokens = prompt.len();
    let rows = expected.shape("p0.attn_y")[1];
    for (name, ours) in [("attn_y", "attn.y"), ("ffn_y", "ffn.y")] {
        let all = expected.floats(&format!("p0.{name}"));
        let layer_len = all.len() / 10;
        for l in 0..10u32 {
            let got = s.floats(ours, Some(l));
            let want = &all[l as usize * layer_len..][..layer_len];
            let diff = max_diff(&got[..layer_len], want);
            assert!(diff <= 2e-4, "layer {l} {name}: {diff}");
        }
    }
    assert_eq!(rows, 20);
    for (name, ours, layer) in [
        ("p0.layer2.attn_in", "attn.in", 2),
        ("p0.layer2.attn_mix.pre", "attn.pre", 2),
        ("p0.layer2.attn_mix.post", "attn.post", 2),
        ("p0.layer2.attn_mix.comb", "attn.comb", 2),
        ("p0.layer2.q_rope", "attn.q", 2),
        ("p0.layer2.attn_out_rotated", "attn.o_rotated", 2),
        ("p0.layer2.window_kv.before_quant", "attn.kv", 2),
        ("p0.layer2.window_kv", "attn.window_rows", 2),
        ("p0.layer2.index_q", "attn.indexer.q_rows", 2),
        ("p0.layer6.latent", "attn.compressor.latent", 6),
        ("p0.layer6.main_kv", "attn.main_rows", 6),
        ("p0.layer6.index_k", "attn.indexer.k_rows", 6),
        ("p0.layer8.attn_in", "attn.in", 8),
    ] {
        let diff = max_diff(&s.floats(ours, Some(layer)), &expected.floats(name));
        assert!(diff <= 1e-4, "{name}: {diff}");
    }
    let planes = s.probed_layers("topk");
    let want = expected.ints("p0.topk");
    let plane = want.len() / planes.len();
    for (i, l) in planes.iter().enumerate() {
        assert_eq!(s.probe_ints("topk", Some(*l)), want[i * plane..][..plane], "selection of layer {l}");
    }
    let want = expected.ints("p0.moe_experts");
    for l in 0..10u32 {
        let n = want.len() / 10;
        assert_eq!(s.probe_ints("moe_experts", Some(l)), want[l as usize * n..][..n], "experts of layer {l}");
    }
    assert_eq!(s.probe_ints("engram_rows", None), expected.ints("p0.engram_rows"));
    assert!(max_diff(&s.logits(), &expected.floats("p0.logits")) <= 2e-3);
    assert_eq!(tokens, 32);
}

#[test]
fn v41_actq_last_rows() {
    let expected = Tensors::open(&fixture("v41-tiny-a/expected.safetensors"));
    let sets = ["numerics.activations=f32", "numerics.linear_inputs=fp8", "numerics.caches=packed"];
    for (i, prompt) in prompts("v41-tiny-a").iter().enumerate().take(2) {
        let (logits, _) = generate(&mut v41(&sets), prompt, 0);
        let want = expected.floats(&format!("actq.p{i}.logits"));
        let diff = max_diff(&logits[logits.len() - want.len()..], &want);
        assert!(diff <= 2e-3, "prompt {i}: {diff}");
    }
}

#[test]
fn v41_bf16_last_rows_point_the_same_way() {
    let expected = Tensors::open(&fixture("v41-tiny-a/expected.safetensors"));
    let sets = ["numerics.activations=bf16", "numerics.linear_inputs=fp8", "numerics.caches=packed"];
    for (i, prompt) in prompts("v41-tiny-a").iter().enumerate() {
        let (logits, _) = generate(&mut v41(&sets), prompt, 0);
        let want = expected.floats(&format!("bf16.p{i}.logits_last"));
        let got = &logits[logits.len() - want.len()..];
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
        let cosine = dot(got, &want) / (dot(got, got) * dot(&want, &want)).sqrt();
        assert!(cosine >= 0.95, "prompt {i}: cosine {cosine}");
    }
}

#[test]
fn v4_logits_and_tokens() {
    let expected = Tensors::open(&fixture("v4-tiny/expected.safetensors"));
    let weights = fixture("v4-tiny/model.safetensors");
    for (i, prompt) in prompts("v4-tiny").iter().enumerate() {
        let mut s = Session::open(&model("tiny-v4.yaml", &[]), weights.to_str().unwrap(), None, 1, 400);
        let (logits, tokens) = generate(&mut s, prompt, 16);
        let name = format!("p{i}.logits_positions");
        let vocab = logits.len() / prompt.len();
        let positions = if expected.has(&name) { expected.ints(&name) } else { (0..prompt.len() as i32).collect() };
        let got: Vec<f32> = positions.iter().flat_map(|p| logits[*p as usize * vocab..][..vocab].to_vec()).collect();
        let diff = max_diff(&got, &expected.floats(&format!("p{i}.logits")));
        assert!(diff <= 2e-4, "prompt {i}: {diff}");
        assert_eq!(tokens, expected.ints(&format!("p{i}.decode_tokens")), "prompt {i}");
    }
}
