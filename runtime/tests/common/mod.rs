//! A tiny model in a bundle written by hand: next token = id + 1, through real CLIF kernels.
#![allow(dead_code)] // each test file uses its part
#![allow(clippy::unwrap_used)] // helpers of tests

use dsc_ir::dtype::{DType, WeightFormat};
use dsc_ir::expr::{Expr, Sym};
use dsc_ir::graph::{Def, Graph, Shard, StateKind, TensorType, ValueId, WeightSource};
use dsc_ir::manifest::{
    BufferEntry, CpuCode, FORMAT, FileEntry, KernelEntry, LaunchEntry, Manifest, Model, ParamEntry, ProbeEntry,
    ScheduleEntry, State, TargetEntry, Weight,
};
use dsc_ir::op;
use dsc_ir::schedule::{Arg, Phase};
use dsc_ir::text;
use indexmap::IndexMap;
use std::collections::BTreeMap;
use std::path::Path;

pub const VOCAB: u64 = 8;
const D: u64 = 4;
const SLOTS: u64 = 10;

pub const EMBED: &str = "
function %k_embed(i64, i64, i64, i64, i64) system_v {
block0(v0: i64, v1: i64, v2: i64, v3: i64, v4: i64):
    v5 = load.i64 v0
    v6 = load.i64 v0+8
    v7 = load.i64 v0+16
    jump block1(v2)
block1(v8: i64):
    v9 = icmp sge v8, v3
    brif v9, block3, block2
block2:
    v100 = iconst.i64 5
    v10 = ishl v8, v100
    v11 = iadd v5, v10
    v12 = load.i32 v11
    v13 = sextend.i64 v12
    v101 = iconst.i64 4
    v14 = ishl v13, v101
    v15 = iadd v6, v14
    v16 = load.f32x4 v15
    v102 = iconst.i64 4
    v17 = ishl v8, v102
    v18 = iadd v7, v17
    store v16, v18
    v103 = iconst.i64 1
    v19 = iadd v8, v103
    jump block1(v19)
block3:
    return
}
";

pub const REMEMBER: &str = "
function %k_remember(i64, i64, i64, i64, i64) system_v {
block0(v0: i64, v1: i64, v2: i64, v3: i64, v4: i64):
    v5 = load.i64 v0
    v6 = load.i64 v0+8
    v7 = load.i64 v0+16
    jump block1(v2)
block1(v8: i64):
    v9 = icmp sge v8, v3
    brif v9, block5, block2
block2:
    v100 = iconst.i64 5
    v10 = ishl v8, v100
    v11 = iadd v6, v10
    v12 = sload32 v11+4
    v13 = sload32 v11+8
    v14 = sload32 v11+20
    v101 = iconst.i64 -10
    v15 = iadd v14, v101
    v16 = icmp sge v12, v15
    brif v16, block3, block4
block3:
    v17 = iconst.i64 10
    v18 = urem v12, v17
    v19 = imul v13, v17
    v20 = iadd v18, v19
    v102 = iconst.i64 4
    v21 = ishl v20, v102
    v22 = iadd v7, v21
    v103 = iconst.i64 4
    v23 = ishl v8, v103
    v24 = iadd v5, v23
    v25 = load.f32x4 v24
    store v25, v22
    jump block4
block4:
    v104 = iconst.i64 1
    v26 = iadd v8, v104
    jump block1(v26)
block5:
    return
}
";

pub const LOGITS: &str = "
function %k_logits(i64, i64, i64, i64, i64) system_v {
    sig0 = (i64, i64, i64, i64, i64, i64, i64, i64) system_v
    fn0 = %dsc_dense sig0
block0(v0: i64, v1: i64, v2: i64, v3: i64, v4: i64):
    v5 = load.i64 v0
    v6 = load.i64 v0+8
    v7 = load.i64 v0+16
    v8 = load.i64 v0+24
    jump block1(v2)
block1(v9: i64):
    v10 = icmp sge v9, v3
    brif v10, block3, block2
block2:
    v100 = iconst.i64 2
    v11 = ishl v9, v100
    v12 = iadd v6, v11
    v13 = sload32 v12
    v101 = iconst.i64 4
    v14 = ishl v13, v101
    v15 = iadd v5, v14
    v16 = load.f32x4 v15
    store v16, v4
    v102 = iconst.i64 5
    v17 = ishl v9, v102
    v18 = iadd v8, v17
    v19 = iconst.i64 32
    v20 = iconst.i64 16
    v21 = iconst.i64 1
    v22 = iconst.i64 8
    v23 = iconst.i64 4
    call fn0(v18, v19, v4, v20, v7, v21, v22, v23)
    v103 = iconst.i64 1
    v24 = iadd v9, v103
    jump block1(v24)
block3:
    return
}
";

