//! Every spec that ships with dsc is valid, and the flagship's numbers are the published ones.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use dsc_frontend::spec::{Residual, Role, Spec};
use dsc_ir::diag::Style;
use std::path::{Path, PathBuf};

fn specs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../specs")
}

fn load(path: &Path) -> Spec {
    let loaded = dsc_frontend::load(path, &[]);
    assert!(loaded.findings.is_empty(), "{}", loaded.render(Style::default()));
    loaded.checked.unwrap().spec
}

fn yaml_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|e| e == "yaml")).collect();
    files.sort();
    files
}

#[test]
fn all_specs_load() {
    let variants = yaml_files(&specs().join("variants"));
    assert!(variants.len() >= 10);
    let mut all = yaml_files(&specs());
    all.extend(variants);
    for path in all {
        let spec = load(&path);
        assert_eq!(Some(spec.name.as_str()), path.file_stem().and_then(|stem| stem.to_str()));
    }
}

#[test]
fn flagship_roles() {
    let spec = load(&specs().join("deepseek-v4.1-flash.yaml"));
    let of = |role| (0..spec.num_hidden_layers).filter(|l| spec.role(*l) == role).collect::<Vec<u32>>();
    assert_eq!(of(Role::Swa), [0, 1]);
    assert_eq!(of(Role::Full), [2, 8, 14, 20]);
    assert_eq!(of(Role::Reindex), [24, 28, 32, 36]);
    assert_eq!(of(Role::Reuse).len(), 30);
    let text = std::fs::read_to_string(specs().join("deepseek-v4.1-flash.yaml")).unwrap();
    assert!(text.lines().count() <= 120);
}

#[test]
fn variants_change_one_idea() {
    let base = load(&specs().join("deepseek-v4.1-flash.yaml"));
    let plain = load(&specs().join("variants/plain-residual.yaml"));
    assert_eq!(plain.residual, Residual::Plain);
    assert_eq!(
        Spec {
            residual: base.residual.clone(),
            // A memory needs streams, so it goes with them.
            engram: base.engram.clone(),
            name: base.name.clone(),
            budgets: base.budgets.clone(),
            ..plain
        },
        base
    );
    let window = load(&specs().join("variants/window-only.yaml"));
    assert!((0..40).all(|layer| window.role(layer) == Role::Swa));
}
