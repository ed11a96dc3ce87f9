//! The executor, generation and the commands on the tiny bundle.
#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use clap::Parser;
use common::Files;
use dsc_runtime::commands::{self, CommandError, Outcome, RunArgs, Streams, VerifyArgs};
use safetensors::SafeTensors;
use std::path::{Path, PathBuf};

struct World {
    dir: tempfile::TempDir,
}

impl World {
    fn new(files: &Files) -> World {
        let dir = tempfile::tempdir().unwrap();
        common::write_folder(&dir.path().join("bundle"), files);
        common::write_checkpoint(&dir.path().join("w.safetensors"), &common::successor_weights());
        World { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

#[derive(Parser)]
struct RunCli {
    #[command(flatten)]
    args: RunArgs,
}

#[derive(Parser)]
struct VerifyCli {
    #[command(flatten)]
    args: VerifyArgs,
}

fn collect(
    f: impl FnOnce(&mut Streams<'_>) -> Result<Outcome, CommandError>,
) -> Result<(Outcome, String), CommandError> {
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let outcome = f(&mut Streams { out: &mut out, notes: &mut notes })?;
    Ok((outcome, String::from_utf8(out).unwrap()))
}

fn run(world: &World, weights: &str, args: &[&str]) -> Result<serde_json::Value, CommandError> {
    let bundle = world.path("bundle");
    let mut all = vec!["run", bundle.to_str().unwrap(), "--json", "--weights", weights];
    all.extend(args);
    let args = RunCli::try_parse_from(all).unwrap().args;
    collect(|io| commands::run(&args, io)).map(|(_, out)| serde_json::from_str(&out).unwrap())
}

fn checkpoint(world: &World) -> String {
    world.path("w.safetensors").to_str().unwrap().to_string()
}

fn tokens(report: &serde_json::Value) -> Vec<Vec<u64>> {
    let ids =
        |p: &serde_json::Value| p["generated_ids"].as_array().unwrap().iter().map(|i| i.as_u64().unwrap()).collect();
    report["prompts"].as_array().unwrap().iter().map(ids).collect()
}

#[test]
fn generates_successors() {
    let world = World::new(&common::bundle());
    let report = run(&world, &checkpoint(&world), &["--prompt-ids", "3,1,5", "--max-new-tokens", "4"]).unwrap();
    assert_eq!(tokens(&report), [[6, 7, 0, 1]]);
    assert_eq!(report["unused_tensors"], 1);
    let stopped = &["--prompt-ids", "5", "--max-new-tokens", "4", "--stop-ids", "9,7"];
    assert_eq!(tokens(&run(&world, &checkpoint(&world), stopped).unwrap()), [[6, 7]]);
    let none = &["--prompt-ids", "5", "--max-new-tokens", "0"];
    assert_eq!(tokens(&run(&world, &checkpoint(&world), none).unwrap()), [Vec::<u64>::new()]);
}

#[test]
fn several_prompts_chunks_and_threads_change_nothing() {
    let world = World::new(&common::bundle());
    let file = world.path("prompts.json");
    let long: Vec<u64> = (0..29).map(|i| i * 3 % 8).collect();
    std::fs::write(&file, serde_json::json!({ "prompts": [[1, 2], long, [7]] }).to_string()).unwrap();
    let file = file.to_str().unwrap();
    for (chunk, threads) in [("1", "1"), ("5", "3"), ("256", "8")] {
        let args = ["--prompt-ids", file, "--max-new-tokens", "3", "--chunk", chunk, "--threads", threads];
        assert_eq!(tokens(&run(&world, &checkpoint(&world), &args).unwrap()), [[3, 4, 5], [5, 6, 7], [0, 1, 2]]);
    }
}

#[test]
fn random_weights_are_reproducible() {
    let world = World::new(&common::bundle());
    let with = |seed: &str| tokens(&run(&world, seed, &["--prompt-ids", "1", "--max-new-tokens", "12"]).unwrap());
    assert_eq!(with("random:7"), with("random:7"));
    assert!((0..8).any(|s| with(&format!("random:{s}")) != with("random:7")));
}

#[test]
fn dumps_have_every_position() {
    let world = World::new(&common::bundle());
    let dump = world.path("d.safetensors");
    let file = world.path("prompts.json");
    std::fs::write(&file, "[[1, 2, 3], [4]]").unwrap();
    let args = ["--prompt-ids", file.to_str().unwrap(), "--max-new-tokens", "2", "--chunk", "2", "--dump"];
    run(&world, &checkpoint(&world), &[&args[..], &[dump.to_str().unwrap()]].concat()).unwrap();
    let bytes = std::fs::read(&dump).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let shape = |name: &str| tensors.tensor(name).unwrap().shape().to_vec();
    assert_eq!((shape("p0.logits"), shape("p1.logits")), (vec![3, 8], vec![1, 8]));
    assert_eq!((shape("p0.decode_logits"), shape("p0.decode_tokens")), (vec![2, 8], vec![2]));
    assert_eq!(tensors.len(), 6, "probes that the model lacks are absent");
    let data = |name: &str| tensors.tensor(name).unwrap().data().to_vec();
    assert_eq!(data("p0.logits")[2 * 32..], data("p0.decode_logits")[..32], "row 0 is the last of the prefill");
    assert_eq!(data("p0.decode_tokens"), [4, 0, 0, 0, 5, 0, 0, 0]);
}

#[test]
fn a_step_is_compared_launch_by_launch() {
    let world = World::new(&common::bundle());
    let step = |choice: &str, against: &str| {
        let args = ["--prompt-ids", "3,1,5", "--chunk", "2", "--step", choice, "--step-against", against];
        run(&world, &checkpoint(&world), &args)
    };
    for (choice, launches) in [("all", 3), ("prefill:all", 3), ("1", 1), ("prefill:2", 1)] {
        for against in ["cpu", "interpreter"] {
            let report = step(choice, against).unwrap();
            assert_eq!((&report["failed"], report["launches"].as_array().unwrap().len()), (&0.into(), launches));
            assert!(report["launches"][0]["values"].as_u64().unwrap() > 0);
        }
    }
    assert_eq!(step("2", "cpu").unwrap()["launches"][0]["kernel"], "logits");
    assert!(step("3", "cpu").unwrap_err().to_string().contains("there is no launch 3: the decode step has 3"));
}

#[test]
fn a_step_names_the_first_kernel_that_differs() {
    let mut files = common::contents();
    // The ring is written one position late.
    let wrong = common::REMEMBER
        .replace("v12 = sload32 v11+4", "v300 = iconst.i64 1\n    v301 = sload32 v11+4\n    v12 = iadd v301, v300");
    files.insert("kernels/remember.clif".into(), wrong.into_bytes());
    let world = World::new(&common::seal(common::manifest(), files));
    let args = ["--prompt-ids", "3,1,5", "--step", "all"];
    let report = run(&world, &checkpoint(&world), &args).unwrap();
    assert_eq!(report["failed"], 1);
    let differs = |i: usize| report["launches"][i]["differs"].as_str();
    assert_eq!((differs(0), differs(2)), (None, None));
    assert!(differs(1).unwrap().contains("`ring`[0, 12]"), "{report}");
}

fn failure(world: &World, weights: &str, args: &[&str]) -> (u8, String) {
    let e = run(world, weights, args).unwrap_err();
    (e.exit_code(), e.to_string())
}

#[test]
fn wrong_input_has_one_clear_line() {
    let world = World::new(&common::bundle());
    let w = checkpoint(&world);
    for (args, code, text) in [
        (["--prompt-ids", "8"], 2, "vocabulary has 8"),
        (["--prompt-ids", ""], 2, "prompt 0 is empty"),
        (["--prompt-ids", "nowhere.json"], 3, "nowhere.json"),
    ] {
        let (got, message) = failure(&world, &w, &args);
        assert!(got == code && message.contains(text), "{args:?}: {got} {message}");
    }
    let many = ["--prompt-ids", "1", "--max-new-tokens", "65"];
    assert_eq!(failure(&world, &w, &many).0, 2);
    run(&world, &w, &["--prompt-ids", "1", "--max-new-tokens", "64"]).unwrap();
    assert_eq!(failure(&world, "nowhere", &["--prompt-ids", "1"]).0, 3);
    assert_eq!(failure(&world, "random:x", &["--prompt-ids", "1"]).0, 2);
    let device = failure(&world, &w, &["--prompt-ids", "1", "--device", "abacus"]);
    assert!(device.0 == 2 && device.1.contains("abacus"), "{device:?}");
}

#[test]
fn bundles_of_several_ranks_run_on_the_cpu_alone() {
    let mut m = common::manifest();
    m.model.ep = 8;
    let world = World::new(&common::seal(m, common::contents()));
    let args = ["--prompt-ids", "1", "--max-new-tokens", "1"];
    run(&world, &checkpoint(&world), &args).unwrap();
    let (code, message) = failure(&world, &checkpoint(&world), &[&args[..], &["--device", "cuda:0"]].concat());
    assert!(code == 2 && message.contains("needs 8 ranks"), "{message}");
}

fn verify(bundle: &Path) -> Result<(Outcome, String), CommandError> {
    let args = VerifyCli::try_parse_from(["verify", bundle.to_str().unwrap()]).unwrap().args;
    collect(|io| commands::verify(&args, io))
}

fn with_code(file: &str, from: &str, to: &str) -> World {
    let mut files = common::contents();
    let text = String::from_utf8(files[file].clone()).unwrap();
    assert!(text.contains(from));
    files.insert(file.into(), text.replace(from, to).into_bytes());
    World::new(&common::seal(common::manifest(), files))
}

#[test]
fn verify_agrees_on_good_kernels() {
    let world = World::new(&common::bundle());
    let (outcome, out) = verify(&world.path("bundle")).unwrap();
    assert_eq!(outcome, Outcome::Done, "{out}");
    assert!(out.contains("3 kernels agree, 0 differ, 0 were left out"), "{out}");
}

#[test]
fn verify_finds_wrong_kernels() {
    for (file, from, to) in [
        ("kernels/embed.clif", "v103 = iconst.i64 1", "v103 = iconst.i64 2"),
        ("kernels/remember.clif", "iconst.i64 10", "iconst.i64 9"),
        ("kernels/logits.clif", "v23 = iconst.i64 4", "v23 = iconst.i64 3"),
    ] {
        let (outcome, out) = verify(&with_code(file, from, to).path("bundle")).unwrap();
        assert_eq!(outcome, Outcome::Failed, "{out}");
        assert!(out.contains("FAIL") && out.contains("1 differ"), "{out}");
    }
}

#[test]
fn code_outside_the_convention_is_refused() {
    for (file, from, to, text) in [
        ("kernels/logits.clif", "%dsc_dense", "%system", "not lent"),
        ("kernels/logits.clif", "sig0 = (i64, ", "sig0 = (", "another signature"),
        ("kernels/embed.clif", "%k_embed", "%other", "no function"),
        ("kernels/embed.clif", "%k_embed(i64, ", "%k_embed(i32, ", "kernel `embed`"),
        ("kernels/embed.clif", "return", "retrun", "kernel `embed`"),
    ] {
        let e = verify(&with_code(file, from, to).path("bundle")).unwrap_err();
        assert!(e.exit_code() == 2 && e.to_string().contains(text), "{e}");
    }
}

#[test]
fn inspect_shows_the_bundle() {
    let world = World::new(&common::bundle());
    for json in [false, true] {
        let args = commands::InspectArgs { bundle: world.path("bundle"), json };
        let (outcome, out) = collect(|io| commands::inspect(&args, io)).unwrap();
        assert_eq!(outcome, Outcome::Done);
        assert!(out.contains("successor") && out.contains("remember"), "{out}");
        assert!(!json || serde_json::from_str::<serde_json::Value>(&out).is_ok());
    }
}
