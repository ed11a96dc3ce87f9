//! What a change to the architecture does to kernels and caches, against numbers worked out by hand.
//!
//! Bytes of a flagship row: main 512 channels of fp4 = 256 + 32 scales = 288; index key 128 of mxfp4 = 64 + 4 = 68;
//! window 512 of fp8 = 512 + 16 = 528. Sources: three of ratio 2, one of ratio 1, so (288 + 68) * (3/2 + 1) = 890 a
//! token. Windows: 40 layers * 128 rows * 528 = 2 703 360 a sequence.
//!
//! Launches of a flagship layer that reuses a selection (decode): mixing with norm and cast; wq_a|wkv; both norms,
//! rotation, cast, ring write; wq_b; attention with rotations and cast; wo_a; wo_b; mixing again; router; experts = 10.
//! A Reindex layer adds the head weights' product, scores, selection = 13. A Full layer adds to those the product of its
//! index key (its compressor joins the head weights' product, its pooling the norms' kernel) = 14. A memory adds one
//! product before its layer. Once per step: hash with both lookups; final mixing; output head = 3.
//! Step: swa 10 + 11; Full 14 + 14 + 15 + 14; Reuse 30 * 10; Reindex 4 * 13; once 3 = 433.
//! Prefill writes the n-gram history in a launch of its own (rings cannot be written before they are read): 434.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failing helper is a failing test

use dsc_ir::schedule::Phase;
use dsc_passes::explain::{self, PhaseFacts};
use dsc_passes::pipeline::Select;
use dsc_tests::{model, target};

struct Seen {
    kv: explain::Kv,
    decode: PhaseFacts,
    prefill: PhaseFacts,
}

fn see(spec: &str, sets: &[&str]) -> Seen {
    let m = model(spec, sets);
    let facts = |phase| {
        let s = m.compile(phase, &target("sm_90a"), &Select::All, None).unwrap().schedule;
        (explain::phase_facts(&s, &m.layers(), &explain::env(phase, 1, 65536, m.tail())), s)
    };
    let (decode, s) = facts(Phase::Decode);
    Seen { kv: explain::kv(&s), decode, prefill: facts(Phase::Prefill).0 }
}

/// Launches of all layers of a role, and how many layers they are.
fn role(f: &PhaseFacts, role: &str) -> (u64, usize) {
    let kinds: Vec<_> = f.layer_kinds.iter().filter(|k| k.role == role).collect();
    (kinds.iter().map(|k| k.launches * k.layers.len() as u64).sum(), kinds.iter().map(|k| k.layers.len()).sum())
}

#[test]
fn flagship() {
    let s = see("deepseek-v4.1-flash.yaml", &[]);
    assert_eq!((s.kv.bytes_per_token.0, s.kv.bytes_per_sequence), (890.0, 2_703_360));
    // Pending groups: 3 layers * 1 position * (512 values + 512 gates) * 4 B, and 3 compressed ids of history.
    assert_eq!(s.kv.other_bytes_per_sequence, 3 * 2 * 512 * 4 + 3 * 4);
    assert_eq!((s.decode.launches_per_step, s.prefill.launches_per_step), (433, 434));
    assert_eq!(role(&s.decode, "reuse"), (300, 30));
    assert_eq!(role(&s.prefill, "reuse"), (300, 30));
    assert_eq!(role(&s.decode, "reindex"), (4 * 13, 4));
    assert_eq!(role(&s.decode, "full"), (14 + 14 + 15 + 14, 4));
    assert_eq!(role(&s.decode, "swa"), (21, 2));
}

/// Replaying the last 128 rows of a prompt through layers 20 to 39: caches and decode are the flagship's. Layer 20 has
/// three launches more in prefill: the tail's rows of its input with their cast; the compressor's product and norms are
/// apart from the head weights' product and the query's norms, which have the tail's rows alone.
/// Its reused layers read 128 rows instead of 65536, so the products of all such layers shrink 512 times.
#[test]
fn replayed_tail() {
    let (all, tail) = (see("deepseek-v4.1-flash.yaml", &[]), see("variants/replay-tail.yaml", &[]));
    assert_eq!((tail.kv.bytes_per_token.0, tail.kv.bytes_per_sequence), (890.0, 2_703_360));
    assert_eq!((tail.decode.launches_per_step, tail.prefill.launches_per_step), (433, 434 + 3));
    let flops = |f: &PhaseFacts, layer| {
        let kind = f.layer_kinds.iter().find(|k| k.layers.contains(&layer)).unwrap();
        kind.kernels.iter().find(|k| k.name.starts_with("wq_a_wkv")).unwrap().flops.value
    };
    assert_eq!(flops(&all.prefill, 22), 2 * 65536 * 5120 * (1280 + 512));
    assert_eq!(flops(&tail.prefill, 22), 2 * 128 * 5120 * (1280 + 512));
    assert_eq!(flops(&tail.prefill, 19), flops(&all.prefill, 19));
}

