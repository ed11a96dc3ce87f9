//! What a hostile or careless user may do: every one of it ends with an exit code and a clear line, and nothing that
//! was there before is lost.

use super::{dsc, good, json, repo};
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

const TINY: &str = "specs/tiny-v4.yaml";
const WEIGHTS: &str = "tests/fixtures/v4-tiny/model.safetensors";

/// A command fails with this code, and its first line says why.
fn refused(args: &[&str], code: i32, says: &str) {
    let ran = dsc(args);
    let first = ran.stderr.lines().next().unwrap_or_default();
    assert_eq!(ran.code, code, "{args:?}\n{}", ran.stderr);
    assert!(first.starts_with("error") && first.contains(says), "{args:?} should say `{says}`:\n{}", ran.stderr);
    assert!(!ran.stderr.contains("defect"), "{args:?}\n{}", ran.stderr);
}

/// A folder with the bundle `B` of a tiny model.
fn with_bundle() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("B").display().to_string();
    good(&["build", &repo(TINY), "-o", &bundle]);
    (folder, bundle)
}

#[test]
fn prompts_that_are_none() {
    let (folder, bundle) = with_bundle();
    let run = |prompts: &str| {
        let prompts = format!("--prompt-ids={prompts}");
        let args = ["run", &bundle, "--weights", "random:1", "--max-new-tokens", "1", &prompts];
        args.map(str::to_owned)
    };
    for (prompts, code, says) in [
        ("", 2, "prompt 0 is empty"),
        ("256", 2, "token id 256, the vocabulary has 256"),
        ("-1", 2, "token id -1"),
        ("1,,2", 2, "neither token ids such as 1,2,3 nor a file"),
        ("1,2,", 2, "neither token ids"),
        ("1.5", 2, "neither token ids"),
        ("1;2", 2, "neither token ids"),
        ("99999999999999999999", 2, "neither token ids"),
        ("none.json", 3, "cannot read the prompts `none.json`"),
    ] {
        let args = run(prompts);
        refused(&args.iter().map(String::as_str).collect::<Vec<_>>(), code, says);
    }
    let file = folder.path().join("p.json").display().to_string();
    let deep = "[".repeat(100_000);
    for (text, says) in [
        ("", "neither a list of lists"),
        ("{}", "neither a list of lists"),
        ("[]", "there is no prompt"),
        ("[[]]", "prompt 0 is empty"),
        ("[[1], [-1]]", "prompt 1 has token id -1"),
        ("[[1.5]]", "neither a list of lists"),
        (&deep, "neither a list of lists"),
    ] {
        fs::write(&file, text).unwrap();
        let args = run(&file);
        refused(&args.iter().map(String::as_str).collect::<Vec<_>>(), 2, says);
    }
    let folder = folder.path().display().to_string();
    let args = run(&folder);
    refused(&args.iter().map(String::as_str).collect::<Vec<_>>(), 3, "cannot read the prompts");
}

#[test]
fn odd_arguments_of_run() {
    let (folder, bundle) = with_bundle();
    let here = folder.path().display().to_string();
    let run = ["run", &bundle, "--weights", "random:1", "--prompt-ids", "1"];
    for (more, code, says) in [
        (["--max-new-tokens", "99999999999"], 2, "needs 99999999999 positions, the model has 4096"),
        (["--max-new-tokens", "18446744073709551615"], 2, "positions"),
        (["--max-new-tokens", "1e3"], 2, "--max-new-tokens"),
        (["--chunk", "0"], 2, "--chunk"),
        (["--threads", "0"], 2, "--threads"),
        (["--device", "gpu"], 2, "there is no device `gpu`"),
        (["--dump", "/nonexistent/x"], 3, "cannot write the dump `/nonexistent/x`"),
        (["--dump", &here], 3, "cannot write the dump"),
    ] {
        refused(&[run.as_slice(), &more].concat(), code, says);
    }
    let none = json(&[run.as_slice(), &["--max-new-tokens", "0"]].concat());
    assert_eq!(none["prompts"][0]["generated_ids"], serde_json::json!([]));
    for (weights, code, says) in [
        ("random:", 2, "needs a seed"),
        ("random:-1", 2, "needs a seed"),
        ("none.safetensors", 3, "none.safetensors"),
        (&here, 3, "holds neither `model.safetensors`"),
    ] {
        refused(&["run", &bundle, "--weights", weights, "--prompt-ids", "1"], code, says);
    }
}

#[cfg(unix)]
#[test]
fn a_dump_does_not_replace_what_is_no_file() {
    use std::os::unix::fs::FileTypeExt;
    let (folder, bundle) = with_bundle();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = pipe.clone();
    let reader = std::thread::spawn(move || fs::read(reader).unwrap());
    let path = pipe.display().to_string();
    good(&["run", &bundle, "--weights", "random:1", "--prompt-ids", "1", "--max-new-tokens", "1", "--dump", &path]);
    assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo(), "the pipe was replaced");
    let dump = reader.join().unwrap();
    assert!(SafeTensors::deserialize(&dump).unwrap().names().contains(&"p0.logits"));
}

