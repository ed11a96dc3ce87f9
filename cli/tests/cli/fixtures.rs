//! From a published configuration to a dump, as an outside script would do it: import, build, run, and compare the
//! dump with the fixture's numbers by name and shape. Tolerances: `tests/fixtures/*/README.md`.

use super::{dsc, good, json, repo};
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A tensor of any type, as f64, which holds all of theirs.
struct Tensor {
    shape: Vec<usize>,
    is_float: bool,
    values: Vec<f64>,
}

fn tensors(path: &Path) -> BTreeMap<String, Tensor> {
    let bytes = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let read = |view: &safetensors::tensor::TensorView<'_>| {
        let data = view.data();
        let values = match view.dtype() {
            Dtype::F32 => words(data, |b| f64::from(f32::from_le_bytes(b))),
            Dtype::I32 => words(data, |b| f64::from(i32::from_le_bytes(b))),
            Dtype::I16 => words(data, |b| f64::from(i16::from_le_bytes(b))),
            Dtype::U8 => data.iter().map(|b| f64::from(*b)).collect(),
            other => panic!("{other:?}"),
        };
        Tensor { shape: view.shape().to_vec(), is_float: view.dtype() == Dtype::F32, values }
    };
    file.tensors().iter().map(|(name, view)| (name.clone(), read(view))).collect()
}

fn words<const N: usize>(data: &[u8], read: impl Fn([u8; N]) -> f64) -> Vec<f64> {
    data.chunks_exact(N).map(|b| read(b.try_into().unwrap())).collect()
}

impl Tensor {
    /// Rows of the last axis.
    fn rows(&self) -> Vec<&[f64]> {
        self.values.chunks(*self.shape.last().unwrap()).collect()
    }

    fn dimension(&self, axis: usize) -> usize {
        self.shape[axis]
    }
}

/// A fixture, and how it is imported, built and run.
struct Case<'a> {
    fixture: &'a str,
    sets: &'a [&'a str],
    /// What the expected tensors' names start with.
    prefix: &'a str,
}

struct Compared {
    dump: BTreeMap<String, Tensor>,
    expected: BTreeMap<String, Tensor>,
    prefix: String,
}

fn run(case: &Case<'_>) -> Compared {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let fixture = |name: &str| repo(&format!("tests/fixtures/{}/{name}", case.fixture));
    good(&["import", &fixture("config.json"), "-o", &at("S.yaml")]);
    let (spec, bundle, dumped) = (at("S.yaml"), at("B"), at("OUT.safetensors"));
    let mut build = vec!["build", &spec, "-o", &bundle, "--target", "cpu"];
    build.extend(case.sets.iter().flat_map(|set| ["--set", set]));
    good(&build);
    let (weights, prompts, tables) =
        (fixture("model.safetensors"), fixture("inputs.json"), fixture("engram_tables.json"));
    let mut run = vec!["run", &bundle, "--weights", &weights, "--prompt-ids", &prompts, "--max-new-tokens", "16"];
    run.extend(["--dump", &dumped]);
    if Path::new(&tables).exists() {
        run.extend(["--engram-tables", &tables]);
    }
    let document = json(&run);
    let dump = tensors(Path::new(&dumped));
    for (i, prompt) in document["prompts"].as_array().unwrap().iter().enumerate() {
        let ids: Vec<f64> = prompt["generated_ids"].as_array().unwrap().iter().map(|id| id.as_f64().unwrap()).collect();
        assert_eq!(ids, dump[&format!("p{i}.decode_tokens")].values, "prompt {i}");
        assert_eq!(prompt["prompt_tokens"], dump[&format!("p{i}.logits")].dimension(0), "prompt {i}");
    }
    let expected = tensors(Path::new(&fixture("expected.safetensors")));
    Compared { dump, expected, prefix: case.prefix.into() }
}

impl Compared {
    fn expected(&self, name: &str) -> Option<&Tensor> {
        self.expected.get(&format!("{}{name}", self.prefix))
    }

    /// Largest difference of each expected row of logits of a prompt, with its position.
    fn logits(&self, i: usize) -> Vec<(usize, f64)> {
        let (dump, expected) = (&self.dump[&format!("p{i}.logits")], self.expected(&format!("p{i}.logits")).unwrap());
        assert!(dump.is_float);
        assert_eq!((dump.shape.len(), dump.dimension(1)), (2, expected.dimension(1)), "prompt {i}");
        let n = dump.dimension(0);
        let positions: Vec<usize> = match self.expected(&format!("p{i}.logits_positions")) {
            Some(given) => given.values.iter().map(|p| *p as usize).collect(),
            // All of them, or the last where the file has no more.
            None => (n - expected.dimension(0)..n).collect(),
        };
        let (found, wanted) = (dump.rows(), expected.rows());
        assert_eq!(positions.len(), wanted.len(), "prompt {i}");
        positions.iter().zip(wanted).map(|(p, want)| (*p, difference(found[*p], want))).collect()
    }

