//! Bounded replay (`prefill.decoder_rows: tail`): exact for prompts that the window holds, and by its rule for longer
//! ones, in every execution.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failing helper is a failing test

use dsc_cli::compile::Model as Spec;
use dsc_ir::schedule::Phase;
use dsc_passes::pipeline::Select;
use dsc_runtime::bundle::Bundle;
use dsc_runtime::executor::Capacity;
use dsc_runtime::generate::{Request, generate};
use dsc_runtime::model::{LoadOptions, Model, Rows, StepTable, Want};
use dsc_tests::{Session, Tensors, build, max_diff, model, target};

const EXACT: [&str; 3] = ["numerics.activations=f32", "numerics.linear_inputs=exact", "numerics.caches=exact"];
const TAIL: &str = "prefill.decoder_rows=tail";
const WEIGHTS: &str = "random:5";
const CONTEXT: usize = 64;
/// `attention.sliding_window` of the tiny specs.
const WINDOW: usize = 16;

fn spec(file: &str, more: &[&str]) -> Spec {
    model(file, &[&EXACT, more].concat())
}

fn load(spec: &Spec, select: &Select, n_seqs: u64) -> Model {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("bundle");
    build(spec, select, &out);
    let options = LoadOptions {
        weights: WEIGHTS.into(),
        engram_tables: None,
        device: "cpu".into(),
        threads: 1,
        capacity: Capacity { n_seqs, n_context: CONTEXT as u64 },
        gpu: dsc_runtime::executor::GpuOptions::default(),
    };
    Model::load(&Bundle::load(&out).unwrap(), &options).unwrap()
}

fn ids(n: usize) -> Vec<i32> {
    (0..n as i32).map(|i| (i * i * 7 + 3 * i + 1) % 192).collect()
}

/// Logits of the rows that reach the head, of prompts that end in this step.
fn prefill(m: &mut Model, runs: &[(usize, usize, &[i32])]) -> Vec<f32> {
    let mut table = StepTable::new();
    for (seq, start, ids) in runs {
        table.push(*seq, *start, ids);
    }
    m.step(Phase::Prefill, &table, Want { rows: Rows::All, probes: false }).unwrap().logits
}

fn decode(m: &mut Model, seq: usize, at: usize, id: i32) -> Vec<f32> {
    let mut table = StepTable::new();
    table.push(seq, at, &[id]);
    m.step(Phase::Decode, &table, Want { rows: Rows::All, probes: false }).unwrap().logits
}

/// The first rows of a prompt that goes on.
fn begin(m: &mut Model, seq: usize, ids: &[i32]) {
    let mut table = StepTable::new();
    table.push_part(seq, 0, ids);
    let out = m.step(Phase::Prefill, &table, Want { rows: Rows::All, probes: true }).unwrap();
    assert!(out.logits.is_empty());
}

#[test]
fn prompts_within_the_window_are_exact() {
    for file in ["tiny-v41.yaml", "tiny-v4.yaml"] {
        let (mut all, mut tail) =
            (load(&spec(file, &[]), &Select::All, 3), load(&spec(file, &[TAIL]), &Select::All, 3));
        for (seq, n) in [1, WINDOW - 1, WINDOW].into_iter().enumerate() {
            let ids = ids(n + 20);
            let (p, q) = (prefill(&mut all, &[(seq, 0, &ids[..n])]), prefill(&mut tail, &[(seq, 0, &ids[..n])]));
            assert_eq!(p, q, "{file}: {n} tokens");
            for (at, id) in ids.iter().enumerate().skip(n) {
                let (p, q) = (decode(&mut all, seq, at, *id), decode(&mut tail, seq, at, *id));
                assert_eq!(p, q, "{file}: {n} tokens, then position {at}");
            }
        }
    }
}

#[test]
fn longer_prompts_agree_in_every_execution() {
    for file in ["tiny-v41.yaml", "tiny-v4.yaml"] {
        let tail = spec(file, &[TAIL]);
        let mut fused = load(&tail, &Select::All, 5);
        let mut unfused = load(&tail, &Select::NoFusion, 2);
        for (i, n) in [WINDOW + 1, 2 * WINDOW + 3].into_iter().enumerate() {
            let ids = ids(n + 6);
            let prompt = &ids[..n];
            let once = prefill(&mut fused, &[(0, 0, prompt)]);
            let vocab = tail.spec.vocab_size as usize;
            assert_eq!(once.len(), WINDOW * vocab);
            assert_eq!(once, prefill(&mut unfused, &[(i, 0, prompt)]), "fused and unfused");
            begin(&mut fused, 1, &prompt[..1]);
            assert_eq!(once, prefill(&mut fused, &[(1, 1, &prompt[1..])]), "in two steps");
            let both = prefill(&mut fused, &[(3, 0, &[5, 9, 5]), (2, 0, prompt)]);
            assert_eq!(once[..], both[3 * vocab..], "together and alone");

            let mut interp = Session::open_phase(&tail, Phase::Prefill, WEIGHTS, None, 1, CONTEXT);
            interp.step(&[(0, prompt)]);
            close(&interp.logits(), &once);
            let mut on = Session::open(&tail, WEIGHTS, None, 1, CONTEXT);
            on.take_states(&interp);
            for at in n..ids.len() {
                on.step(&[(0, &ids[at..=at])]);
                let next = decode(&mut fused, 0, at, ids[at]);
                close(&on.logits(), &next);
                assert_eq!(next, decode(&mut fused, 1, at, ids[at]), "after two steps");
            }
        }
    }
}

