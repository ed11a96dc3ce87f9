//! Layer 2 of the tiny V4.1 model (compressor of ratio 2, indexer, experts), compared value by value.
//!
//! The fixture was computed in f32, so values agree to f32 noise; quantised values follow from the fixture's
//! unquantised ones exactly.

use crate::bench::{Bench, Run};
use dsc_ir::graph::Def;
use dsc_ir::interp::Array;
use safetensors::SafeTensors;
use std::path::Path;

const LAYER: &str = r#"
%step: i32[n_tokens, 8] = input "step"
%streams: f32[n_tokens, 4, 64] = input "streams"
%pre: f32[n_tokens, 4] = input "pre"
%norm: bf16[64] = weight "norm" from "layers.2.attn_norm"
%fn: f32[24, 256] = weight "fn" from "layers.2.hc_attn_fn"
%scale: f32[3] = weight "scale" from "layers.2.hc_attn_scale"
%base: f32[24] = weight "base" from "layers.2.hc_attn_base"
%m: f32[n_tokens, 24] = mhc_stats(%streams, %fn) {eps = 1e-20}
%a_pre: f32[n_tokens, 4], %a_post: f32[n_tokens, 4], %a_comb: f32[n_tokens, 4, 4] =
    mhc_coeffs(%m, %scale, %base) {iters = 20, eps = 1e-6}
%c: f32[n_tokens, 64] = collapse(%streams, %pre)
%u: f32[n_tokens, 64] = rms_norm(%c, %norm) {eps = 1e-20}

%wq_a: w.fp8_32[64, 64] = weight "wq_a" from "layers.2.attn.wq_a"
%wkv: w.fp8_32[64, 64] = weight "wkv" from "layers.2.attn.wkv"
%wq_b: w.fp8_32[256, 64] = weight "wq_b" from "layers.2.attn.wq_b"
%q_norm: bf16[64] = weight "q_norm" from "layers.2.attn.q_norm"
%kv_norm: bf16[64] = weight "kv_norm" from "layers.2.attn.kv_norm"
%qa: f32[n_tokens, 64], %kva: f32[n_tokens, 64] = linear(%u, %wq_a, %wkv) {heads = [0, 0]}
%qr: f32[n_tokens, 64] = rms_norm(%qa, %q_norm) {eps = 1e-20}
%qb: f32[n_tokens, 4, 64] = linear(%qr, %wq_b) {heads = [4]}
%q: f32[n_tokens, 4, 64] = rope(%qb, %step) {ROPE, inverse = false, at = token, ratio = 0}
%kvn: f32[n_tokens, 64] = rms_norm(%kva, %kv_norm) {eps = 1e-20}
%kv: f32[n_tokens, 64] = rope(%kvn, %step) {ROPE, inverse = false, at = token, ratio = 0}
%window: row.fp8[n_tokens, 64] = quantize(%kv) {format = fp8}

%cwkv: w.bf16[64, 64] = weight "cwkv" from "layers.2.attn.compressor.wkv"
%cgate: w.bf16[64, 64] = weight "cgate" from "layers.2.attn.compressor.wgate"
%cnorm: bf16[64] = weight "cnorm" from "layers.2.attn.compressor.norm"
%ringv: f32[n_seqs, 4, 64] = state "ringv" ring keep 1
%rings: f32[n_seqs, 4, 64] = state "rings" ring keep 1
%main: row.fp4[n_seqs, ceil(n_context, 2), 64] = state "main" pages ratio 2
%keys: row.mxfp4[n_seqs, ceil(n_context, 2), 32] = state "keys" pages ratio 2
%swa: row.fp8[n_seqs, 16, 64] = state "swa" ring keep 15
%cv: f32[n_tokens, 64], %cs: f32[n_tokens, 64] = linear(%u, %cwkv, %cgate) {heads = [0, 0]}
%pooled: f32[n_tokens, 64] = pool(%cv, %cs, %ringv, %rings, %step) {ratio = 2, overlap = false, bias = false}
%latent: f32[n_tokens, 64] = rms_norm(%pooled, %cnorm) {eps = 1e-20}
%entry: f32[n_tokens, 64] = rope(%latent, %step) {ROPE, inverse = false, at = entry, ratio = 2}
%entryq: row.fp4[n_tokens, 64] = quantize(%entry) {format = fp4}
page_write(%main, %entryq, %step) {ratio = 2}

