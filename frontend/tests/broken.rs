//! Broken specs: each file of `broken/` gets its findings as a snapshot, and none is accepted.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use dsc_frontend::{load, load_str};
use dsc_ir::diag::{E0103_TOO_LARGE, Style};
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest time that refusing any input may take, in an unoptimised build on a busy machine.
const QUICK: Duration = Duration::from_secs(60);

#[test]
fn every_broken_spec_has_its_message() {
    let mut n_specs = 0;
    insta::glob!("broken/*.yaml", |path| {
        n_specs += 1;
        let name = path.file_name().and_then(|name| name.to_str()).unwrap();
        // Relative to the crate, so that messages hold no machine's paths.
        let start = Instant::now();
        let loaded = load(&Path::new("tests/broken").join(name), &[]);
        assert!(start.elapsed() < QUICK, "{name} took {:?}", start.elapsed());
        assert!(loaded.checked.is_none(), "{name} was accepted");
        assert!(loaded.findings.iter().any(|finding| finding.is_error()), "{name}");
        for finding in &loaded.findings {
            assert!(finding.span().is_some(), "{name}: {} has no place", finding.message);
            assert!(!finding.help.is_empty() || !finding.notes.is_empty(), "{name}: no way out of {}", finding.message);
        }
        insta::assert_snapshot!(loaded.render(Style::default()));
    });
    assert!(n_specs >= 60);
}

#[test]
fn the_base_of_the_corpus_is_valid() {
    let loaded = load(Path::new("tests/broken/base/tiny.yaml"), &[]);
    assert!(loaded.checked.is_some(), "{}", loaded.render(Style::default()));
}

#[test]
fn large_texts_are_refused_quickly() {
    let start = Instant::now();
    let text = "a: 1\n".repeat(2 << 20);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ten_megabytes.yaml");
    std::fs::write(&path, &text).unwrap();
    for loaded in [load(&path, &[]), load_str("large.yaml", &text, &[])] {
        assert_eq!(loaded.findings[0].code, E0103_TOO_LARGE);
        assert!(loaded.checked.is_none());
    }
    std::fs::remove_file(&path).unwrap();
    assert!(start.elapsed() < QUICK);
}

#[test]
fn files_that_cannot_be_read() {
    insta::assert_snapshot!(load(Path::new("tests/broken/nowhere.yaml"), &[]).render(Style::default()), @"error[E0101]: cannot read `tests/broken/nowhere.yaml`: no such file");
    insta::assert_snapshot!(load(Path::new("tests/broken"), &[]).render(Style::default()), @"error[E0101]: cannot read `tests/broken`: it is a folder");
}

#[test]
fn overrides() {
    let tiny = Path::new("tests/broken/base/tiny.yaml");
    let set = |sets: &[&str]| load(tiny, &sets.iter().map(|set| (*set).to_owned()).collect::<Vec<_>>());
    let spec = |sets: &[&str]| {
        let loaded = set(sets);
        loaded.checked.unwrap_or_else(|| panic!("{}", loaded.findings[0].message)).spec
    };
    assert_eq!(spec(&["attention.sliding_window=index_topk + 4"]).attention.sliding_window, 16);
    assert!(spec(&["engram=null"]).engram.is_none());
    assert!(spec(&["engram="]).engram.is_none());
    assert_eq!(spec(&["residual=plain", "engram=null"]).residual, dsc_frontend::spec::Residual::Plain);
    assert_eq!(spec(&["compress.compress_ratios={\"0..2\": 0, \"2..6\": 4, \"6..\": 1}"]).ratio(3), 4);
    assert_eq!(spec(&["parallel.tp=2", "parallel.tp=1"]).parallel.tp, 1);
    let broken = [
        "attention.sliding_window",
        "attention..head_dim=3",
        "=3",
        "sliding_window=3",
        "attention.slide=3",
        "attention.sliding_window=[1",
        "attention.sliding_window=wide",
        "attention.sliding_window=-4",
        "num_nextn_predict_layers=3",
        "base=other.yaml",
        "numerics.caches=packd",
        "kv_cache.main={a: 1, a: 2}",
    ];
    let mut all = String::new();
    for one in broken {
        let loaded = set(&[one]);
        assert!(loaded.checked.is_none(), "{one}");
        all.push_str(&format!("--- {one}\n{}\n", loaded.render(Style::default())));
    }
    insta::assert_snapshot!(all);
}
