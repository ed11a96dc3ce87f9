//! `dsc build`, and what other commands make of a bundle.

use super::{dsc, good, json, repo};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Every file below a folder.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    fn gather(folder: &Path, prefix: &str, all: &mut BTreeMap<String, Vec<u8>>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = format!("{prefix}{}", path.file_name().unwrap().to_str().unwrap());
            if path.is_dir() {
                gather(&path, &format!("{name}/"), all);
            } else {
                all.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    let mut all = BTreeMap::new();
    gather(folder, "", &mut all);
    all
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The arithmetic of the fixtures' primary mode.
const PRIMARY: [&str; 4] = ["--set", "numerics.activations=f32", "--set", "numerics.linear_inputs=exact"];

fn build(spec: &str, out: &Path, more: &[&str]) -> String {
    let spec = repo(spec);
    let args: Vec<&str> = ["build", &spec, "-o", text(out)].into_iter().chain(more.iter().copied()).collect();
    good(&args)
}

#[test]
fn equal_inputs_give_equal_bytes() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (one, other) = (one.path().join("a"), other.path().join("somewhere/else/b"));
    build("specs/tiny-v41.yaml", &one, &["--no-cache"]);
    build("specs/tiny-v41.yaml", &other, &[]);
    let first = files(&one);
    assert!(first.contains_key("manifest.json") && first.contains_key("spec.yaml"));
    assert!(first == files(&other), "the bundles differ");

    // A bundle in the way is replaced, and comes from the cache.
    let report = json(&["build", &repo("specs/tiny-v41.yaml"), "-o", text(&other)]);
    assert_eq!(report["kernels"], report["cached"]);
    assert!(first == files(&other));
}

#[test]
fn archives_hold_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let (plain, archive) = (folder.path().join("plain"), folder.path().join("packed.tar.zst"));
    build("specs/tiny-v4.yaml", &plain, &[]);
    build("specs/tiny-v4.yaml", &archive, &[]);
    assert_eq!(json(&["inspect", text(&plain)]), json(&["inspect", text(&archive)]));
    assert_eq!(json(&["explain", text(&plain)]), json(&["explain", text(&archive)]));
}

#[test]
fn the_spec_inside_is_resolved() {
    let folder = tempfile::tempdir().unwrap();
    let (spec, bundle) = (folder.path().join("variant.yaml"), folder.path().join("bundle"));
    fs::write(&spec, format!("base: {}\nindex:\n  index_topk: window - 6\n", repo("specs/tiny-v41.yaml"))).unwrap();
    let sets = ["--set", "attention.sliding_window=17"];
    good(&["build", text(&spec), "-o", text(&bundle), sets[0], sets[1]]);
    let inside = fs::read_to_string(bundle.join("spec.yaml")).unwrap();
    assert!(inside.contains("index_topk: 11") && !inside.contains("base"), "{inside}");
    let of_spec = json(&["explain", text(&spec), sets[0], sets[1]]);
    assert_eq!(json(&["explain", text(&bundle)]), of_spec);
}

#[test]
fn intermediate_forms_are_in_the_bundle() {
    let folder = tempfile::tempdir().unwrap();
    let (bundle, dumps) = (folder.path().join("bundle"), folder.path().join("dumps"));
    let kinds = "spec,ir,schedule,plan,clif,ptx,dot,manifest";
    build("specs/tiny-v4.yaml", &bundle, &["--emit", kinds, "--dump-passes", text(&dumps)]);
    let emitted = files(&bundle.join("emit"));
    for name in ["spec.yaml", "graph.dsir", "decode.sm_90a.txt", "prefill.sm_90a.dot"] {
        assert!(emitted.contains_key(name), "{name}");
    }
    for ending in [".loops", ".clif"] {
        assert!(emitted.keys().any(|name| name.ends_with(ending)), "{ending}");
    }
    assert!(files(&dumps).len() >= 16, "both phases, a file a pass");
    good(&["inspect", text(&bundle)]);
}

#[test]
fn only_bundles_are_replaced() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("precious"), "").unwrap();
    let ran = dsc(&["build", &repo("specs/tiny-v4.yaml"), "-o", text(folder.path())]);
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(folder.path().join("precious").exists());
}

#[test]
fn damaged_bundles_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("bundle");
    build("specs/tiny-v4.yaml", &bundle, &[]);
    let spec = bundle.join("spec.yaml");
    let mut bytes = fs::read(&spec).unwrap();
    bytes[10] ^= 1;
    fs::write(&spec, bytes).unwrap();
    for command in ["inspect", "verify", "explain"] {
        let ran = dsc(&[command, text(&bundle)]);
        assert_eq!(ran.code, 2, "{command}: {}", ran.stderr);
        assert!(ran.stderr.contains("spec.yaml"), "{command}: {}", ran.stderr);
    }
}

#[cfg(not(feature = "nvptx"))]
#[test]
fn gpu_code_needs_llvm() {
    let ran = dsc(&["build", &repo("specs/tiny-v4.yaml"), "-o", "never", "--target", "sm_90a"]);
    assert_eq!((ran.code, ran.stderr.trim_end().lines().count()), (3, 1), "{}", ran.stderr);
}

#[test]
fn a_bundle_generates_the_expected_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("bundle");
    build("specs/tiny-v41.yaml", &bundle, &PRIMARY);
    let fixture = |name: &str| repo(&format!("tests/fixtures/v41-tiny-a/{name}"));
    let document = json(&[
        "run",
        text(&bundle),
        "--weights",
        &fixture("model.safetensors"),
        "--engram-tables",
        &fixture("engram_tables.json"),
        "--prompt-ids",
        &fixture("inputs.json"),
        "--max-new-tokens",
        "16",
    ]);
    // `p0.decode_tokens` of the fixture.
    let expected = [153, 66, 10, 180, 81, 88, 131, 76, 169, 17, 22, 153, 17, 47, 101, 131];
    assert_eq!(document["prompts"][0]["generated_ids"], json!(expected));
}