/// 283 MB of weights for a layer that reuses its selection, at one token (the published kernels' sum).
#[test]
fn flagship_reuse_layer_reads_283_megabytes() {
    let s = see("deepseek-v4.1-flash.yaml", &[]);
    let reuse = s.decode.layer_kinds.iter().find(|k| k.role == "reuse").unwrap();
    let bytes: u64 = reuse.kernels.iter().map(|k| k.bytes.value).sum();
    assert!((bytes as f64 / 283e6 - 1.0).abs() < 0.01, "{bytes}");
}

/// Rows of 584 B and index keys of 68 B: 21 layers of ratio 4, 20 of ratio 128: 21*652/4 + 20*584/128.
/// Windows: 43 * 128 * 584.
#[test]
fn v4_flash() {
    let s = see("deepseek-v4-flash.yaml", &[]);
    assert_eq!((s.kv.bytes_per_token.0, s.kv.bytes_per_sequence), (3514.25, 43 * 128 * 584));
    // Its own mix at once: the wide collapse waits for a grid-wide sum, so each of the two mixings is two launches.
    // Full: 14 + 2, less the index key's product, which joins the other compressor's = 15. HCA: 10 + 2 and its compressor = 13.
    assert_eq!(role(&s.decode, "full"), (21 * 15, 21));
    assert_eq!(role(&s.decode, "hca"), (20 * 13, 20));
}

/// 30*652/4 + 31*584/128.
#[test]
fn v4_pro() {
    let s = see("deepseek-v4-pro.yaml", &[]);
    assert_eq!(s.kv.bytes_per_token.0, 5031.4375);
}

/// No streams, and so no memory to inject into them: its hash and its two products are gone.
#[test]
fn plain_residual() {
    let s = see("variants/plain-residual.yaml", &[]);
    assert_eq!(s.kv.bytes_per_token.0, 890.0);
    assert_eq!(s.decode.launches_per_step, 433 - 3);
    assert_eq!(role(&s.decode, "reuse"), (300, 30));
    let ops: Vec<&String> = s.decode.layer_kinds.iter().flat_map(|k| &k.kernels).flat_map(|k| &k.ops).collect();
    assert!(ops.iter().all(|o| !o.starts_with("mhc") && *o != "expand" && *o != "collapse"));
}

/// Each sublayer's own mix: two launches instead of one at 80 sites and at the end.
#[test]
fn multi_pass_mhc() {
    let s = see("variants/multi-pass-mhc.yaml", &[]);
    assert_eq!(s.decode.launches_per_step, 433 + 80 + 1);
    assert_eq!(role(&s.decode, "reuse"), (30 * 12, 30));
}

/// No compressed rows: 40 layers of 10, two memories of 2 (one product each), hash, final mixing, head.
#[test]
fn window_only() {
    let s = see("variants/window-only.yaml", &[]);
    assert_eq!((s.kv.bytes_per_token.0, s.kv.bytes_per_sequence), (0.0, 2_703_360));
    assert_eq!(s.decode.launches_per_step, 400 + 2 + 3);
    assert_eq!(role(&s.decode, "swa"), (402, 40));
}

/// 356 * (3/2 + 1/4) = 623. At ratio 4 the decoder's source pools too: a pending group of 3 positions more.
#[test]
fn ratio_4_in_the_decoder() {
    let s = see("variants/decoder-ratio-4.yaml", &[]);
    assert_eq!(s.kv.bytes_per_token.0, 623.0);
    assert_eq!(s.kv.other_bytes_per_sequence, (3 + 3) * 2 * 512 * 4 + 3 * 4);
    assert_eq!(s.decode.launches_per_step, 433);
}

