//! What the tests across crates share: fixtures, an interpreter session, bundles in temporary folders.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failing helper is a failing test

use dsc_cli::compile::Model;
use dsc_codegen::bundle;
use dsc_ir::dtype::DType;
use dsc_ir::expr::Env;
use dsc_ir::graph::{Def, Graph, ValueId};
use dsc_ir::interp::{self, Array, Values};
use dsc_ir::manifest::{FORMAT, Manifest};
use dsc_ir::op::step;
use dsc_ir::schedule::Phase;
use dsc_ir::target::Target;
use dsc_passes::pipeline::Select;
use dsc_passes::remark::Remarks;
use dsc_passes::{Probed, place_quantisation};
use dsc_runtime::weights::WeightStore;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The project's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// A file of a fixture.
pub fn fixture(path: &str) -> PathBuf {
    root().join("tests/fixtures").join(path)
}

/// A target by name.
pub fn target(name: &str) -> Target {
    dsc_frontend::targets::find(name).unwrap()
}

/// A shipped spec with overrides, lowered.
pub fn model(spec: &str, sets: &[&str]) -> Model {
    let sets: Vec<String> = sets.iter().map(|s| s.to_string()).collect();
    let loaded = dsc_frontend::load(&root().join("specs").join(spec), &sets);
    let text = loaded.render(Default::default());
    Model::new(&loaded.checked.unwrap_or_else(|| panic!("{text}")).spec).unwrap()
}

/// A spec's text, lowered.
pub fn model_of(text: &str, sets: &[&str]) -> Model {
    let sets: Vec<String> = sets.iter().map(|s| s.to_string()).collect();
    let loaded = dsc_frontend::load_str("test.yaml", text, &sets);
    let findings = loaded.render(Default::default());
    Model::new(&loaded.checked.unwrap_or_else(|| panic!("{findings}")).spec).unwrap()
}

/// Builds the CPU bundle of a model.
pub fn build(model: &Model, select: &Select, out: &Path) {
    let sm90 = target("sm_90a");
    let schedules: Vec<_> =
        Phase::ALL.iter().map(|p| model.compile(*p, &sm90, select, None).unwrap().schedule).collect();
    let cpu = [target("cpu")];
    let input = bundle::Input {
        model: model.manifest_model(),
        spec_text: String::new(),
        schedules: &schedules,
        targets: &cpu,
        emit: Vec::new(),
        emit_manifest: false,
    };
    bundle::build(&input, out, None).unwrap();
}

/// Tensors of a safetensors file, floats and integers widened.
pub struct Tensors {
    data: Vec<u8>,
}

impl Tensors {
    /// Reads a file.
    pub fn open(path: &Path) -> Tensors {
        Tensors { data: std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())) }
    }

    fn view<R>(&self, name: &str, f: impl FnOnce(safetensors::tensor::TensorView<'_>) -> R) -> Option<R> {
        let all = safetensors::SafeTensors::deserialize(&self.data).unwrap();
        all.tensor(name).ok().map(f)
    }

    /// Shape.
    pub fn shape(&self, name: &str) -> Vec<usize> {
        self.view(name, |t| t.shape().to_vec()).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    /// Whether it is there.
    pub fn has(&self, name: &str) -> bool {
        self.view(name, |_| ()).is_some()
    }

    /// Values as f32.
    pub fn floats(&self, name: &str) -> Vec<f32> {
        let read = |t: safetensors::tensor::TensorView<'_>| {
            assert_eq!(t.dtype(), safetensors::Dtype::F32, "{name}");
            t.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
        };
        self.view(name, read).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    /// Values as i32, whatever the integer type.
    pub fn ints(&self, name: &str) -> Vec<i32> {
        use safetensors::Dtype as D;
        let read = |t: safetensors::tensor::TensorView<'_>| {
            let d = t.data();
            match t.dtype() {
                D::U8 => d.iter().map(|b| i32::from(*b)).collect(),
                D::I16 => d.chunks_exact(2).map(|b| i32::from(i16::from_le_bytes(b.try_into().unwrap()))).collect(),
                D::I32 => d.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect(),
                other => panic!("{name} is {other:?}"),
            }
        };
        self.view(name, read).unwrap_or_else(|| panic!("no tensor {name}"))
    }
}

