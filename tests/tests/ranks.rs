//! Models split over ranks: the ranks run one after another, their sums added, and give the unsplit model's logits.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failing helper is a failing test

use dsc_ir::schedule::Phase;
use dsc_passes::pipeline::Select;
use dsc_runtime::bundle::Bundle;
use dsc_runtime::executor::Capacity;
use dsc_runtime::model::{LoadOptions, Model, Rows, StepTable, Want};
use dsc_tests::{build, max_diff, model};

/// Exact arithmetic, and sizes that two and four ranks can share.
const EXACT: [&str; 5] = [
    "numerics.activations=f32",
    "numerics.linear_inputs=exact",
    "numerics.caches=exact",
    "moe.moe_intermediate_size=64",
    "moe.n_routed_experts=8",
];

/// Logits of a prompt in two steps, then of a decode step.
fn logits(spec: &str, more: &[&str]) -> Vec<f32> {
    let spec = model(spec, &[&EXACT, more].concat());
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("bundle");
    build(&spec, &Select::All, &out);
    let options = LoadOptions {
        weights: "random:3".into(),
        engram_tables: None,
        device: "cpu".into(),
        threads: 1,
        gpu: dsc_runtime::executor::GpuOptions::default(),
        capacity: Capacity { n_seqs: 2, n_context: 64 },
    };
    let mut m = Model::load(&Bundle::load(&out).unwrap(), &options).unwrap();
    let ids: Vec<i32> = (0..41).map(|i| (i * i * 5 + i) % 192).collect();
    let mut all = Vec::new();
    for (phase, from, to) in [(Phase::Prefill, 0, 17), (Phase::Prefill, 17, 40), (Phase::Decode, 40, 41)] {
        let mut table = StepTable::new();
        table.push(1, from, &ids[from..to]);
        all.extend(m.step(phase, &table, Want { rows: Rows::All, probes: false }).unwrap().logits);
    }
    all
}

/// Sums are taken in another order over ranks: f32 sums of at most some hundred terms in layers that follow each other.
#[test]
fn split_models_agree_with_whole_ones() {
    for spec in ["tiny-v41.yaml", "tiny-v4.yaml"] {
        let whole = logits(spec, &[]);
        let scale = whole.iter().fold(1.0f32, |m, x| m.max(x.abs()));
        for (tp, ep) in [(2, 1), (1, 2), (2, 2), (1, 4), (2, 4)] {
            let sets = [format!("parallel.tp={tp}"), format!("parallel.ep={ep}")];
            let split = logits(spec, &[&sets[0], &sets[1]]);
            let diff = max_diff(&whole, &split) / scale;
            assert!(diff <= 2e-5, "{spec} with tp {tp} and ep {ep}: {diff}");
        }
    }
}
