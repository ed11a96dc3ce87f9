//! Import of the published configurations and of those of the fixtures.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use dsc_frontend::import::{Imported, import};
use dsc_frontend::spec::{Caches, LinearInputs, Spec};
use dsc_ir::diag::Style;
use dsc_ir::dtype::{RowFormat, WeightFormat};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn imported(path: &str) -> Imported {
    let text = std::fs::read_to_string(root().join("tests/fixtures").join(path)).unwrap();
    import("config.json", &text)
}

fn spec(imported: &Imported) -> Spec {
    let yaml = imported.yaml.as_deref().unwrap_or_else(|| panic!("{}", imported.render(Style::default())));
    let loaded = dsc_frontend::load_str("imported.yaml", yaml, &[]);
    loaded.checked.unwrap_or_else(|| panic!("{yaml}")).spec
}

fn shipped(name: &str) -> Spec {
    dsc_frontend::load(&root().join("specs").join(name), &[]).checked.unwrap().spec
}

/// The same architecture, apart from the name, budgets and choices that no configuration makes.
fn assert_same(imported: Spec, shipped: Spec) {
    let aligned = Spec { name: shipped.name.clone(), budgets: shipped.budgets.clone(), ..imported };
    assert_eq!(aligned, shipped);
}

#[test]
fn published_configurations_are_the_shipped_specs() {
    for name in ["deepseek-v4.1-flash", "deepseek-v4-flash", "deepseek-v4-pro"] {
        let imported = imported(&format!("configs/{name}.json"));
        assert_same(spec(&imported), shipped(&format!("{name}.yaml")));
    }
}

#[test]
fn fixtures_are_the_tiny_specs() {
    assert_same(spec(&imported("v41-tiny-a/config.json")), shipped("tiny-v41.yaml"));
    let v4 = spec(&imported("v4-tiny/config.json"));
    assert_eq!(v4.numerics.caches, Caches::Exact);
    assert_eq!(v4.numerics.linear_inputs, LinearInputs::Exact);
    assert_eq!(v4.weights.experts, WeightFormat::F32);
    let tiny = shipped("tiny-v4.yaml");
    assert_eq!(v4.kv_cache.window, RowFormat::Fp8);
    assert_same(Spec { kv_cache: tiny.kv_cache, ..v4 }, tiny);
}

#[test]
fn texts_and_findings() {
    for (name, path) in [
        ("v41", "configs/deepseek-v4.1-flash.json"),
        ("v4", "configs/deepseek-v4-flash.json"),
        ("v4_transformers", "v4-tiny/config.json"),
    ] {
        let imported = imported(path);
        let text = format!("{}\n{}", imported.yaml.as_deref().unwrap_or("(none)\n"), imported.render(Style::default()));
        insta::assert_snapshot!(name, text);
    }
}

#[test]
fn lists_without_stage_entries_are_tolerated() {
    let text = std::fs::read_to_string(root().join("tests/fixtures/v41-tiny-a/config.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    json["text_config"]["compress_ratios"].as_array_mut().unwrap().truncate(10);
    assert_eq!(spec(&import("c", &json.to_string())).compress.compress_ratios.len(), 10);
    json["text_config"]["compress_ratios"].as_array_mut().unwrap().truncate(9);
    assert!(import("c", &json.to_string()).yaml.is_none());
}

#[test]
fn bad_configurations() {
    let texts = [
        "",
        "{",
        "[]",
        "{}",
        "null",
        "{\"model_type\": 3}",
        "{\"model_type\": \"deepseek_v32\"}",
        "{\"model_type\": \"llama\"}",
        "{\"model_type\": \"deepseek_v41\"}",
        "{\"model_type\": \"deepseek_v41\", \"text_config\": {\"vocab_size\": -1}}",
        "{\"model_type\": \"deepseek_v4\", \"hidden_act\": \"gelu\", \"dtype\": \"int8\"}",
    ];
    let mut all = String::new();
    for text in texts {
        let imported = import("config.json", text);
        assert!(imported.yaml.is_none(), "{text}");
        all.push_str(&format!("--- {text}\n{}\n", imported.render(Style::default())));
    }
    insta::assert_snapshot!(all);
}