/// A model under the interpreter, with weights and states.
pub struct Session {
    /// The graph it runs, operands of linears quantised as the numerics say.
    pub graph: Graph,
    /// Values of interest.
    pub probes: Vec<Probed>,
    values: Values,
    env: Env,
    lengths: Vec<usize>,
    /// Rows of each run that go through the last layers, where not all do.
    tail: Option<usize>,
}

impl Session {
    /// Opens a model on weights (a path or `random:SEED`), for some sequences of up to `context` tokens.
    pub fn open(model: &Model, weights: &str, tables: Option<&Path>, n_seqs: usize, context: usize) -> Session {
        Session::open_phase(model, Phase::Decode, weights, tables, n_seqs, context)
    }

    /// As [`Session::open`], with the graph of a phase.
    pub fn open_phase(
        model: &Model,
        phase: Phase,
        weights: &str,
        tables: Option<&Path>,
        n_seqs: usize,
        context: usize,
    ) -> Session {
        let mut probes = model.probes(phase);
        let mut remarks = Remarks::default();
        let graph =
            place_quantisation::run(&model.lowered(phase).graph, &mut probes, &model.numerics(), &mut remarks).unwrap();
        let schedule = model.compile(phase, &target("sm_90a"), &Select::NoFusion, None).unwrap().schedule;
        let manifest = Manifest {
            format: FORMAT,
            dsc_version: String::new(),
            llvm_version: None,
            model: model.manifest_model(),
            spec_hash: String::new(),
            targets: Default::default(),
            weights: bundle::weight_table(&schedule),
            states: bundle::state_table(&schedule),
            kernels: Vec::new(),
            schedules: Vec::new(),
            files: Default::default(),
        };
        let mut store = WeightStore::open(weights, tables, &manifest).unwrap();
        let env = Env { n_tokens: 1, n_seqs: n_seqs as u64, n_context: context as u64, n_out_rows: 1, n_tail_rows: 1 };
        let mut values = Values::new();
        let by_name: BTreeMap<_, _> = manifest.weights.iter().map(|w| ((w.name.clone(), w.layer), w)).collect();
        for v in graph.value_ids() {
            let value = graph.value(v);
            let shape: Vec<usize> = value.ty.shape.iter().map(|e| e.eval(&env) as usize).collect();
            match &value.def {
                Def::Weight(_) => {
                    let w = by_name[&(value.name.clone(), value.layer)];
                    let bytes = store.load(w).unwrap_or_else(|e| panic!("{}: {e}", w.tensor));
                    values.insert(v, Array::from_storage(value.ty.dtype, &shape, bytes.as_ref()).unwrap());
                }
                Def::State(_) => {
                    values.insert(v, Array::zeros(value.ty.dtype, &shape).unwrap());
                }
                Def::Input | Def::Node { .. } => {}
            }
        }
        let tail = model.tail().filter(|_| phase == Phase::Prefill).map(|n| n as usize);
        Session { graph, probes, values, env, lengths: vec![0; n_seqs], tail }
    }

    /// Goes on where another session of the model, with the graph of another phase, stands.
    pub fn take_states(&mut self, other: &Session) {
        self.lengths.clone_from(&other.lengths);
        for v in self.graph.value_ids() {
            let value = self.graph.value(v);
            if matches!(value.def, Def::State(_)) {
                self.values.insert(v, other.values[&other.find(&value.name, value.layer)].clone());
            }
        }
    }

    /// Runs a step in which the windows of positions from `floor` on start there.
    pub fn step_with_floor(&mut self, runs: &[(usize, &[i32])], floor: usize) {
        self.run(runs, Some(floor));
    }

    /// Runs a step: tokens for some sequences, at their current ends. All rows that reach the head give logits.
    pub fn step(&mut self, runs: &[(usize, &[i32])]) {
        self.run(runs, None);
    }

