//! The `dsc` command from outside: what it prints, and its exit codes.
#![allow(clippy::unwrap_used, clippy::panic)] // tests

mod build;
mod corpus;
mod docs;
mod doors;
mod errors;
mod figures;
mod fixtures;
mod hostile;

use assert_cmd::Command;
use serde_json::Value;
use std::path::PathBuf;

/// A path of the repository.
fn repo(path: &str) -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap();
    root.join(path).display().to_string()
}

/// What a command did.
struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

/// Runs `dsc` with a cache of its own, away from the user's.
fn dsc(args: &[&str]) -> Ran {
    let cache = std::env::temp_dir().join(format!("dsc-test-cache-{}", std::process::id()));
    let output = Command::new(env!("CARGO_BIN_EXE_dsc")).env("XDG_CACHE_HOME", cache).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Runs `dsc`, which has to succeed, and gives its standard output.
fn good(args: &[&str]) -> String {
    let ran = dsc(args);
    assert_eq!(ran.code, 0, "{args:?}\n{}{}", ran.stdout, ran.stderr);
    ran.stdout
}

/// The same with `--json`: standard output is one document.
fn json(args: &[&str]) -> Value {
    let args: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
    serde_json::from_str(&good(&args)).unwrap()
}