/// A selection of another length changes work, not launches or caches: keys of a Reuse layer's attention are
/// 128 + 1152 instead of 128 + 512.
#[test]
fn top_k_1152() {
    let (a, b) = (see("deepseek-v4.1-flash.yaml", &[]), see("variants/topk-1152.yaml", &[]));
    let attention = |s: &Seen| {
        let reuse = s.decode.layer_kinds.iter().find(|k| k.role == "reuse").unwrap();
        reuse.kernels.iter().find(|k| k.anchor == "sparse_attention").unwrap().clone()
    };
    assert_eq!(b.kv.bytes_per_token.0, 890.0);
    assert_eq!(b.decode.launches_per_step, 433);
    let (fa, fb) = (attention(&a).flops.value, attention(&b).flops.value);
    assert_eq!(fb - fa, 4 * 64 * 512 * (1152 - 512));
    // 288 B a row, and 4 B of index.
    assert_eq!(attention(&b).bytes.value - attention(&a).bytes.value, (1152 - 512) * (288 + 4));
}

/// Windows of 512 rows: 40 * 512 * 528.
#[test]
fn window_512() {
    let s = see("variants/window-512.yaml", &[]);
    assert_eq!((s.kv.bytes_per_token.0, s.kv.bytes_per_sequence), (890.0, 10_813_440));
    assert_eq!(s.decode.launches_per_step, 433);
}

/// Main rows of 528 B: (528 + 68) * 2.5 = 1490.
#[test]
fn fp8_main_rows() {
    assert_eq!(see("variants/fp8-main-kv.yaml", &[]).kv.bytes_per_token.0, 1490.0);
}

/// Rows of 1024 B and index keys of 256 B: 1280 * 2.5; windows 40 * 128 * 1024.
#[test]
fn bf16_rows() {
    let s = see("variants/bf16-kv.yaml", &[]);
    assert_eq!((s.kv.bytes_per_token.0, s.kv.bytes_per_sequence), (3200.0, 5_242_880));
}

/// 16 heads a rank: the same launches, one sum over ranks after each of 80 sublayers, a quarter of wq_b.
#[test]
fn sixteen_heads_per_rank() {
    let s = see("variants/tp4-16-heads.yaml", &[]);
    assert_eq!((s.decode.launches_per_step, s.decode.collectives_per_step), (433, 80));
    assert_eq!(s.kv.bytes_per_token.0, 890.0);
    let reuse = s.decode.layer_kinds.iter().find(|k| k.role == "reuse").unwrap();
    let wq_b = reuse.kernels.iter().find(|k| k.name.starts_with("wq_b")).unwrap();
    // Two operations a weight.
    assert_eq!(wq_b.flops.value, 2 * 16 * 512 * 1280);
}

/// Hash, two lookups in it, and two products less; the history's write in prefill too.
#[test]
fn no_engram() {
    let s = see("variants/no-engram.yaml", &[]);
    assert_eq!((s.decode.launches_per_step, s.prefill.launches_per_step), (430, 430));
    assert_eq!(s.kv.other_bytes_per_sequence, 3 * 2 * 512 * 4);
}

/// w1|w3 with its activation and w2 take the places of router and experts.
#[test]
fn dense_ffn() {
    let s = see("variants/dense-ffn.yaml", &[]);
    assert_eq!(s.decode.launches_per_step, 433);
    assert!(s.decode.layer_kinds.iter().flat_map(|k| &k.kernels).all(|k| k.anchor != "grouped_gemm"));
}

/// Eight more layers select anew: three launches more in each.
#[test]
fn sixteen_index_sources() {
    let s = see("variants/index-sources-16.yaml", &[]);
    assert_eq!(s.decode.launches_per_step, 433 + 8 * 3);
    assert_eq!(role(&s.decode, "reindex"), (12 * 13, 12));
}

/// Two streams: mixing rows of (2 + 2) * 2 = 8 columns over 2 * 5120 channels, the same launches.
#[test]
fn two_streams() {
    let s = see("variants/two-streams.yaml", &[]);
    assert_eq!(s.decode.launches_per_step, 433);
}

/// Without fusion every op is a launch, and the caches stay what they are.
#[test]
fn unfused() {
    let m = model("deepseek-v4.1-flash.yaml", &[]);
    let s = m.compile(Phase::Decode, &target("sm_90a"), &Select::NoFusion, None).unwrap().schedule;
    let ops: usize = s.launches.iter().map(|l| s.kernels[l.kernel as usize].graph.nodes.len()).sum();
    assert_eq!(ops, s.launches.len());
    assert_eq!(explain::kv(&s).bytes_per_token.0, 890.0);
}
