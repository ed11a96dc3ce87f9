//! `dsc build`, and what other commands make of a bundle.

use super::{dsc, good, json, repo};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
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
    let kinds = "spec,ir,schedule,plan,clif,dot,manifest";
    build("specs/tiny-v4.yaml", &bundle, &["--emit", kinds, "--dump-passes", text(&dumps)]);
    let emitted = files(&bundle.join("emit"));
    for name in ["spec.yaml", "graph.dsir", "decode.sm_90a.txt", "prefill.sm_90a.dot"] {
        assert!(emitted.contains_key(name), "{name}");
    }
    let inside = files(&bundle);
    assert_eq!(emitted["spec.yaml"], inside["spec.yaml"]);
    assert!(emitted.keys().any(|name| name.ends_with(".loops")));
    assert_same_code(&emitted, &inside, ".clif");

    // The manifest, but for the table that would have to hold the hash of this very file.
    let document = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
    let (shown, mut whole) = (document(&emitted["manifest.json"]), document(&inside["manifest.json"]));
    assert!(whole["files"].as_object().unwrap().contains_key("emit/manifest.json"));
    whole["files"] = json!({});
    assert_eq!(shown, whole);
    assert!(files(&dumps).len() >= 16, "both phases, a file a pass");
    good(&["inspect", text(&bundle)]);
}

/// The texts of an ending below `emit/` are those of the bundle's kernels: all of them, and no others.
fn assert_same_code(emitted: &BTreeMap<String, Vec<u8>>, inside: &BTreeMap<String, Vec<u8>>, ending: &str) {
    let texts = |files: &BTreeMap<String, Vec<u8>>, folder: &str| -> BTreeSet<Vec<u8>> {
        let of_kind = |name: &str| name.starts_with(folder) && name.ends_with(ending);
        files.iter().filter(|(name, _)| of_kind(name)).map(|(_, text)| text.clone()).collect()
    };
    let shown = texts(emitted, "");
    assert!(!shown.is_empty(), "no {ending}");
    assert!(shown == texts(inside, "kernels/"), "{ending} below emit/ is not the bundle's");
}

#[cfg(feature = "nvptx")]
#[test]
fn gpu_code_is_shown_as_it_is_in_the_bundle() {
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("bundle");
    build("specs/tiny-v4.yaml", &bundle, &["--target", "sm_80", "--emit", "llvm,ptx"]);
    let emitted = files(&bundle.join("emit"));
    assert_same_code(&emitted, &files(&bundle), ".ptx");
    for (name, ptx) in emitted.iter().filter(|(name, _)| name.ends_with(".ptx")) {
        let ptx = std::str::from_utf8(ptx).unwrap();
        let symbol = ptx.split(".visible .entry ").nth(1).unwrap().split('(').next().unwrap();
        let llvm = std::str::from_utf8(&emitted[&name.replace(".ptx", ".ll")]).unwrap();
        assert!(llvm.contains(&format!("define ptx_kernel void @{symbol}(")), "{name}");
        assert!(llvm.contains("target triple = \"nvptx64-nvidia-cuda\""), "{name}");
    }

    // A bundle for the CPU runs the schedules of a GPU: its kernels are shown for that one.
    build("specs/tiny-v4.yaml", &bundle, &["--emit", "ptx"]);
    let emitted = files(&bundle.join("emit"));
    assert!(emitted.keys().all(|name| name.contains(".sm_90a/") && name.ends_with(".ptx")) && !emitted.is_empty());
    assert!(!files(&bundle.join("kernels")).keys().any(|name| name.ends_with(".ptx")));
}

#[test]
fn a_collective_has_no_code_to_show() {
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("bundle");
    build("specs/variants/tp4-16-heads.yaml", &bundle, &["--emit", "plan,clif"]);
    assert_same_code(&files(&bundle.join("emit")), &files(&bundle), ".clif");
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
    for more in [["--target", "sm_90a"], ["--emit", "llvm"], ["--emit", "spec,ptx"]] {
        let args = ["build", &repo("specs/tiny-v4.yaml"), "-o", "never", more[0], more[1]];
        let ran = dsc(&args);
        assert_eq!((ran.code, ran.stderr.trim_end().lines().count()), (3, 1), "{}", ran.stderr);
        assert!(ran.stderr.contains("built without LLVM"), "{}", ran.stderr);
    }
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
