//! Checkpoints and packing: fixtures' tensors in kernel layouts, names, and everything that is refused.
#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use common::{Tensors, f32_bytes, weight};
use dsc_ir::dtype::{DType, RowFormat, WeightFormat};
use dsc_ir::manifest::{EngramInfo, Manifest, Weight};
use dsc_runtime::checkpoint::{Checkpoint, CheckpointError};
use dsc_runtime::weights::{EngramTables, WeightError, WeightStore};
use proptest::prelude::*;
use safetensors::Dtype;
use std::path::{Path, PathBuf};

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(path)
}

fn manifest(weights: Vec<Weight>) -> Manifest {
    Manifest { weights, ..common::manifest() }
}

fn load(checkpoint: &Path, w: &Weight) -> Result<Vec<u8>, WeightError> {
    let manifest = manifest(vec![w.clone()]);
    let mut store = WeightStore::open(checkpoint.to_str().unwrap(), None, &manifest)?;
    Ok(store.load(w)?.as_ref().to_vec())
}

fn data(c: &Checkpoint, name: &str) -> Vec<u8> {
    c.get(name).unwrap().data.to_vec()
}

#[test]
fn fixture_weights_are_packed() {
    let path = fixture("v41-tiny-a/model.safetensors");
    let c = Checkpoint::open(&path).unwrap();
    let fp8 = DType::Weight(WeightFormat::Fp8 { tile: 32 });
    let w = weight("attn.wq_b", "layers.2.attn.wq_b", Some(2), fp8, &[256, 64]);
    let parts = [data(&c, "layers.2.attn.wq_b.weight"), data(&c, "layers.2.attn.wq_b.scale")].concat();
    assert_eq!(load(&path, &w).unwrap(), parts);

    let fp4 = DType::Weight(WeightFormat::Fp4);
    let w = weight("ffn.experts.{e}.w2", "layers.2.ffn.experts.{e}.w2", Some(2), fp4, &[8, 64, 32]);
    let all = |part: &str| (0..8).flat_map(|e| data(&c, &format!("layers.2.ffn.experts.{e}.w2.{part}"))).collect();
    let parts: Vec<Vec<u8>> = vec![all("weight"), all("scale")];
    assert_eq!(load(&path, &w).unwrap(), parts.concat());

    let rows = DType::Packed(RowFormat::Fp8);
    let w = weight("engram.embed", "layers.1.engram.embed", Some(1), rows, &[434, 32]);
    let packed = load(&path, &w).unwrap();
    let (codes, scales) = (data(&c, "layers.1.engram.embed.weight"), data(&c, "layers.1.engram.embed.scale"));
    assert_eq!(packed.len(), 434 * 33);
    assert_eq!(packed[33 * 433..], [&codes[32 * 433..], &scales[433..]].concat());

    let w = weight("attn.kv_norm", "layers.2.attn.kv_norm", Some(2), DType::F32, &[64]);
    let widened: Vec<u8> =
        data(&c, "layers.2.attn.kv_norm.weight").chunks(2).flat_map(|b| [0, 0, b[0], b[1]]).collect();
    assert_eq!(load(&path, &w).unwrap(), widened);
}

#[test]
fn packed_formats_decode_as_the_format_fixture_says() {
    let path = fixture("formats/formats.safetensors");
    let c = Checkpoint::open(&path).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("w.safetensors");
    let pick = |from: &str, to: &str, dtype| {
        let t = c.get(from).unwrap();
        (to.to_string(), dtype, t.shape.to_vec(), t.data.to_vec())
    };
    let tensors = vec![
        pick("weight_fp8.code", "a.weight", Dtype::F8_E4M3),
        pick("weight_fp8.scale", "a.scale", Dtype::F8_E8M0),
        pick("expert_fp4.packed", "b.weight", Dtype::I8),
        pick("expert_fp4.scale", "b.scale", Dtype::F8_E8M0),
    ];
    common::write_checkpoint(&file, &tensors);
    let decoded = |name: &str| -> Vec<f32> {
        data(&c, name).chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    };
    for (name, format, n, k, expected) in [
        ("a", WeightFormat::Fp8 { tile: 32 }, 96, 160, "weight_fp8.decoded"),
        ("b", WeightFormat::Fp4, 48, 160, "expert_fp4.decoded"),
    ] {
        let packed = load(&file, &weight(name, name, None, DType::Weight(format), &[n, k])).unwrap();
        let values = dsc_ir::format::decode_weight(format, &packed, 1, n as usize, k as usize).unwrap();
        assert_eq!(values, decoded(expected), "{name}");
    }
}

