//! Doors open one way: who may depend on whom, and who alone may name a library.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failing helper is a failing test

use std::collections::BTreeSet;

/// Dependencies of a package, tests' own left out.
fn dependencies(package: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(dsc_tests::root().join(package).join("Cargo.toml")).unwrap();
    let mut inside = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        if line.starts_with('[') {
            inside = line == "[dependencies]";
        } else if inside && let Some((name, _)) = line.split_once(['.', ' ', '=']) {
            found.insert(name.to_string());
        }
    }
    found
}

#[test]
fn rooms_depend_in_one_direction() {
    for (package, allowed) in [
        ("ir", &[][..]),
        ("frontend", &["dsc-ir"]),
        ("passes", &["dsc-ir"]),
        ("codegen", &["dsc-ir"]),
        ("runtime", &["dsc-ir"]),
        ("cli", &["dsc-ir", "dsc-frontend", "dsc-passes", "dsc-codegen", "dsc-runtime"]),
    ] {
        let ours: BTreeSet<String> = dependencies(package).into_iter().filter(|d| d.starts_with("dsc-")).collect();
        let allowed: BTreeSet<String> = allowed.iter().map(|s| s.to_string()).collect();
        assert!(ours.is_subset(&allowed), "{package} depends on {ours:?}, allowed are {allowed:?}");
    }
}

#[test]
fn libraries_stay_in_their_rooms() {
    for (library, rooms) in [
        ("petgraph", &["ir"][..]),
        ("serde_yaml", &["frontend"]),
        ("inkwell", &["codegen"]),
        ("cranelift-frontend", &["codegen"]),
        ("cranelift-jit", &["runtime"]),
        ("cranelift-reader", &["runtime"]),
        ("cudarc", &["runtime"]),
        ("clap", &["cli", "runtime"]),
    ] {
        for package in ["ir", "frontend", "passes", "codegen", "runtime", "cli"] {
            let has = dependencies(package).contains(library);
            assert!(!has || rooms.contains(&package), "{package} depends on {library}, which belongs to {rooms:?}");
        }
    }
}

/// Only one module may name the YAML library.
#[test]
fn one_module_names_the_yaml_library() {
    let mut stack = vec![dsc_tests::root().join("frontend/src")];
    while let Some(folder) = stack.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                stack.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("yaml.rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                assert!(!text.contains("serde_yaml::"), "{} names serde_yaml", path.display());
            }
        }
    }
}
