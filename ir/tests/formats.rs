//! Every vector of the format fixtures, compared bit by bit.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests fail as tests do

use dsc_ir::dtype::{RowFormat, WeightFormat};
use dsc_ir::format;
use safetensors::SafeTensors;
use std::path::Path;

struct Fixture(Vec<u8>);

impl Fixture {
    fn load() -> Fixture {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/formats/formats.safetensors");
        Fixture(std::fs::read(path).unwrap())
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        SafeTensors::deserialize(&self.0).unwrap().tensor(name).unwrap().data().to_vec()
    }

    fn shape(&self, name: &str) -> Vec<usize> {
        SafeTensors::deserialize(&self.0).unwrap().tensor(name).unwrap().shape().to_vec()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        self.bytes(name).chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }
}

fn assert_bits(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(g.to_bits() == w.to_bits() || (g.is_nan() && w.is_nan()), "{what}[{i}]: {g} is not {w}");
    }
}

#[test]
fn decodes_every_code() {
    let f = Fixture::load();
    let e2m1: Vec<f32> = (0..16).map(format::e2m1_decode).collect();
    assert_bits(&e2m1, &f.floats("e2m1.decode"), "e2m1");
    let e4m3: Vec<f32> = (0..=255).map(format::e4m3_decode).collect();
    assert_bits(&e4m3, &f.floats("e4m3.decode"), "e4m3");
    let e8m0: Vec<f32> = (0..=255).map(format::ue8m0_decode).collect();
    assert_bits(&e8m0, &f.floats("e8m0.decode"), "e8m0");
}

#[test]
fn encodes_scalars() {
    let f = Fixture::load();
    let check = |name: &str, input: &str, encode: fn(f32) -> u8| {
        let codes = f.bytes(name);
        let inputs = f.floats(input);
        assert_eq!(codes.len(), inputs.len(), "{name}");
        for (x, code) in inputs.iter().zip(codes) {
            if !x.is_nan() {
                assert_eq!(encode(*x), code, "{name} of {x:e}");
            }
        }
    };
    check("e2m1.code", "e2m1.input", format::e2m1_encode);
    check("e4m3.code", "e4m3.input", format::e4m3_encode);
    check("e8m0_ceil.code", "e8m0_ceil.input", format::ue8m0_ceil);
}

fn check_rows(f: &Fixture, fmt: RowFormat, input: &str, data: &str, scale: &str, row: Option<&str>, decoded: &str) {
    let channels = *f.shape(input).last().unwrap();
    let (data, scales) = (f.bytes(data), f.bytes(scale));
    let (inputs, decoded) = (f.floats(input), f.floats(decoded));
    let n_data = fmt.data_bytes(channels as u64) as usize;
    let n_row = fmt.row_bytes(channels as u64) as usize;
    let whole = row.map(|name| f.bytes(name));
    for (i, x) in inputs.chunks_exact(channels).enumerate() {
        let mut packed = vec![0xAA; n_row];
        format::pack_row(fmt, x, &mut packed).unwrap();
        assert_eq!(packed[..n_data], data[i * n_data..(i + 1) * n_data], "{fmt} data of row {i}");
        let n_scale = n_row - n_data;
        assert_eq!(packed[n_data..], scales[i * n_scale..(i + 1) * n_scale], "{fmt} scales of row {i}");
        if let Some(whole) = &whole {
            assert_eq!(packed[..], whole[i * n_row..(i + 1) * n_row]);
        }
        let mut back = vec![0.0; channels];
        format::unpack_row(fmt, &packed, &mut back).unwrap();
        assert_bits(&back, &decoded[i * channels..(i + 1) * channels], "decoded row");
    }
}

#[test]
fn packs_rows() {
    let f = Fixture::load();
    let rows = "rows.input";
    let main = ["main_kv_fp4.packed", "main_kv_fp4.scale", "main_kv_fp4.row288", "main_kv_fp4.decoded"];
    check_rows(&f, RowFormat::Fp4, rows, main[0], main[1], Some(main[2]), main[3]);
    let window = ["window_fp8.code", "window_fp8.scale", "window_fp8.row528", "window_fp8.decoded"];
    check_rows(&f, RowFormat::Fp8, rows, window[0], window[1], Some(window[2]), window[3]);
    let index = ["index_fp4.packed", "index_fp4.scale", "index_fp4.row68", "index_fp4.decoded"];
    check_rows(&f, RowFormat::MxFp4, "index_fp4.input", index[0], index[1], Some(index[2]), index[3]);
    let expert = ["expert_fp4.packed", "expert_fp4.scale", "expert_fp4.decoded"];
    check_rows(&f, RowFormat::MxFp4, "expert_fp4.input", expert[0], expert[1], None, expert[2]);
}