    fn run(&mut self, runs: &[(usize, &[i32])], floor: Option<usize>) {
        let mut table = Vec::new();
        let mut tail = Vec::new();
        let mut tail_rows = Vec::new();
        let mut row0 = 0;
        for (seq, ids) in runs {
            let start = self.lengths[*seq];
            for (i, id) in ids.iter().enumerate() {
                let mut row = [0i32; step::COLUMNS as usize];
                row[step::ID as usize] = *id;
                row[step::POS as usize] = (start + i) as i32;
                row[step::SEQ as usize] = *seq as i32;
                row[step::START as usize] = start as i32;
                row[step::ROW0 as usize] = row0;
                row[step::END as usize] = (start + ids.len()) as i32;
                if let Some(floor) = floor.filter(|f| start + i >= *f) {
                    row[step::FLOOR as usize] = floor as i32;
                }
                table.extend(row);
                let first = ids.len() - self.tail.unwrap_or(ids.len()).min(ids.len());
                if i >= first {
                    row[step::ROW0 as usize] = (tail_rows.len() - (i - first)) as i32;
                    row[step::START as usize] = (start + first) as i32;
                    row[step::FLOOR as usize] = (start + first) as i32;
                    tail.extend(row);
                    tail_rows.push(row0 + i as i32);
                }
            }
            row0 += ids.len() as i32;
            self.lengths[*seq] += ids.len();
        }
        let n = row0 as usize;
        self.env.n_tokens = n as u64;
        let out = if self.tail.is_some() { tail_rows.len() } else { n };
        self.env.n_out_rows = out as u64;
        self.env.n_tail_rows = tail_rows.len() as u64;
        for v in self.graph.value_ids() {
            if self.graph.value(v).def != Def::Input {
                continue;
            }
            let array = match self.graph.value(v).name.as_str() {
                "step" => Array::i32(&[n, step::COLUMNS as usize], table.clone()),
                "tail_step" => Array::i32(&[tail_rows.len(), step::COLUMNS as usize], tail.clone()),
                "tail_rows" => Array::i32(&[tail_rows.len()], tail_rows.clone()),
                _ => Array::i32(&[out], (0..out as i32).collect()),
            };
            self.values.insert(v, array);
        }
        interp::run(&self.graph, &self.env, &mut self.values).unwrap_or_else(|e| panic!("{e}"));
    }

    /// A value after a step.
    pub fn array(&self, v: ValueId) -> &Array {
        &self.values[&v]
    }

    /// Float values of a named value of a layer: the last of that name.
    pub fn floats(&self, name: &str, layer: Option<u32>) -> Vec<f32> {
        let v = self.find(name, layer);
        self.values[&v].to_floats().unwrap()
    }

    fn find(&self, name: &str, layer: Option<u32>) -> ValueId {
        let is = |v: &ValueId| self.graph.value(*v).name == name && self.graph.value(*v).layer == layer;
        self.graph.value_ids().filter(is).last().unwrap_or_else(|| panic!("no value {name} of layer {layer:?}"))
    }

    /// A probe: of the layer, or of the model.
    pub fn probe_ints(&self, name: &str, layer: Option<u32>) -> Vec<i32> {
        let p = self.probes.iter().find(|p| p.name == name && p.layer == layer).unwrap();
        self.values[&p.value].ints().unwrap().to_vec()
    }

    /// Layers that have a probe, ascending.
    pub fn probed_layers(&self, name: &str) -> Vec<u32> {
        self.probes.iter().filter(|p| p.name == name).filter_map(|p| p.layer).collect()
    }

    /// Logits of the step's rows.
    pub fn logits(&self) -> Vec<f32> {
        self.floats("logits", None)
    }
}

/// Largest absolute difference.
pub fn max_diff(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "lengths differ");
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, |m, d| if d.is_nan() { f32::INFINITY } else { m.max(d) })
}

/// Index of the largest value, the lowest on ties.
pub fn argmax(x: &[f32]) -> i32 {
    let mut best = 0;
    for (i, v) in x.iter().enumerate() {
        if *v > x[best] {
            best = i;
        }
    }
    best as i32
}

/// Whether a dtype is stored packed.
pub fn is_packed(dtype: DType) -> bool {
    matches!(dtype, DType::Packed(_))
}
