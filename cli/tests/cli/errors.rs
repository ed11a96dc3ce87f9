//! Wrong input: exit codes, one clear line where no text is to blame, and one JSON document in any case.

use super::{dsc, repo};
use serde_json::{Value, json};

/// Standard error is one line.
fn one_line(args: &[&str], code: i32) -> String {
    let ran = dsc(args);
    assert_eq!(ran.code, code, "{args:?}\n{}", ran.stderr);
    assert_eq!(ran.stderr.trim_end().lines().count(), 1, "{args:?}\n{}", ran.stderr);
    assert_eq!(ran.stdout, "", "{args:?}");
    ran.stderr
}

/// A failure with `--json`.
fn json_failure(args: &[&str]) -> Value {
    let args: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
    let ran = dsc(&args);
    let document: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}\n{}", ran.stdout));
    assert_eq!((&document["ok"], &document["exit_code"]), (&json!(false), &json!(ran.code)), "{args:?}");
    assert_ne!(ran.stderr, "");
    document
}

#[test]
fn files_that_are_not_there() {
    let out = std::env::temp_dir().join("dsc-never-written").display().to_string();
    for args in [
        ["check", "missing.yaml"].as_slice(),
        &["explain", "missing.yaml"],
        &["import", "missing.json"],
        &["build", "missing.yaml", "-o", &out],
        &["inspect", "missing"],
        &["verify", "missing"],
        &["explain", "missing.tar.zst"],
        &["run", "missing", "--weights", "random:1", "--prompt-ids", "1"],
    ] {
        assert!(one_line(args, 3).contains("missing"), "{args:?}");
    }
}

#[test]
fn wrong_command_lines() {
    let tiny = repo("specs/tiny-v41.yaml");
    for args in [
        ["frobnicate"].as_slice(),
        &[],
        &["check"],
        &["check", &tiny, "--frobnicate"],
        &["check", &tiny, "--target", "sm_9"],
        &["check", &tiny, "--set", "no.such.key=1"],
        &["check", &tiny, "--set", "vocab_size"],
        &["explain", &tiny, "--only-pass", "fuse-nothing"],
        &["explain", &tiny, "--context", "0"],
        &["explain", &tiny, "--kernel", "no-such-kernel"],
        &["explain", &repo("specs/deepseek-v4.1-flash.yaml"), "--tp", "3"],
        &["build", &tiny, "-o", "never", "--emit", "nothing"],
        &["explain", &repo("specs")],
    ] {
        let ran = dsc(args);
        assert_eq!(ran.code, 2, "{args:?}\n{}", ran.stderr);
        assert!(ran.stdout.is_empty() && !ran.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn help_is_no_failure() {
    for args in [["--help"].as_slice(), &["build", "--help"], &["--version"]] {
        let ran = dsc(args);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{args:?}");
    }
}

#[test]
fn exceeded_budgets_fail_the_check() {
    let flagship = repo("specs/deepseek-v4.1-flash.yaml");
    let out = std::env::temp_dir().join("dsc-never-written").display().to_string();
    let sets = ["--set", "kv_cache.main=fp8", "--set", "budgets.launches.decode.reuse=1"];
    for command in [["check", &flagship].as_slice(), &["build", &flagship, "-o", &out]] {
        let args: Vec<&str> = command.iter().copied().chain(sets).collect();
        let ran = dsc(&args);
        assert_eq!(ran.code, 1, "{args:?}\n{}", ran.stderr);
        assert!(ran.stderr.contains("error[E0304]: KV cache grows by 1 490 bytes/token, over the budget of 890"));
        assert!(ran.stderr.contains("`kv_cache.main: fp4` would bring it to 890"), "{}", ran.stderr);
        assert!(ran.stderr.contains("error[E0305]"), "{}", ran.stderr);
        let document = json_failure(&args);
        let codes: Vec<&Value> = document["findings"].as_array().unwrap().iter().map(|f| &f["code"]).collect();
        assert_eq!(codes, ["E0304", "E0305"]);
    }
    assert!(!std::path::Path::new(&out).exists());
}

#[test]
fn failures_are_json_documents_too() {
    let tiny = repo("specs/tiny-v41.yaml");
    assert_eq!(json_failure(&["check", &tiny, "--set", "attention.head_dim=many"])["exit_code"], json!(2));
    assert_eq!(json_failure(&["check", "missing.yaml"])["findings"][0]["code"], "E0101");
    assert!(json_failure(&["inspect", "missing"])["error"].is_string());
    assert!(json_failure(&["check", &tiny, "--frobnicate"])["error"].is_string());
}

#[test]
fn a_defect_is_no_panic() {
    // The widest spec that the ranges of keys allow must end in an error, not in exit code 101.
    let huge = ["vocab_size=1073741824", "hidden_size=1048576", "max_position_embeddings=1073741824"];
    let mut args = vec!["check".to_owned(), repo("specs/tiny-v4.yaml")];
    args.extend(huge.iter().flat_map(|set| ["--set".to_owned(), (*set).to_owned()]));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    assert_ne!(dsc(&args).code, 101);
}