fn check_weight(f: &Fixture, fmt: WeightFormat, prefix: &str, data: &str) {
    let shape = f.shape(&format!("{prefix}.input"));
    let (n, k) = (shape[0], shape[1]);
    let mut want = f.bytes(&format!("{prefix}.{data}"));
    want.extend(f.bytes(&format!("{prefix}.scale")));
    let got = format::encode_weight(fmt, n, k, &f.floats(&format!("{prefix}.input"))).unwrap();
    assert_eq!(got, want, "{prefix}");
    let decoded = format::decode_weight(fmt, &got, 1, n, k).unwrap();
    assert_bits(&decoded, &f.floats(&format!("{prefix}.decoded")), prefix);
}

#[test]
fn stores_weights() {
    let f = Fixture::load();
    check_weight(&f, WeightFormat::Fp8 { tile: 32 }, "weight_fp8", "code");
    check_weight(&f, WeightFormat::Fp4, "expert_fp4", "packed");
    let shape = f.shape("decode_fp8.code");
    let mut bytes = f.bytes("decode_fp8.code");
    bytes.extend(f.bytes("decode_fp8.scale"));
    let got = format::decode_weight(WeightFormat::Fp8 { tile: 32 }, &bytes, 1, shape[0], shape[1]).unwrap();
    assert_bits(&got, &f.floats("decode_fp8.decoded"), "decode_fp8");
}

#[test]
fn every_tensor_of_the_fixture_is_used() {
    let f = Fixture::load();
    let prefixes = ["e2m1.", "e4m3.", "e8m0", "rows.", "main_kv_fp4.", "window_fp8.", "index_fp4.", "expert_fp4."];
    let tensors = SafeTensors::deserialize(&f.0).unwrap();
    for name in tensors.names() {
        let weight = name.starts_with("weight_fp8.") || name.starts_with("decode_fp8.");
        assert!(weight || prefixes.iter().any(|p| name.starts_with(p)), "{name}");
    }
}

#[test]
fn rope_rows_keep_bf16_and_pad_scales() {
    let fmt = RowFormat::Fp8Rope { rope: 64 };
    let x: Vec<f32> = (0..512).map(|i| (i as f32 * 0.37).sin() * 3.0).collect();
    assert_eq!(fmt.row_bytes(512), 584);
    let mut row = vec![0xFF; 584];
    format::pack_row(fmt, &x, &mut row).unwrap();
    assert_eq!(row[583], 0, "padding of the scales");
    let mut back = vec![0.0; 512];
    format::unpack_row(fmt, &row, &mut back).unwrap();
    for (x, y) in x[448..].iter().zip(&back[448..]) {
        assert_eq!(format::bf16_round(*x), *y);
    }
    for (group, scale) in x[..448].chunks(64).zip(&row[576..583]) {
        assert_eq!(format::fp8_scale(group), *scale);
    }
    for (x, y) in x[..448].iter().zip(&back[..448]) {
        assert!((x - y).abs() <= 0.0625 * x.abs() + 1e-2, "{x} {y}");
    }
}

#[test]
fn wrong_lengths_are_errors() {
    assert!(format::pack_row(RowFormat::Fp8, &[0.0; 32], &mut [0; 32]).is_err());
    assert!(format::unpack_row(RowFormat::Fp4, &[0; 8], &mut [0.0; 16]).is_err());
    assert!(format::encode_weight(WeightFormat::Fp4, 2, 32, &[0.0; 63]).is_err());
    assert!(format::decode_weight(WeightFormat::Bf16, &[0; 7], 1, 2, 2).is_err());
    let mut out = [0.0; 2];
    assert!(format::decode_weight_row(WeightFormat::Bf16, &[0; 8], &[], 2, 2, 2, &mut out).is_err());
    assert!(format::bf16_round(f32::NAN).is_nan());
    assert_eq!(format::bf16_round(1.0 + 1.0 / 256.0), 1.0, "ties to even");
    assert_eq!(format::bf16_round(1.0 + 3.0 / 256.0), 1.015625, "ties to even");
}