#[test]
fn library_names_and_integers() {
    let path = fixture("v4-tiny/model.safetensors");
    let c = Checkpoint::open(&path).unwrap();
    let f32_matrix = DType::Weight(WeightFormat::F32);
    for (tensor, dtype, shape, stored) in [
        ("embed", f32_matrix, &[256, 64][..], "model.embed_tokens.weight"),
        ("head", f32_matrix, &[256, 64], "head.weight"),
        ("hc_head_fn", f32_matrix, &[4, 256], "model.hc_head.hc_fn"),
        ("layers.1.attn.kv_norm", DType::F32, &[64], "model.layers.1.attn.norm.weight"),
        ("layers.1.attn.attn_sink", DType::F32, &[4], "model.layers.1.attn.attn_sink"),
    ] {
        assert_eq!(load(&path, &weight(tensor, tensor, None, dtype, shape)).unwrap(), data(&c, stored), "{tensor}");
    }
    let w = weight("ffn.gate.tid2eid", "layers.0.ffn.gate.tid2eid", Some(0), DType::I32, &[256, 2]);
    let narrow: Vec<u8> = data(&c, "model.layers.0.ffn.gate.tid2eid").chunks(8).flat_map(|b| b[..4].to_vec()).collect();
    assert_eq!(load(&path, &w).unwrap(), narrow);
    // With four experts in the layer, an id of 4 would lead a kernel astray.
    let experts = weight("ffn.experts.{e}.w1", "layers.0.ffn.experts.{e}.w1", Some(0), f32_matrix, &[4, 32, 64]);
    let mut store = WeightStore::open(path.to_str().unwrap(), None, &manifest(vec![w.clone(), experts])).unwrap();
    assert!(matches!(store.load(&w), Err(WeightError::Value { .. })));
}

#[test]
fn unsuitable_tensors_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("w.safetensors");
    let tensors: Tensors = vec![
        ("a.weight".into(), Dtype::F32, vec![2, 2], f32_bytes(&[1.0; 4])),
        ("b.weight".into(), Dtype::F8_E4M3, vec![2, 2], vec![0x38, 0x7F, 0, 0]),
        ("b.scale".into(), Dtype::F8_E8M0, vec![1, 1], vec![127]),
        ("c.weight".into(), Dtype::F8_E4M3, vec![2, 2], vec![0x38; 4]),
        ("c.scale".into(), Dtype::F8_E8M0, vec![1, 1], vec![255]),
        ("d.weight".into(), Dtype::F8_E4M3, vec![2, 2], vec![0x38; 4]),
    ];
    common::write_checkpoint(&file, &tensors);
    let fp8 = DType::Weight(WeightFormat::Fp8 { tile: 32 });
    let bf16 = DType::Weight(WeightFormat::Bf16);
    for (name, dtype, shape, text) in [
        ("z", DType::F32, &[2][..], "no tensor `z.weight`"),
        ("a", DType::F32, &[2, 3], "`a.weight` has shape [2, 2], the model needs [2, 3]"),
        ("a", bf16, &[2, 2], "`a.weight` is F32, the model needs BF16"),
        ("a", fp8, &[2, 2], "needs F8_E4M3"),
        ("b", fp8, &[2, 2], "`b.weight`: element 1 is NaN"),
        ("c", fp8, &[2, 2], "`c.scale`: scale 0 is NaN"),
        ("d", fp8, &[2, 2], "no tensor `d.scale`"),
        ("a", DType::I32, &[2, 2], "needs I32 or I64"),
    ] {
        let e = load(&file, &weight(name, name, None, dtype, shape)).unwrap_err();
        assert_eq!(e.exit_code(), 2);
        assert!(e.to_string().contains(text), "{e}");
    }
}

#[test]
fn sharded_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let tensor = |n: &str, x: f32| vec![(n.to_string(), Dtype::F32, vec![1], f32_bytes(&[x]))];
    common::write_checkpoint(&dir.path().join("one.safetensors"), &tensor("a", 1.0));
    common::write_checkpoint(&dir.path().join("two.safetensors"), &tensor("b", 2.0));
    let index = |map: serde_json::Value| {
        let text = serde_json::json!({ "metadata": {}, "weight_map": map }).to_string();
        std::fs::write(dir.path().join("model.safetensors.index.json"), text).unwrap();
        Checkpoint::open(dir.path())
    };
    let c = index(serde_json::json!({ "a": "one.safetensors", "b": "two.safetensors" })).unwrap();
    assert_eq!(data(&c, "b"), f32_bytes(&[2.0]));
    assert_eq!(c.names().collect::<Vec<_>>(), ["a", "b"]);
    for (map, text) in [
        (serde_json::json!({ "a": "two.safetensors" }), "tensor `a` is not in `two.safetensors`"),
        (serde_json::json!({ "a": "../one.safetensors" }), "no plain file name"),
        (serde_json::json!({ "a": 3 }), "invalid type"),
    ] {
        assert!(index(map).err().unwrap().to_string().contains(text));
    }
    let lost = index(serde_json::json!({ "a": "lost.safetensors" })).err().unwrap();
    assert!(matches!(lost, CheckpointError::Read { .. }) && lost.exit_code() == 3);
}

