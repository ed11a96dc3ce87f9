//! The corpus of broken specs through the command: `frontend/tests/broken`, whose messages the frontend's own tests
//! keep, and the budgets in it, which only a compiled spec can exceed.

use super::{dsc, repo};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;

fn specs(folder: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(repo(folder)).unwrap().map(|entry| entry.unwrap().path());
    let mut specs: Vec<PathBuf> = all.filter(|path| path.extension().is_some_and(|e| e == "yaml")).collect();
    specs.sort();
    specs
}

#[test]
fn broken_specs_are_wrong_input() {
    let specs = specs("frontend/tests/broken");
    assert!(specs.len() >= 60);
    for spec in specs {
        let ran = dsc(&["check", spec.to_str().unwrap(), "--json"]);
        // A base that is not there is an error at its key as well.
        assert_eq!(ran.code, 2, "{}: {}", spec.display(), ran.stderr);
        let document: Value = serde_json::from_str(&ran.stdout).unwrap();
        let findings = document["findings"].as_array().unwrap();
        assert!(findings.iter().all(|finding| finding["code"].is_string()), "{}", spec.display());
        assert!(ran.stderr.starts_with("error[E") || ran.stderr.starts_with("warning[W"), "{}", ran.stderr);
    }
}

#[test]
fn exceeded_budgets_have_their_messages() {
    let specs = specs("frontend/tests/broken/budgets");
    let mut all = String::new();
    for spec in &specs {
        let ran = dsc(&["check", spec.to_str().unwrap()]);
        assert_eq!(ran.code, 1, "{}: {}", spec.display(), ran.stderr);
        let here = format!("{}/", spec.parent().unwrap().parent().unwrap().display());
        let name = spec.file_name().unwrap().to_str().unwrap();
        let text = ran.stderr.replace(&here, "").replace(&repo("frontend/tests/broken/"), "");
        all.push_str(&format!("--- {name}\n{text}\n"));
    }
    insta::assert_snapshot!(all);
}