%wk: w.bf16[32, 64] = weight "wk" from "layers.2.attn.indexer.wk"
%k_norm: bf16[32] = weight "k_norm" from "layers.2.attn.indexer.k_norm"
%wiq: w.fp8_32[512, 64] = weight "wiq" from "layers.2.attn.indexer.wq_b"
%wproj: w.bf16[16, 64] = weight "wproj" from "layers.2.attn.indexer.weights_proj"
%ik0: f32[n_tokens, 32] = linear(%latent, %wk) {heads = [0]}
%ik1: f32[n_tokens, 32] = rms_norm(%ik0, %k_norm) {eps = 1e-20}
%ik: f32[n_tokens, 32] = rope(%ik1, %step) {ROPE, inverse = false, at = entry, ratio = 2}
%ikq: row.mxfp4[n_tokens, 32] = quantize(%ik) {format = mxfp4}
page_write(%keys, %ikq, %step) {ratio = 2}
%iq0: f32[n_tokens, 16, 32] = linear(%qr, %wiq) {heads = [16]}
%iq: f32[n_tokens, 16, 32] = rope(%iq0, %step) {ROPE, inverse = false, at = token, ratio = 0}
%iqq: row.mxfp4[n_tokens, 16, 32] = quantize(%iq) {format = mxfp4}
%iw: f32[n_tokens, 16] = linear(%u, %wproj) {heads = [0]}
%scores: f32[n_tokens, ceil(n_context, 2)] =
    index_scores(%iqq, %iw, %keys, %step) {ratio = 2, block = 0, scale = 0.044194173824159216}
%top: i32[n_tokens, 12] = top_k(%scores, %step) {k = 12, ratio = 2, block = 0}

%sink: f32[4] = weight "sink" from "layers.2.attn.attn_sink"
%wo_a: w.fp8_32[64, 128] = weight "wo_a" from "layers.2.attn.wo_a"
%wo_b: w.fp8_32[64, 64] = weight "wo_b" from "layers.2.attn.wo_b"
%o: f32[n_tokens, 4, 64] = sparse_attention(%q, %window, %swa, %step, %sink, %main, %top)
    {window = 16, ratio = 2, scale = 0.125, sink = true, select = listed, round_probs = false}
%oi: f32[n_tokens, 4, 64] = rope(%o, %step) {ROPE, inverse = true, at = token, ratio = 0}
%z: f32[n_tokens, 64] = group_linear(%oi, %wo_a) {groups = 2}
%attn: f32[n_tokens, 64] = linear(%z, %wo_b) {heads = [0]}
%mid: f32[n_tokens, 4, 64] = expand(%attn, %streams, %a_post, %a_comb)

%fnorm: bf16[64] = weight "fnorm" from "layers.2.ffn_norm"
%gate: w.bf16[8, 64] = weight "gate" from "layers.2.ffn.gate"
%gbias: f32[8] = weight "gbias" from "layers.2.ffn.gate.bias"
%w1: w.fp4[8, 32, 64] = weight "w1" from "layers.2.ffn.experts.{e}.w1"
%w3: w.fp4[8, 32, 64] = weight "w3" from "layers.2.ffn.experts.{e}.w3"
%w2: w.fp4[8, 64, 32] = weight "w2" from "layers.2.ffn.experts.{e}.w2"
%s1: w.fp8_32[32, 64] = weight "s1" from "layers.2.ffn.shared_experts.w1"
%s3: w.fp8_32[32, 64] = weight "s3" from "layers.2.ffn.shared_experts.w3"
%s2: w.fp8_32[64, 32] = weight "s2" from "layers.2.ffn.shared_experts.w2"
%fc: f32[n_tokens, 64] = collapse(%mid, %a_pre)
%v: f32[n_tokens, 64] = rms_norm(%fc, %fnorm) {eps = 1e-20}
%gz: f32[n_tokens, 8] = linear(%v, %gate) {heads = [0]}
%ids: i32[n_tokens, 3], %w: f32[n_tokens, 3] =
    router_top_k(%gz, %gbias, %step) {k = 3, norm = true, scale = 1.5, image_bias = false}
%eg: f32[n_tokens, 3, 32], %eu: f32[n_tokens, 3, 32] = expert_linear(%v, %ids, %w1, %w3)
%eh: f32[n_tokens, 3, 32] = swiglu(%eg, %eu, %w) {limit = 1.0, weighted = true}
%ey: f32[n_tokens, 3, 64] = expert_linear(%eh, %ids, %w2)
%sg: f32[n_tokens, 32], %su: f32[n_tokens, 32] = linear(%v, %s1, %s3) {heads = [0, 0]}
%sh: f32[n_tokens, 32] = swiglu(%sg, %su) {limit = 1.0, weighted = false}
%sy: f32[n_tokens, 64] = linear(%sh, %s2) {heads = [0]}
%ffn: f32[n_tokens, 64] = expert_sum(%ey, %ids, %sy) {shared = true}
"#;

const ROPE: &str = "rotary = 16, base = 160000.0, factor = 16.0, original = 4096, beta_fast = 32.0, beta_slow = 1.0";

struct Files {
    model: Vec<u8>,
    expected: Vec<u8>,
}

impl Files {
    fn load() -> Files {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/v41-tiny-a");
        let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
        Files { model: read("model.safetensors"), expected: read("expected.safetensors") }
    }

