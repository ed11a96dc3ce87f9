//! What `explain`, `check`, `schema` and `import` say about the shipped specs.

use super::{dsc, good, json, repo};
use serde_json::{Value, json};

fn explain(spec: &str) -> Value {
    json(&["explain", &repo(spec)])
}

fn kinds<'v>(facts: &'v Value, phase: &str, role: &'v str) -> impl Iterator<Item = &'v Value> {
    let kinds = facts["phases"][phase]["layer_kinds"].as_array().unwrap();
    kinds.iter().filter(move |kind| kind["role"] == role)
}

#[test]
fn flagship() {
    let facts = explain("specs/deepseek-v4.1-flash.yaml");
    // Three sources of ratio 2 and one of ratio 1, each with a main row of 288 bytes and an index key of 68:
    // 3 * (288 + 68) / 2 + (288 + 68).
    assert_eq!(facts["kv"]["bytes_per_token"], json!(890));
    // 40 windows of 128 rows of 528 bytes.
    assert_eq!(facts["kv"]["bytes_per_sequence"], json!(40 * 128 * 528));
    assert!(facts["phases"]["decode"]["launches_per_step"].as_u64().unwrap() <= 500);
    for (phase, at_most) in [("decode", 11), ("prefill", 15)] {
        let layers: usize = kinds(&facts, phase, "reuse").map(|kind| kind["layers"].as_array().unwrap().len()).sum();
        assert_eq!(layers, 30);
        assert!(kinds(&facts, phase, "reuse").all(|kind| kind["launches"].as_u64().unwrap() <= at_most), "{phase}");
    }
    let kernel = &facts["phases"]["decode"]["layer_kinds"][0]["kernels"][0];
    for field in ["name", "anchor", "ops", "flops", "bytes"] {
        assert!(!kernel[field].is_null(), "{field}");
    }
    assert!(kernel["flops"]["expression"].is_string() && kernel["flops"]["value"].is_u64());
    assert!(!facts["remarks"].as_array().unwrap().is_empty());
}

#[test]
fn cache_sizes_are_exact() {
    // 21 layers of CSA at 4 tokens per row, 20 of HCA at 128: 21 * (584 + 68) / 4 + 20 * 584 / 128.
    let v4_flash = explain("specs/deepseek-v4-flash.yaml");
    assert_eq!(v4_flash["kv"]["bytes_per_token"], json!(3514.25));
    assert!(kinds(&v4_flash, "decode", "hca").count() > 0 && kinds(&v4_flash, "decode", "full").count() > 0);
    // 30 * (584 + 68) / 4 + 31 * 584 / 128.
    assert_eq!(explain("specs/deepseek-v4-pro.yaml")["kv"]["bytes_per_token"], json!(5031.4375));
}

#[test]
fn tables_fit_100_columns() {
    let text = good(&["explain", &repo("specs/deepseek-v4.1-flash.yaml")]);
    assert!(text.contains("890 B/token"), "{text}");
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
    assert!(!text.contains('\x1b'), "no colour away from a terminal");
}

#[test]
fn phases_kernels_and_sizes_are_chosen() {
    let spec = repo("specs/tiny-v41.yaml");
    let facts = json(&["explain", &spec, "--phase", "prefill", "--kernel", "sparse*rope"]);
    assert_eq!(facts["phases"].as_object().unwrap().keys().collect::<Vec<_>>(), ["prefill"]);
    let kernels = facts["phases"]["prefill"]["layer_kinds"].as_array().unwrap();
    let names =
        kernels.iter().flat_map(|kind| kind["kernels"].as_array().unwrap()).map(|k| k["name"].as_str().unwrap());
    assert!(names.clone().count() > 0);
    names.for_each(|name| assert!(name.starts_with("sparse_attention_rope"), "{name}"));

    let flops = |args: &[&str]| {
        let args: Vec<&str> = ["explain", &spec, "--phase", "decode"].into_iter().chain(args.iter().copied()).collect();
        json(&args)["phases"]["decode"]["total"]["flops"]["value"].as_u64().unwrap()
    };
    assert!(flops(&["--batch", "8"]) > flops(&[]) && flops(&["--context", "1k"]) < flops(&[]));
}

#[test]
fn without_fusion_there_is_a_launch_per_op() {
    let spec = repo("specs/tiny-v41.yaml");
    let launches = |facts: &Value| facts["phases"]["decode"]["launches_per_step"].as_u64().unwrap();
    let apart = json(&["explain", &spec, "--fuse", "none"]);
    assert!(launches(&apart) > 2 * launches(&json(&["explain", &spec])));
    let ops = apart["phases"]["decode"]["layer_kinds"][0]["kernels"].as_array().unwrap();
    assert!(ops.iter().all(|k| k["ops"].as_array().unwrap().len() == 1));
}

#[test]
fn overrides_are_part_of_the_spec() {
    let spec = repo("specs/deepseek-v4.1-flash.yaml");
    let facts =
        json(&["explain", &spec, "--set", "numerics.caches=exact", "--set", "budgets=null", "--phase", "decode"]);
    // Rows of bf16: (1024 + 256) * (3 / 2 + 1).
    assert_eq!(facts["kv"]["bytes_per_token"], json!(3200));
    let split = json(&["explain", &spec, "--tp", "4", "--ep", "4", "--phase", "decode"]);
    assert!(split["phases"]["decode"]["collectives_per_step"].as_u64().unwrap() > 0);
}

#[test]
fn a_good_spec_checks() {
    let spec = repo("specs/deepseek-v4.1-flash.yaml");
    assert!(good(&["check", &spec]).contains("890 bytes of cache per token"));
    let document = json(&["check", &spec]);
    assert_eq!((&document["ok"], &document["kv_bytes_per_token"]), (&json!(true), &json!(890)));
}

#[test]
fn schema_is_json() {
    let schema: Value = serde_json::from_str(&good(&["schema"])).unwrap();
    assert!(schema["properties"]["attention"]["description"].is_string());
    assert_eq!(schema, json(&["schema"]));
}

#[test]
fn imported_specs_check() {
    let folder = tempfile::tempdir().unwrap();
    for (config, bytes) in [
        ("tests/fixtures/configs/deepseek-v4.1-flash.json", 890.0),
        ("tests/fixtures/configs/deepseek-v4-flash.json", 3514.25),
        ("tests/fixtures/configs/deepseek-v4-pro.json", 5031.4375),
    ] {
        let path = folder.path().join("spec.yaml").display().to_string();
        let ran = dsc(&["import", &repo(config), "-o", &path]);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert!(ran.stderr.contains("was not used"), "keys that were not used are listed");
        assert_eq!(json(&["check", &path])["kv_bytes_per_token"].as_f64(), Some(bytes));
        let document = json(&["import", &repo(config)]);
        assert_eq!(document["spec"].as_str().unwrap(), std::fs::read_to_string(&path).unwrap());
    }
}