fn ty(dtype: DType, shape: &[Expr]) -> TensorType {
    TensorType::new(dtype, shape.iter().cloned())
}

fn step_type() -> TensorType {
    ty(DType::I32, &[Expr::tokens(), op::step::COLUMNS.into()])
}

fn rows_type() -> TensorType {
    ty(DType::F32, &[Expr::tokens(), D.into()])
}

fn table_type() -> TensorType {
    ty(DType::Weight(WeightFormat::F32), &[VOCAB.into(), D.into()])
}

fn ring_type() -> TensorType {
    ty(DType::F32, &[Expr::Sym(Sym::Seqs), SLOTS.into(), D.into()])
}

fn weight_def(name: &str) -> Def {
    Def::Weight(WeightSource { tensor: name.into(), shard: Shard::None })
}

fn embed_graph() -> (Graph, Vec<(ValueId, &'static str)>) {
    let mut g = Graph::new("embed");
    let step = g.add_value("step", None, step_type(), Def::Input);
    let table = g.add_value("embed", None, table_type(), weight_def("embed"));
    let x = g.add(op::Embed {}, None, &[table, step], &[("x", DType::F32)]).unwrap()[0];
    g.results.push(x);
    (g, vec![(step, "input"), (table, "weight"), (x, "output")])
}

fn remember_graph() -> (Graph, Vec<(ValueId, &'static str)>) {
    let mut g = Graph::new("remember");
    let x = g.add_value("x", None, rows_type(), Def::Input);
    let step = g.add_value("step", None, step_type(), Def::Input);
    let ring = g.add_value("ring", None, ring_type(), Def::State(StateKind::Ring { keep: 2 }));
    g.add(op::RingWrite {}, None, &[ring, x, step], &[]).unwrap();
    (g, vec![(x, "input"), (step, "input"), (ring, "state_out")])
}

fn logits_graph() -> (Graph, Vec<(ValueId, &'static str)>) {
    let mut g = Graph::new("logits");
    let x = g.add_value("x", None, rows_type(), Def::Input);
    let rows = g.add_value("out_rows", None, ty(DType::I32, &[Expr::Sym(Sym::OutRows)]), Def::Input);
    let head = g.add_value("head", None, table_type(), weight_def("head"));
    let taken = g.add(op::TakeRows {}, None, &[x, rows], &[("taken", DType::F32)]).unwrap()[0];
    let linear = op::Linear { heads: vec![0] };
    let y = g.add(linear, None, &[taken, head], &[("logits", DType::F32)]).unwrap()[0];
    g.results.push(y);
    (g, vec![(x, "input"), (rows, "input"), (head, "weight"), (y, "output")])
}

fn kernel(g: &Graph, params: &[(ValueId, &str)], anchor: &str, rows: Expr) -> KernelEntry {
    let param = |(v, role): &(ValueId, &str)| ParamEntry {
        name: g.value(*v).name.clone(),
        role: role.to_string(),
        dtype: g.ty(*v).dtype,
        shape: g.ty(*v).shape.clone(),
    };
    KernelEntry {
        name: g.name.clone(),
        anchor: anchor.into(),
        ops: g.nodes.iter().map(|n| n.op.name().to_string()).collect(),
        rows,
        params: params.iter().map(param).collect(),
        flops: Expr::tokens(),
        bytes: Expr::tokens(),
        graph: format!("kernels/{}.dsir", g.name),
        cpu: Some(CpuCode {
            file: format!("kernels/{}.clif", g.name),
            symbol: format!("k_{}", g.name),
            scratch_bytes: 16,
            row_block: 2,
        }),
        gpu: IndexMap::new(),
    }
}

fn schedule(phase: Phase) -> ScheduleEntry {
    let buffer = |name: &str, t: TensorType, slot| BufferEntry {
        name: name.into(),
        layer: None,
        dtype: t.dtype,
        shape: t.shape,
        slot,
    };
    let launch = |kernel, args| LaunchEntry { kernel, args, layer: None };
    let input = |n: &str| Arg::Input(n.into());
    ScheduleEntry {
        phase,
        target: "cpu".into(),
        buffers: vec![
            buffer("x", rows_type(), 0),
            buffer("logits", ty(DType::F32, &[Expr::Sym(Sym::OutRows), VOCAB.into()]), 1),
        ],
        launches: vec![
            launch(0, vec![input("step"), Arg::Weight(0), Arg::Buffer(0)]),
            launch(1, vec![Arg::Buffer(0), input("step"), Arg::State(0)]),
            launch(2, vec![Arg::Buffer(0), input("out_rows"), Arg::Weight(1), Arg::Buffer(1)]),
        ],
        probes: vec![ProbeEntry { name: "logits".into(), layer: None, buffer: 1, after: 2 }],
    }
}

pub fn weight(name: &str, tensor: &str, layer: Option<u32>, dtype: DType, shape: &[u64]) -> Weight {
    Weight { name: name.into(), layer, tensor: tensor.into(), dtype, shape: shape.to_vec(), shard: "none".into() }
}

pub fn manifest() -> Manifest {
    let table = DType::Weight(WeightFormat::F32);
    let graphs = [embed_graph(), remember_graph(), logits_graph()];
    let kernels = [("gather", Expr::tokens()), ("row", Expr::tokens()), ("gemm", Expr::Sym(Sym::OutRows))];
    Manifest {
        format: FORMAT,
        dsc_version: "0.0.0".into(),
        llvm_version: None,
        model: Model {
            name: "successor".into(),
            vocab_size: VOCAB,
            num_hidden_layers: 0,
            max_position_embeddings: 64,
            tp: 1,
            ep: 1,
            prefill_tail: None,
            engram: None,
        },
        spec_hash: blake3::hash(b"spec").to_hex().to_string(),
        targets: IndexMap::from([(
            "cpu".to_string(),
            TargetEntry { exact_arch: false, ptx_isa: 0, min_driver: String::new() },
        )]),
        weights: vec![
            weight("embed", "embed", None, table, &[VOCAB, D]),
            weight("head", "head", None, table, &[VOCAB, D]),
        ],
        states: vec![State {
            name: "ring".into(),
            layer: None,
            keep: Some(2),
            ratio: None,
            dtype: DType::F32,
            shape: ring_type().shape,
        }],
        kernels: graphs.iter().zip(kernels).map(|((g, p), (anchor, rows))| kernel(g, p, anchor, rows)).collect(),
        schedules: Phase::ALL.into_iter().map(schedule).collect(),
        files: IndexMap::new(),
    }
}

pub type Files = BTreeMap<String, Vec<u8>>;

/// All files of the bundle but the manifest.
pub fn contents() -> Files {
    let graphs = [embed_graph().0, remember_graph().0, logits_graph().0];
    let code = [EMBED, REMEMBER, LOGITS];
    let mut files = Files::new();
    for (g, clif) in graphs.iter().zip(code) {
        files.insert(format!("kernels/{}.dsir", g.name), text::print(g).into_bytes());
        files.insert(format!("kernels/{}.clif", g.name), clif.as_bytes().to_vec());
    }
    files
}

/// Lists the files in the manifest and adds it to them.
pub fn seal(mut manifest: Manifest, mut files: Files) -> Files {
    for (name, content) in &files {
        let entry = FileEntry { bytes: content.len() as u64, blake3: blake3::hash(content).to_hex().to_string() };
        manifest.files.insert(name.clone(), entry);
    }
    let text = manifest.to_json().unwrap().into_bytes();
    files.insert("manifest.blake3".into(), format!("{}\n", blake3::hash(&text).to_hex()).into_bytes());
    files.insert("manifest.json".into(), text);
    files
}

pub fn bundle() -> Files {
    seal(manifest(), contents())
}

pub fn write_folder(dir: &Path, files: &Files) {
    for (name, content) in files {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
}

pub fn archive(files: &Files) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, content.as_slice()).unwrap();
    }
    zstd::encode_all(tar.into_inner().unwrap().as_slice(), 1).unwrap()
}

/// A checkpoint of one tensor each: name, dtype, shape, bytes.
pub type Tensors = Vec<(String, safetensors::Dtype, Vec<usize>, Vec<u8>)>;

pub fn f32_bytes(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub fn write_checkpoint(path: &Path, tensors: &Tensors) {
    let views: Vec<_> = tensors
        .iter()
        .map(|(n, d, s, b)| (n.clone(), safetensors::tensor::TensorView::new(*d, s.clone(), b).unwrap()))
        .collect();
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// Points on a circle; the head is turned by one, so that the successor has the largest logit.
pub fn successor_weights() -> Tensors {
    let angle = |i: i64| i as f32 * std::f32::consts::TAU / VOCAB as f32;
    let rows = |shift: i64| -> Vec<f32> {
        (0..VOCAB as i64).flat_map(|i| [angle(i + shift).cos(), angle(i + shift).sin(), 0.0, 0.0]).collect()
    };
    let shape = vec![VOCAB as usize, D as usize];
    vec![
        ("embed.weight".into(), safetensors::Dtype::F32, shape.clone(), f32_bytes(&rows(0))),
        ("head.weight".into(), safetensors::Dtype::F32, shape, f32_bytes(&rows(-1))),
        ("mtp.unused".into(), safetensors::Dtype::F32, vec![1], f32_bytes(&[1.0])),
    ]
}
