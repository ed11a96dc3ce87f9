//! Which crate may depend on which: the table of ARCHITECTURE.md, read from the `Cargo.toml` files.

use super::repo;
use std::collections::BTreeSet;

/// Crates of the workspace that a crate may depend on, and outside crates that it alone may.
const DOORS: [(&str, &[&str], &[&str]); 6] = [
    ("ir", &[], &["petgraph"]),
    ("frontend", &["dsc-ir"], &["serde_yaml"]),
    ("passes", &["dsc-ir"], &[]),
    ("codegen", &["dsc-ir"], &["inkwell", "cranelift-frontend"]),
    ("runtime", &["dsc-ir"], &["cudarc", "cranelift-jit", "cranelift-reader"]),
    ("cli", &["dsc-codegen", "dsc-frontend", "dsc-ir", "dsc-passes", "dsc-runtime"], &["comfy-table"]),
];

/// Keys of `[dependencies]`.
fn dependencies(crate_dir: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(repo(&format!("{crate_dir}/Cargo.toml"))).unwrap();
    let section = text.split("\n[").find(|part| part.starts_with("dependencies]")).unwrap();
    let keys = section.lines().skip(1).filter_map(|line| line.split(['.', ' ', '=']).next());
    keys.filter(|key| !key.is_empty() && !key.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn doors_open_one_way() {
    for (name, allowed, _) in DOORS {
        let inside: Vec<String> = dependencies(name).into_iter().filter(|d| d.starts_with("dsc-")).collect();
        assert!(inside.iter().all(|d| allowed.contains(&d.as_str())), "{name} depends on {inside:?}");
        for (other, _, theirs) in DOORS.iter().filter(|(other, _, _)| *other != name) {
            let taken: Vec<&&str> = theirs.iter().filter(|d| dependencies(name).contains(**d)).collect();
            assert!(taken.is_empty(), "{name} names {taken:?}, which only {other} may");
        }
    }
}