fn close(a: &[f32], b: &[f32]) {
    let scale = b.iter().fold(1.0f32, |m, x| m.max(x.abs()));
    let diff = max_diff(a, b) / scale;
    assert!(diff <= 2e-5, "interpreter and CPU differ by {diff}");
}

/// With the one source in the first layer, every layer's queries are replayed: the same as running all rows with the
/// windows of the last ones floored, which needs no second table and no narrowing.
#[test]
fn the_rule_is_a_floor_under_the_window() {
    let more = [
        "num_hidden_layers=4",
        "compress.compress_ratios=[2, 2, 0, 2]",
        "compress.kv_source_layer_ids=[0]",
        "index.index_source_layer_ids=[0, 3]",
        "index.candidates=null",
        "engram=null",
    ];
    let all = spec("tiny-v41.yaml", &more);
    let tail = spec("tiny-v41.yaml", &[&more[..], &[TAIL]].concat());
    for n in [5, WINDOW + 1, 3 * WINDOW - 1] {
        let ids = ids(n);
        let mut oracle = Session::open(&all, WEIGHTS, None, 1, CONTEXT);
        oracle.step_with_floor(&[(0, &ids)], n.saturating_sub(WINDOW));
        let mut replay = Session::open_phase(&tail, Phase::Prefill, WEIGHTS, None, 1, CONTEXT);
        replay.step(&[(0, &ids)]);
        let (whole, replayed) = (oracle.logits(), replay.logits());
        assert_eq!(whole[whole.len() - replayed.len()..], replayed, "{n} tokens");
    }
}

/// Generation cuts prompts so that the replayed rows are in one step, whatever the chunk.
#[test]
fn generation_is_the_same_for_every_chunk() {
    let prompts = vec![ids(40), ids(3), ids(WINDOW + 1)];
    let tail = spec("tiny-v41.yaml", &[TAIL]);
    let run = |chunk| {
        let mut m = load(&tail, &Select::All, 3);
        let request =
            Request { prompts: prompts.clone(), max_new_tokens: 9, stop_ids: vec![], chunk, trace: chunk == 7 };
        generate(&mut m, &request).unwrap().into_iter().map(|g| g.tokens).collect::<Vec<_>>()
    };
    let whole = run(64);
    for chunk in [1, 7, WINDOW, 39] {
        assert_eq!(run(chunk), whole, "chunks of {chunk}");
    }
}

/// A dump has a row for every position: those that did not go through a layer have no value there.
#[test]
fn dumps_say_which_rows_were_replayed() {
    let (n, tail) = (WINDOW + 5, spec("tiny-v41.yaml", &[TAIL]));
    let request = Request { prompts: vec![ids(n)], max_new_tokens: 2, stop_ids: vec![], chunk: 8, trace: true };
    let all = generate(&mut load(&tail, &Select::All, 1), &request).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dump.safetensors");
    dsc_runtime::dump::write(&path, &all, 192).unwrap();
    let t = Tensors::open(&path);
    assert_eq!(t.shape("p0.logits"), [n, 192]);
    let logits = t.floats("p0.logits");
    assert!(logits[..5 * 192].iter().all(|x| x.is_nan()) && logits[5 * 192..].iter().all(|x| x.is_finite()));
    assert_eq!(t.shape("p0.moe_experts"), [10, n, 3]);
    let experts = t.ints("p0.moe_experts");
    let plane = |l: usize| &experts[l * n * 3..(l + 1) * n * 3];
    assert!(plane(5).iter().all(|e| *e >= 0), "layer 5 is before the last source");
    assert!(plane(6)[..15].iter().all(|e| *e == -1) && plane(6)[15..].iter().all(|e| *e >= 0));
}

/// Weights and states are bound by number, in one table for both phases.
#[test]
fn phases_share_weights_and_states() {
    for file in ["deepseek-v4.1-flash.yaml", "deepseek-v4-flash.yaml", "tiny-v41.yaml", "tiny-v4.yaml"] {
        let m = model(file, &[TAIL]);
        let [a, b] = Phase::ALL.map(|p| m.compile(p, &target("sm_90a"), &Select::All, None).unwrap().schedule);
        assert_eq!(a.weights, b.weights, "{file}");
        assert_eq!(a.states, b.states, "{file}");
    }
}