    /// All data of a weight, then all its scales.
    fn weight(&self, tensor: &str, experts: usize) -> Vec<u8> {
        let model = SafeTensors::deserialize(&self.model).unwrap();
        let (mut data, mut scales) = (Vec::new(), Vec::new());
        for e in 0..experts {
            let name = tensor.replace("{e}", &e.to_string());
            let found = model.tensor(&format!("{name}.weight")).or_else(|_| model.tensor(&name)).unwrap();
            data.extend_from_slice(found.data());
            if let Ok(scale) = model.tensor(&format!("{name}.scale")) {
                scales.extend_from_slice(scale.data());
            }
        }
        data.extend(scales);
        data
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        let expected = SafeTensors::deserialize(&self.expected).unwrap();
        let data = expected.tensor(name).unwrap().data().to_vec();
        data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    /// Plane `i` of `n`.
    fn plane(&self, name: &str, i: usize, n: usize) -> Vec<f32> {
        let x = self.floats(name);
        x[i * x.len() / n..(i + 1) * x.len() / n].to_vec()
    }
}

/// The layer on the first 20 tokens, for which the fixture has the streams.
fn layer(files: &Files) -> Bench {
    let mut b = Bench::new(&LAYER.replace("ROPE", ROPE));
    b.env.n_context = 32;
    b.step(&[Run(0, 0, &[1; 20])]);
    b.floats("streams", &files.plane("p0.stream_in", 2, 10));
    b.floats("pre", &files.plane("p0.pre_in", 2, 10)[..80]);
    for v in b.graph.value_ids() {
        let value = b.graph.value(v).clone();
        match &value.def {
            Def::Weight(source) => {
                let shape = b.shape(&value.name);
                let experts = if source.tensor.contains("{e}") { shape[0] } else { 1 };
                let bytes = files.weight(&source.tensor, experts);
                b.values.insert(v, Array::from_storage(value.ty.dtype, &shape, &bytes).unwrap());
            }
            Def::State(_) => {
                b.zeros(&value.name);
            }
            Def::Input | Def::Node { .. } => {}
        }
    }
    b.run();
    b
}

/// Compares to the start of the fixture's tensor, by its largest value.
fn assert_near(b: &Bench, name: &str, want: &[f32]) {
    near(&b.get(name), want, name);
}

fn near(got: &[f32], want: &[f32], name: &str) {
    assert!(want.len() >= got.len(), "{name}");
    let largest = want.iter().filter(|x| x.is_finite()).fold(0.0f32, |m, x| m.max(x.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(g == w || (g - w).abs() <= 2e-5 * largest, "{name}[{i}]: {g} is not {w}");
    }
}

/// Rows of an array that complete an entry of 2.
fn entries(x: &[f32], width: usize) -> Vec<f32> {
    x.chunks_exact(width).skip(1).step_by(2).flatten().copied().collect()
}

#[test]
fn a_layer_equals_the_fixture() {
    let files = Files::load();
    let b = layer(&files);
    let expected = |name: &str| files.floats(&format!("p0.layer2.{name}"));
    assert_near(&b, "a_pre", &expected("attn_mix.pre"));
    assert_near(&b, "a_post", &expected("attn_mix.post"));
    assert_near(&b, "a_comb", &expected("attn_mix.comb"));
    assert_near(&b, "u", &expected("attn_in"));
    assert_near(&b, "q", &expected("q_rope"));
    assert_near(&b, "kv", &expected("window_kv.before_quant"));
    assert_near(&b, "window", &expected("window_kv"));
    near(&entries(&b.get("latent"), 64), &expected("latent"), "latent");
    near(&entries(&b.get("entry"), 64), &expected("main_kv.before_quant"), "entry");
    near(&b.get("main")[..640], &expected("main_kv"), "main");
    near(&entries(&b.get("ik"), 32), &expected("index_k.before_quant"), "ik");
    near(&b.get("keys")[..320], &expected("index_k"), "keys");
    assert_near(&b, "iq", &expected("index_q.before_quant"));
    assert_near(&b, "iqq", &expected("index_q"));
    assert_near(&b, "iw", &expected("index_head_weights"));
    assert_near(&b, "scores", &expected("index_scores"));
    assert_near(&b, "o", &expected("attn_out_rotated"));
    assert_near(&b, "attn", &files.plane("p0.attn_y", 2, 10));
    assert_near(&b, "w", &files.plane("p0.moe_weights", 2, 10));
    assert_near(&b, "ffn", &files.plane("p0.ffn_y", 2, 10));
}

#[test]
fn selections_equal_the_fixture() {
    let files = Files::load();
    let b = layer(&files);
    let expected = SafeTensors::deserialize(&files.expected).unwrap();
    let top = expected.tensor("p0.topk").unwrap().data();
    let top: Vec<i32> =
        top.chunks_exact(2).map(|b| i32::from(i16::from_le_bytes([b[0], b[1]]))).take(20 * 12).collect();
    assert_eq!(b.get_ints("top"), top);
    let experts = expected.tensor("p0.moe_experts").unwrap().data();
    let experts: Vec<i32> = experts[2 * 96..2 * 96 + 60].iter().map(|e| i32::from(*e)).collect();
    assert_eq!(b.get_ints("ids"), experts);
}