/// Every kind of file of a bundle, cut, emptied, flipped in one bit, removed or made a folder.
#[test]
fn damaged_files_are_named() {
    let (folder, bundle) = with_bundle();
    let all = fs::read_dir(Path::new(&bundle).join("kernels")).unwrap();
    let mut kinds: BTreeMap<String, String> = BTreeMap::new();
    for name in all.map(|entry| entry.unwrap().file_name().into_string().unwrap()) {
        kinds.entry(name.rsplit('.').next().unwrap().into()).or_insert(format!("kernels/{name}"));
    }
    let files = kinds.into_values().chain(["spec.yaml".into(), "manifest.json".into(), "include/tiny_v4.h".into()]);
    let damage: [fn(&Path, &[u8]); 5] = [
        |path, bytes| fs::write(path, &bytes[..bytes.len() / 2]).unwrap(),
        |path, _| fs::write(path, "").unwrap(),
        |path, bytes| {
            let mut bytes = bytes.to_vec();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x40;
            fs::write(path, bytes).unwrap();
        },
        |path, _| fs::remove_file(path).unwrap(),
        |path, _| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        },
    ];
    for file in files {
        let path = Path::new(&bundle).join(&file);
        let whole = fs::read(&path).unwrap();
        for spoil in damage {
            spoil(&path, &whole);
            refused(&["run", &bundle, "--weights", "random:1", "--prompt-ids", "1"], 2, &file);
            let _ = fs::remove_dir(&path);
            fs::write(&path, &whole).unwrap();
        }
    }
    fs::write(Path::new(&bundle).join("extra"), "").unwrap();
    refused(&["inspect", &bundle], 2, "`extra`");

    let archive = folder.path().join("A.tar.zst").display().to_string();
    good(&["build", &repo(TINY), "-o", &archive]);
    let whole = fs::read(&archive).unwrap();
    for length in [0, 10, whole.len() / 2, whole.len() - 3] {
        fs::write(&archive, &whole[..length]).unwrap();
        refused(&["inspect", &archive], 2, "A.tar.zst");
    }
}

#[test]
fn checkpoints_that_do_not_fit() {
    let (folder, bundle) = with_bundle();
    let whole = fs::read(repo(WEIGHTS)).unwrap();
    let length = usize::try_from(u64::from_le_bytes(whole[..8].try_into().unwrap())).unwrap();
    let (header, data) = (String::from_utf8(whole[8..8 + length].to_vec()).unwrap(), &whole[8 + length..]);
    let name = "model.layers.0.attn.wq_a.weight";
    let entry: serde_json::Value = serde_json::from_str::<serde_json::Value>(&header).unwrap()[name].clone();
    let path = folder.path().join("m.safetensors").display().to_string();
    let changed = |key: &str, value: serde_json::Value| {
        let mut all: serde_json::Value = serde_json::from_str(&header).unwrap();
        let mut changed = entry.clone();
        changed[key] = value;
        all[name] = changed;
        let text = serde_json::to_vec(&all).unwrap();
        [&(text.len() as u64).to_le_bytes()[..], &text, data].concat()
    };
    let renamed = header.replace(&format!("\"{name}\""), "\"another\"");
    let renamed = [&(renamed.len() as u64).to_le_bytes()[..], renamed.as_bytes(), data].concat();
    let begin = entry["data_offsets"][0].clone();
    for (bytes, says) in [
        (changed("shape", serde_json::json!([64, 48])), "has shape [64, 48], the model needs [48, 64]"),
        (changed("shape", serde_json::json!([3072])), "has shape [3072]"),
        (changed("shape", serde_json::json!([1u64 << 40, 1u64 << 40])), "m.safetensors"),
        (changed("dtype", "I32".into()), "is I32, the model needs F32 or BF16"),
        (changed("data_offsets", serde_json::json!([begin, 1u64 << 50])), "m.safetensors"),
        (renamed, "has no tensor `layers.0.attn.wq_a.weight`"),
        (whole[..whole.len() / 2].to_vec(), "m.safetensors"),
        (whole[..100].to_vec(), "m.safetensors"),
        (Vec::new(), "m.safetensors"),
        (vec![0xFF; 64], "m.safetensors"),
    ] {
        fs::write(&path, bytes).unwrap();
        refused(&["run", &bundle, "--weights", &path, "--prompt-ids", "1"], 2, says);
    }
}