    /// A tensor of the dump has the expected shape; `None` where nothing is expected.
    fn pair(&self, name: &str) -> Option<(&Tensor, &Tensor)> {
        let expected = self.expected(name)?;
        let dump = self.dump.get(name).unwrap_or_else(|| panic!("the dump lacks {name}"));
        assert_eq!(dump.shape, expected.shape, "{name}");
        assert_eq!(dump.is_float, expected.is_float, "{name}");
        Some((dump, expected))
    }

    fn tokens_are_equal(&self, i: usize) {
        let (found, wanted) = self.pair(&format!("p{i}.decode_tokens")).unwrap();
        assert_eq!(found.values, wanted.values, "prompt {i}");
    }

    /// Rows of selections are equal wherever the choice was clear: its gap exceeds 1e-5.
    fn selections_are_equal(&self, name: &str, gap: Option<&str>) {
        let (found, wanted) = self.pair(name).unwrap();
        let gaps = gap.map(|gap| &self.expected[gap].values);
        for (row, (a, b)) in found.rows().iter().zip(wanted.rows()).enumerate() {
            assert!(*a == b || gaps.is_some_and(|gaps| gaps[row] <= 1e-5), "{name}, row {row}: {a:?} {b:?}");
        }
    }
}

fn difference(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |m, d| if d.is_nan() { f64::INFINITY } else { m.max(d) })
}

const V41: &str = "v41-tiny-a";

#[test]
fn v41_plain() {
    let sets = ["numerics.activations=f32", "numerics.linear_inputs=exact", "numerics.caches=exact"];
    let ran = run(&Case { fixture: V41, sets: &sets, prefix: "plain." });
    for i in 0..3 {
        for (position, difference) in ran.logits(i) {
            assert!(difference <= 2e-4, "prompt {i}, position {position}: {difference}");
        }
        ran.tokens_are_equal(i);
    }
}

#[test]
fn v41_primary() {
    let sets = ["numerics.activations=f32", "numerics.linear_inputs=exact", "numerics.caches=packed"];
    let ran = run(&Case { fixture: V41, sets: &sets, prefix: "" });
    let (mut close, mut stable) = (0, 0);
    for i in 0..3 {
        let deviation = &ran.expected[&format!("p{i}.deviation")].values;
        for (_, difference) in ran.logits(i).into_iter().filter(|(position, _)| deviation[*position] < 1e-3) {
            stable += 1;
            close += usize::from(difference <= 2e-3);
        }
        ran.tokens_are_equal(i);
        ran.selections_are_equal(&format!("p{i}.topk"), Some(&format!("p{i}.topk_gap")));
        ran.selections_are_equal(&format!("p{i}.moe_experts"), Some(&format!("p{i}.moe_gap")));
        ran.selections_are_equal(&format!("p{i}.engram_rows"), None);
        ran.pair(&format!("p{i}.decode_logits")).unwrap();
    }
    assert!(stable > 0 && close * 10 >= stable * 8, "{close} of {stable} stable rows within 2e-3");
}

#[test]
fn v4_from_the_keys_of_the_library() {
    let ran = run(&Case { fixture: "v4-tiny", sets: &[], prefix: "" });
    for i in 0..3 {
        for (position, difference) in ran.logits(i) {
            assert!(difference <= 2e-4, "prompt {i}, position {position}: {difference}");
        }
        ran.tokens_are_equal(i);
        let (found, wanted) = ran.pair(&format!("p{i}.decode_logits")).unwrap();
        assert!(difference(&found.values, &wanted.values) <= 2e-4, "prompt {i}");
        // A plane for each CSA layer and each layer with experts; no n-gram memory, so no rows of one.
        let n = ran.dump[&format!("p{i}.logits")].dimension(0);
        assert_eq!(ran.dump[&format!("p{i}.topk")].shape, [2, n, 10]);
        assert_eq!(ran.dump[&format!("p{i}.moe_experts")].shape, [6, n, 2]);
        assert!(!ran.dump.contains_key(&format!("p{i}.engram_rows")));
    }
}

#[test]
fn imports_say_what_they_leave_out() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("S.yaml").display().to_string();
    let ran = dsc(&["import", &repo("tests/fixtures/v41-tiny-a/config.json"), "-o", &out]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    for left_out in ["DSpark", "vision", "`architectures`"] {
        assert!(ran.stderr.contains(left_out), "{left_out}: {}", ran.stderr);
    }
    good(&["check", &out]);
}