fn engram() -> (Vec<u8>, EngramInfo) {
    let text = std::fs::read(fixture("v41-tiny-a/engram_tables.json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let flat = |v: &serde_json::Value| -> Vec<u64> {
        fn walk(v: &serde_json::Value, out: &mut Vec<u64>) {
            match v {
                serde_json::Value::Array(a) => a.iter().for_each(|v| walk(v, out)),
                serde_json::Value::String(s) => out.push(s.parse().unwrap()),
                v => out.push(v.as_u64().unwrap()),
            }
        }
        let mut out = Vec::new();
        walk(v, &mut out);
        out
    };
    let info = EngramInfo {
        layers: vec![1, 4],
        max_ngram: 4,
        heads: 2,
        compressed_vocab_size: 134,
        pad_token_id: 2,
        multipliers: flat(&json["multipliers"]),
        primes: flat(&json["primes"]),
    };
    (text, info)
}

#[test]
fn engram_tables_must_be_the_models() {
    let (text, info) = engram();
    let tables = EngramTables::parse(&text, &info, 192).unwrap();
    assert_eq!(tables.token_map[..8], [0, 1, 2, 3, 4, 5, 0, 6]);
    let with = |change: &dyn Fn(&mut EngramInfo)| {
        let mut info = info.clone();
        change(&mut info);
        EngramTables::parse(&text, &info, 192).unwrap_err()
    };
    assert!(with(&|i| i.primes[3] += 2).contains("`primes`"));
    assert!(with(&|i| i.multipliers[0] ^= 2).contains("`multipliers`"));
    assert!(with(&|i| i.compressed_vocab_size = 100).contains("below 100"));
    assert!(with(&|i| i.pad_token_id = 3).contains("pad"));
    assert!(EngramTables::parse(&text, &info, 193).unwrap_err().contains("vocabulary"));
    assert!(EngramTables::parse(b"{}", &info, 192).unwrap_err().contains("token_map"));
}

#[test]
fn engram_tables_are_needed_with_a_checkpoint() {
    let mut m = manifest(vec![weight("engram.token_map", "@engram.token_map", None, DType::I32, &[8])]);
    m.model.engram = Some(EngramInfo { compressed_vocab_size: 5, ..engram().1 });
    let path = fixture("v4-tiny/model.safetensors");
    let e = WeightStore::open(path.to_str().unwrap(), None, &m).err().unwrap();
    assert!(e.to_string().contains("--engram-tables"), "{e}");
    let map = WeightStore::open("random:1", None, &m).unwrap().load(&m.weights[0]).unwrap();
    let ids: Vec<u8> = map.as_ref().chunks(4).map(|b| b[0]).collect();
    assert_eq!(ids, [0, 1, 2, 3, 4, 0, 1, 2]);
}

#[test]
fn random_weights_are_sane_in_every_format() {
    let formats = [
        DType::F32,
        DType::Bf16,
        DType::Weight(WeightFormat::F32),
        DType::Weight(WeightFormat::Bf16),
        DType::Weight(WeightFormat::Fp8 { tile: 32 }),
        DType::Weight(WeightFormat::Fp8 { tile: 128 }),
        DType::Weight(WeightFormat::Fp4),
        DType::Packed(RowFormat::Fp8),
        DType::Packed(RowFormat::MxFp4),
        DType::Packed(RowFormat::Fp4),
        DType::Packed(RowFormat::Fp8Rope { rope: 64 }),
    ];
    for dtype in formats {
        let w = weight("attn.wq_a", "attn.wq_a", Some(3), dtype, &[64, 512]);
        let mut store = WeightStore::open("random:5", None, &manifest(vec![w.clone()])).unwrap();
        let bytes = store.load(&w).unwrap();
        assert_eq!(bytes.as_ref(), store.load(&w).unwrap().as_ref(), "{dtype} is not reproducible");
        let array = dsc_ir::interp::Array::from_storage(dtype, &[64, 512], bytes.as_ref()).unwrap();
        let x = array.to_floats().unwrap();
        assert!(x.iter().all(|v| v.is_finite()), "{dtype}");
        let std = (x.iter().map(|v| v * v).sum::<f32>() / x.len() as f32).sqrt();
        // Matrices keep the size of a row of 512; the others are of unit size.
        let unit = if matches!(dtype, DType::Weight(_)) { (1f32 / 512.0).sqrt() } else { 0.6 };
        assert!((0.3..3.0).contains(&(std / unit)), "{dtype}: {std}");
        let other = weight("attn.wq_a", "attn.wq_a", Some(4), dtype, &[64, 512]);
        assert_ne!(bytes.as_ref(), store.load(&other).unwrap().as_ref(), "layers are alike");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn damaged_checkpoints_never_panic(at in 0usize..400, byte in any::<u8>(), cut in 0usize..600) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("w.safetensors");
        common::write_checkpoint(&file, &common::successor_weights());
        let mut bytes = std::fs::read(&file).unwrap();
        let i = at % bytes.len();
        bytes[i] = byte;
        bytes.truncate(bytes.len().saturating_sub(cut.saturating_sub(300)));
        std::fs::write(&file, &bytes).unwrap();
        match Checkpoint::open(&file) {
            Ok(c) => {
                let names: Vec<String> = c.names().map(String::from).collect();
                for n in &names {
                    prop_assert!(c.get(n).is_some());
                }
            }
            Err(e) => prop_assert_eq!(e.exit_code(), 2),
        }
    }
}