#[test]
fn outputs_that_would_destroy_something() {
    let (folder, bundle) = with_bundle();
    let at = |name: &str| folder.path().join(name).display().to_string();
    fs::write(at("precious"), "precious").unwrap();
    fs::write(at("precious.tar.zst"), "precious").unwrap();
    fs::create_dir(at("folder.tar.zst")).unwrap();
    let inside = format!("{bundle}/manifest.json");
    for (out, says) in [
        (at("precious"), "it is no folder"),
        (at("precious.tar.zst"), "it is no zstd archive"),
        (at("folder.tar.zst"), "it is a folder, not an archive"),
        (at("precious/below"), "it is no folder"),
        (at("."), "it has no manifest.json"),
        (inside, "it is no folder"),
        ("/".into(), "it has no manifest.json"),
        ("/dev/null".into(), "it is no folder"),
    ] {
        refused(&["build", &repo(TINY), "-o", &out], 2, says);
    }
    for name in ["precious", "precious.tar.zst"] {
        assert_eq!(fs::read_to_string(at(name)).unwrap(), "precious");
    }
    // Roundabout names of a bundle replace it, and leave nothing behind.
    for out in [format!("{bundle}/../B"), format!("{bundle}/."), bundle.clone()] {
        good(&["build", &repo(TINY), "-o", &out]);
        good(&["inspect", &bundle]);
    }
    let hidden = fs::read_dir(folder.path()).unwrap().filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_string_lossy().starts_with('.')
    });
    assert_eq!(hidden.count(), 0);
    refused(&["build", &repo(TINY), "-o", "/proc/none/x"], 3, "cannot write /proc/none/x");
}

#[test]
fn odd_overrides_and_specs() {
    let tiny = repo(TINY);
    let long = format!("name={}", "a".repeat(100_000));
    for (set, says) in [
        ("", "KEY=VALUE"),
        ("=", "not a dotted key"),
        ("vocab_size=", "has no value"),
        ("vocab_size=-1", "outside 1 to 1073741824"),
        ("vocab_size=99999999999999999999", "outside 1 to 1073741824"),
        ("vocab_size={", "not valid YAML"),
        ("vocab_size=*a", "not valid YAML"),
        ("name=../../x", "cannot be `../../x`"),
        ("näme=1", "no key `näme`"),
        ("attention.head_dim=head_dim", "depends on itself"),
        ("attention.head_dim=vocab_size*vocab_size*vocab_size", "outside 2 to 4096"),
        ("num_hidden_layers=100000", "outside 1 to 1024"),
        ("base=x", "cannot be overridden"),
        (&long, "cannot be `aaa"),
    ] {
        refused(&["check", &tiny, &format!("--set={set}")], 2, says);
    }
    assert!(dsc(&["check", &tiny, "--set", &long]).stderr.len() < 5000, "a long value floods the terminal");

    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (one, other, words) = (at("one.yaml"), at("other.yaml"), at("words.yaml"));
    fs::write(&one, "base: other.yaml\n").unwrap();
    fs::write(&other, "base: one.yaml\n").unwrap();
    fs::write(&words, "ключ: 1\n名前: 2\n\"\\u202e\": 3\n").unwrap();
    for command in [["check", &one].as_slice(), &["explain", &one], &["build", &one, "-o", &at("never")]] {
        refused(command, 2, "is based on this spec");
    }
    refused(&["check", &words], 2, "unknown key `ключ`");
    assert!(!dsc(&["check", &words]).stderr.contains('\u{202e}'));
    refused(&["check", "/dev/zero"], 2, "more than the limit");
    refused(&["import", "/dev/zero"], 2, "more than the limit");
    for target in ["", "SM_90A", "sm_90", "all"] {
        refused(&["explain", &tiny, "--target", target], 2, "unknown target");
    }
}

/// Nobody reads on: `dsc explain … | head -1`.
#[test]
fn a_reader_that_leaves() {
    let flagship = repo("specs/deepseek-v4.1-flash.yaml");
    for args in [["explain", &flagship].as_slice(), &["explain", &flagship, "--json"], &["schema"], &["--help"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dsc"));
        let mut child = command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut out = child.stdout.take().unwrap();
        out.read_exact(&mut [0; 8]).unwrap();
        drop(out);
        let ran = child.wait_with_output().unwrap();
        let code = ran.status.code();
        assert!(matches!(code, Some(0 | 1)), "{args:?} ended with {code:?}");
        assert_eq!(String::from_utf8_lossy(&ran.stderr), "", "{args:?}");
    }
}

#[cfg(unix)]
#[test]
fn closed_streams() {
    let program = env!("CARGO_BIN_EXE_dsc");
    let tiny = repo(TINY);
    for (streams, code) in
        [("<&-", 0), (">&-", 0), ("2>&-", 0), (">&- 2>&- <&-", 0), (">/dev/full", 3), ("2>/dev/full", 0)]
    {
        let script = format!("'{program}' explain '{tiny}' {streams}");
        let ran = Command::new("sh").args(["-c", &script]).output().unwrap();
        let stderr = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(code), "{streams}: {stderr}");
        assert!(stderr.lines().count() <= 1 && !stderr.contains("stopped"), "{streams}: {stderr}");
    }
}
