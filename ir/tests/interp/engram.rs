//! n-gram memory, against the published row numbers.

use crate::bench::{Bench, Run, assert_close};
use serde_json::Value;
use std::path::Path;

fn fixture() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/formats/engram_hash.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn list(v: &Value) -> String {
    let items: Vec<String> = v.as_array().unwrap().iter().flat_map(|v| v.as_array().unwrap()).map(text).collect();
    format!("[{}]", items.join(", "))
}

fn text(v: &Value) -> String {
    v.as_str().map_or_else(|| v.to_string(), str::to_owned)
}

fn ints(v: &Value) -> Vec<i32> {
    v.as_array().unwrap().iter().map(|v| v.as_i64().unwrap() as i32).collect()
}

fn bench(f: &Value) -> Bench {
    let vocab = f["compressed_vocab_size"].as_u64().unwrap();
    let mut b = Bench::new(&format!(
        r#"%step: i32[n_tokens, 8] = input "step"
        %map: i32[{vocab}] = weight "map" from "map"
        %ring: i32[n_seqs, 4, 1] = state "ring" ring keep 3
        %rows: i32[n_tokens, 2, 24], %ids: i32[n_tokens, 1] = engram_hash(%map, %step, %ring)
            {{layers = 2, max_ngram = 4, heads = 8, pad_token = {}, multipliers = {}, primes = {}}}
        ring_write(%ring, %ids, %step)"#,
        f["pad_compressed_id"],
        list(&f["multipliers"]),
        list(&f["primes"])
    ));
    b.ints("map", (0..vocab as i32).collect());
    b
}

#[test]
fn hashes_equal_the_published_rows() {
    let f = fixture();
    let mut b = bench(&f);
    for case in f["cases"].as_array().unwrap() {
        let ids = ints(&case["compressed_ids"]);
        let want: Vec<i32> =
            case["rows"].as_array().unwrap().iter().flat_map(|r| r.as_array().unwrap()).flat_map(ints).collect();
        b.zeros("ring").step(&[Run(0, 0, &ids)]).run();
        assert_eq!(b.get_ints("rows"), want);
        // The same in steps of one and two tokens, through the ring.
        b.zeros("ring");
        let (mut got, mut at) = (Vec::new(), 0);
        while at < ids.len() {
            let n = (1 + at % 2).min(ids.len() - at);
            b.step(&[Run(0, at, &ids[at..at + n])]).run();
            got.extend(b.get_ints("rows"));
            at += n;
        }
        assert_eq!(got, want);
    }
}

#[test]
fn look_back_stops_at_images() {
    let f = fixture();
    let mut b = bench(&f);
    let pad = f["pad_compressed_id"].as_i64().unwrap() as i32;
    b.zeros("ring").step(&[Run(0, 0, &[5, -7, 9])]).run();
    assert_eq!(b.get_ints("ids"), [5, -1, 9]);
    let rows = b.get_ints("rows");
    // The image row and all before it read as the pad.
    b.zeros("ring").step(&[Run(0, 0, &[pad, 9])]).run();
    assert_eq!(rows[96..], b.get_ints("rows")[48..]);
    b.zeros("ring").step(&[Run(0, 0, &[pad])]).run();
    assert_eq!(rows[48..96], b.get_ints("rows")[..]);
    // And so they do from the ring.
    b.zeros("ring").step(&[Run(0, 0, &[5, -7])]).run();
    b.step(&[Run(0, 2, &[9])]).run();
    assert_eq!(rows[96..], b.get_ints("rows")[..]);
}

#[test]
fn gathers_rows_side_by_side() {
    let mut b = Bench::new(
        r#"%table: row.fp8[3, 32] = weight "table" from "table"
        %idx: i32[n_tokens, 2, 2] = input "idx"
        %e: bf16[n_tokens, 64] = engram_gather(%table, %idx) {plane = 1}"#,
    );
    let table: Vec<f32> = (0..3).flat_map(|i| vec![i as f32; 32]).collect();
    b.floats("table", &table).ints("idx", vec![0, 0, 2, 1]).run();
    assert_eq!(b.get("e"), [vec![2.0; 32], vec![1.0; 32]].concat());
}

#[test]
fn injects_a_gated_value() {
    let mut b = Bench::new(
        r#"%step: i32[n_tokens, 8] = input "step"
        %x: f32[n_tokens, 2, 2] = input "x"
        %kv: f32[n_tokens, 6] = input "kv"
        %qw: f32[2, 2] = weight "qw" from "qw"
        %kw: f32[2, 2] = weight "kw" from "kw"
        %y: f32[n_tokens, 2, 2] = engram_inject(%x, %kv, %qw, %kw, %step) {eps = 0.0}"#,
    );
    b.step(&[Run(0, 0, &[1, -1])]).floats("x", &[2., 2., 1., 1., 2., 2., 1., 1.]);
    b.floats("kv", &[3., 3., 1., -1., 10., 20., 3., 3., 1., -1., 10., 20.])
        .floats("qw", &[1.; 4])
        .floats("kw", &[1.; 4])
        .run();
    // Stream 0: the normalised dot is 2 / sqrt(2); stream 1: 0, floored at 1e-6.
    let gate = |x: f32| 1. / (1. + (-x).exp());
    let (g0, g1) = (gate(2f32.sqrt().sqrt()), gate(1e-3));
    let want = [2. + 10. * g0, 2. + 20. * g0, 1. + 10. * g1, 1. + 20. * g1, 2., 2., 1., 1.];
    assert_close(&b.get("y"), &want);
}
