//! The CPU kernels of compiled bundles against the fixtures, through the runtime.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failing helper is a failing test

use dsc_passes::pipeline::Select;
use dsc_runtime::bundle::Bundle;
use dsc_runtime::executor::Capacity;
use dsc_runtime::generate::{Generation, Request, generate};
use dsc_runtime::model::{LoadOptions, Model};
use dsc_tests::{Tensors, build, fixture, max_diff, model};
use std::path::PathBuf;

fn prompts(folder: &str) -> Vec<Vec<i32>> {
    let text = std::fs::read_to_string(fixture(&format!("{folder}/inputs.json"))).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    serde_json::from_value(json["prompts"].clone()).unwrap()
}

struct Case {
    spec: &'static str,
    folder: &'static str,
    tables: Option<PathBuf>,
}

fn run(case: &Case, sets: &[&str], chunk: usize) -> Vec<Generation> {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("bundle");
    build(&model(case.spec, sets), &Select::All, &out);
    let bundle = Bundle::load(&out).unwrap();
    let options = LoadOptions {
        weights: fixture(&format!("{}/model.safetensors", case.folder)).to_string_lossy().into_owned(),
        engram_tables: case.tables.clone(),
        device: "cpu".into(),
        threads: 2,
        capacity: Capacity { n_seqs: 3, n_context: 400 },
        gpu: dsc_runtime::executor::GpuOptions::default(),
    };
    let mut model = Model::load(&bundle, &options).unwrap();
    let request = Request { prompts: prompts(case.folder), max_new_tokens: 16, stop_ids: vec![], chunk, trace: true };
    generate(&mut model, &request).unwrap()
}

fn v41() -> Case {
    Case { spec: "tiny-v41.yaml", folder: "v41-tiny-a", tables: Some(fixture("v41-tiny-a/engram_tables.json")) }
}

const PLAIN: [&str; 3] = ["numerics.activations=f32", "numerics.linear_inputs=exact", "numerics.caches=exact"];
const PRIMARY: [&str; 3] = ["numerics.activations=f32", "numerics.linear_inputs=exact", "numerics.caches=packed"];

#[test]
fn v41_plain() {
    let expected = Tensors::open(&fixture("v41-tiny-a/expected.safetensors"));
    for (i, g) in run(&v41(), &PLAIN, 256).iter().enumerate() {
        let logits = &g.trace.as_ref().unwrap().logits;
        let want = expected.floats(&format!("plain.p{i}.logits"));
        let diff = max_diff(&logits[logits.len() - want.len()..], &want);
        assert!(diff <= 2e-4, "prompt {i}: {diff}");
        assert_eq!(g.tokens, expected.ints(&format!("plain.p{i}.decode_tokens")), "prompt {i}");
    }
}

#[test]
fn v41_primary() {
    let expected = Tensors::open(&fixture("v41-tiny-a/expected.safetensors"));
    let mut rows = (0, 0);
    for (i, g) in run(&v41(), &PRIMARY, 64).iter().enumerate() {
        let logits = &g.trace.as_ref().unwrap().logits;
        let want = expected.floats(&format!("p{i}.logits"));
        let vocab = 192;
        let name = format!("p{i}.logits_positions");
        let positions =
            if expected.has(&name) { expected.ints(&name) } else { (0..(want.len() / vocab) as i32).collect() };
        let deviation = expected.floats(&format!("p{i}.deviation"));
        for (j, p) in positions.iter().enumerate() {
            let p = *p as usize;
            if deviation[p] < 1e-3 {
                let diff = max_diff(&logits[p * vocab..][..vocab], &want[j * vocab..][..vocab]);
                rows.0 += usize::from(diff <= 2e-3);
                rows.1 += 1;
            }
        }
        assert_eq!(g.tokens, expected.ints(&format!("p{i}.decode_tokens")), "prompt {i}");
    }
    assert!(rows.0 * 10 >= rows.1 * 8, "{} of {} stable rows within 2e-3", rows.0, rows.1);
}

#[test]
fn v4_exact() {
    let expected = Tensors::open(&fixture("v4-tiny/expected.safetensors"));
    let case = Case { spec: "tiny-v4.yaml", folder: "v4-tiny", tables: None };
    for (i, g) in run(&case, &[], 100).iter().enumerate() {
        let logits = &g.trace.as_ref().unwrap().logits;
        let name = format!("p{i}.logits_positions");
        let want = expected.floats(&format!("p{i}.logits"));
        let vocab = 256;
        let positions =
            if expected.has(&name) { expected.ints(&name) } else { (0..(want.len() / vocab) as i32).collect() };
        let got: Vec<f32> = positions.iter().flat_map(|p| logits[*p as usize * vocab..][..vocab].to_vec()).collect();
        let diff = max_diff(&got, &want);
        assert!(diff <= 2e-4, "prompt {i}: {diff}");
        assert_eq!(g.tokens, expected.ints(&format!("p{i}.decode_tokens")), "prompt {i}");
    }
}
