//! Random architectures: interpreter = CPU kernels = fused = unfused, chunked = one-shot = token by token,
//! together = alone.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failing helper is a failing test

use dsc_cli::compile::Model as Spec;
use dsc_ir::schedule::Phase;
use dsc_passes::pipeline::Select;
use dsc_runtime::bundle::Bundle;
use dsc_runtime::executor::Capacity;
use dsc_runtime::model::{LoadOptions, Model, Rows, StepTable, Want};
use dsc_tests::{Session, build, max_diff, model_of};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Choices of a random architecture.
#[derive(Debug, Clone)]
struct Draw {
    hidden: u64,
    heads: u64,
    head_dim: u64,
    window: u64,
    pattern: usize,
    topk: u64,
    streams: u64,
    single_pass: bool,
    moe: bool,
    experts: (u64, u64),
    engram: bool,
    packed: bool,
    sink: bool,
    seed: u64,
}

/// Layer patterns: ratios, sources of rows, sources of selections, and more keys of `compress` and `index`.
const PATTERNS: [(&str, &str, &str, &str, &str); 7] = [
    ("[0, 0]", "[]", "", "", ""),
    ("[2, 2, 0]", "[0]", "[0]", "", ""),
    ("[0, 1, 1, 1]", "[1]", "[1, 2]", "", ""),
    ("[3, 3, 2, 2, 2]", "[0, 2]", "[0, 2, 3]", "", ""),
    ("[2, 1, 1, 1]", "[0, 1]", "[0, 1, 2]", "", "candidates"),
    (
        "[4, 8, 0, 4]",
        "[0, 1, 3]",
        "[0, 3]",
        "  dense_ratios: [8]\n  overlap_ratios: [4]\n  position_bias: true\n",
        "hidden",
    ),
    ("[1, 5, 5]", "[0, 1]", "[0, 1]", "", ""),
];

fn text(d: &Draw) -> String {
    let (ratios, kv, index, compress, extra) = PATTERNS[d.pattern];
    let layers = ratios.split(',').count();
    let mut t = format!(
        "name: random\nvocab_size: 61\nhidden_size: {}\nnum_hidden_layers: {layers}\nmax_position_embeddings: 4096\n\
         rms_norm_eps: 1e-6\nattention:\n  num_attention_heads: {}\n  head_dim: {}\n  qk_rope_head_dim: {}\n  \
         q_lora_rank: 32\n  o_groups: {}\n  o_lora_rank: 32\n  sliding_window: {}\n  attn_sink: {}\n  per_head_q_norm: {}\n\
         rope:\n  rope_theta: 10000\n  compress_rope_theta: 160000\n  yarn:\n    factor: 16\n    \
         original_max_position_embeddings: 1024\ncompress:\n  compress_ratios: {ratios}\n  kv_source_layer_ids: {kv}\n{compress}",
        d.hidden,
        d.heads,
        d.head_dim,
        d.head_dim / 4,
        if d.heads.is_multiple_of(2) { 2 } else { 1 },
        d.window,
        d.sink,
        extra == "hidden",
    );
    if !index.is_empty() {
        let _ = write!(
            t,
            "index:\n  index_source_layer_ids: {index}\n  index_n_heads: 8\n  index_head_dim: 32\n  index_topk: {}\n",
            d.topk
        );
        match extra {
            "hidden" => t.push_str("  keys_from: hidden\n  hadamard: true\n"),
            "candidates" => {
                let blocks = d.topk.div_ceil(2) + 1;
                let _ = write!(
                    t,
                    "  candidates:\n    candidate_source_layer_id: 1\n    candidate_topk_blocks: {blocks}\n    candidate_block_size: 2\n"
                );
            }
            _ => {}
        }
    }
    if d.streams > 1 {
        let head = if d.single_pass { "last_pre" } else { "learned" };
        let _ = write!(
            t,
            "residual:\n  hc_mult: {}\n  hc_sinkhorn_iters: 5\n  hc_eps: 1e-6\n  single_pass: {}\n  head: {head}\n",
            d.streams, d.single_pass
        );
    }
    if d.moe {
        let _ = write!(
            t,
            "moe:\n  n_routed_experts: {}\n  num_experts_per_tok: {}\n  n_shared_experts: 1\n  moe_intermediate_size: 32\n  \
             routed_scaling_factor: 1.5\n  swiglu_limit: 1.0\n",
            d.experts.0, d.experts.1
        );
    } else {
        t.push_str("dense_ffn:\n  intermediate_size: 64\n  swiglu_limit: 0.0\n");
    }
    if d.engram && d.streams > 1 {
        t.push_str(
            "engram:\n  engram_layer_ids: [1]\n  engram_max_ngram_size: 3\n  engram_n_heads: 2\n  \
             engram_head_dim: 32\n  engram_vocab_size: 43\n  engram_compressed_vocab_size: 50\n  engram_pad_token_id: 2\n",
        );
    }
    let caches = if d.packed { "packed" } else { "exact" };
    let _ = write!(
        t,
        "weights:\n  dense: fp8_32\n  experts: fp4\nnumerics:\n  activations: f32\n  linear_inputs: exact\n  wo_a_input: exact\n  caches: {caches}\n"
    );
    t
}

fn draw() -> impl Strategy<Value = Draw> {
    let sizes = (prop::sample::select(vec![32u64, 64, 96]), 1u64..=4, prop::sample::select(vec![32u64, 64]));
    let shape = (prop::sample::select(vec![1u64, 2, 7, 16]), 0..PATTERNS.len(), 1u64..=9, 1u64..=4);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (sizes, shape, flags, (2u64..=5, 1u64..=2), 0u64..1000).prop_map(
        |((hidden, heads, head_dim), (window, pattern, topk, streams), (a, b, c, d, e), experts, seed)| Draw {
            hidden,
            heads,
            head_dim,
            window,
            pattern,
            topk,
            streams,
            single_pass: a,
            moe: b,
            experts,
            engram: c,
            packed: d,
            sink: e,
            seed,
        },
    )
}

/// A bundle of the model, loaded with random weights and room for fresh sequences.
struct Loaded {
    model: Model,
    next: usize,
}

impl Loaded {
    fn new(spec: &Spec, select: &Select, seed: u64, n_seqs: u64) -> Loaded {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("bundle");
        build(spec, select, &out);
        let options = LoadOptions {
            weights: format!("random:{seed}"),
            engram_tables: None,
            device: "cpu".into(),
            threads: 1,
            capacity: Capacity { n_seqs, n_context: 64 },
            gpu: dsc_runtime::executor::GpuOptions::default(),
        };
        Loaded { model: Model::load(&Bundle::load(&out).unwrap(), &options).unwrap(), next: 0 }
    }

    fn step(&mut self, phase: Phase, runs: &[(usize, usize, &[i32])]) -> Vec<f32> {
        let mut table = StepTable::new();
        for (seq, start, ids) in runs {
            table.push(*seq, *start, ids);
        }
        self.model.step(phase, &table, Want { rows: Rows::All, probes: false }).unwrap().logits
    }

    /// Logits of all rows of a fresh sequence fed in runs of the given lengths.
    fn feed(&mut self, ids: &[i32], runs: &[usize], phase: Phase) -> Vec<f32> {
        let seq = self.next;
        self.next += 1;
        let mut start = 0;
        let mut logits = Vec::new();
        for n in runs {
            logits.extend(self.step(phase, &[(seq, start, &ids[start..start + n])]));
            start += n;
        }
        assert_eq!(start, ids.len());
        logits
    }
}

/// Both forms of a model, and its interpreter.
struct Under {
    fused: Loaded,
    unfused: Loaded,
    interp: Session,
    packed: bool,
    /// The sequence that was fed in one go.
    first: usize,
}

impl Under {
    /// For `checks` calls of [`Under::check`].
    fn new(d: &Draw, checks: u64) -> Under {
        let spec = model_of(&text(d), &[]);
        Under {
            fused: Loaded::new(&spec, &Select::All, d.seed, 7 * checks),
            unfused: Loaded::new(&spec, &Select::NoFusion, d.seed, checks),
            interp: Session::open(&spec, &format!("random:{}", d.seed), None, checks as usize, 64),
            packed: d.packed,
            first: 0,
        }
    }

    /// Two sequences of different lengths in the same steps, and each alone: prefill, then a token of decode.
    fn together(&mut self, ids: &[i32], logits: &[f32]) {
        let (n, other) = (ids.len(), [5, 9, 5]);
        let (a, b, alone) = (self.fused.next, self.fused.next + 1, self.fused.next + 2);
        self.fused.next += 2;
        let of_other = self.fused.feed(&other, &[other.len()], Phase::Prefill);
        let both = self.fused.step(Phase::Prefill, &[(b, 0, &other), (a, 0, ids)]);
        assert_eq!(both, [of_other.as_slice(), logits].concat(), "together and alone");

        let decoded = self.fused.step(Phase::Decode, &[(a, n, &[11]), (b, other.len(), &[7])]);
        let of_other = self.fused.step(Phase::Decode, &[(alone, other.len(), &[7])]);
        let first = self.first;
        let of_ids = self.fused.step(Phase::Decode, &[(first, n, &[11])]);
        assert_eq!(decoded, [of_ids, of_other].concat(), "decoded together and alone");
    }

    fn check(&mut self, ids: &[i32], cut: usize, nth: usize) {
        let n = ids.len();
        let cuts: Vec<usize> = [cut % n, n - cut % n].into_iter().filter(|n| *n > 0).collect();
        self.first = self.fused.next;
        let fused = self.fused.feed(ids, &[n], Phase::Prefill);
        assert_eq!(fused, self.unfused.feed(ids, &[n], Phase::Prefill), "fused and unfused");
        assert_eq!(self.fused.feed(ids, &cuts, Phase::Prefill), fused, "chunked at {cuts:?}");
        assert_eq!(self.fused.feed(ids, &vec![1; n], Phase::Decode), fused, "token by token");
        let pairs: Vec<usize> = (0..n).step_by(5).map(|i| (n - i).min(5)).collect();
        assert_eq!(self.fused.feed(ids, &pairs, Phase::Decode), fused, "five rows at a time");

        self.together(ids, &fused);

        self.interp.step(&[(nth, ids)]);
        let scale = fused.iter().fold(1.0f32, |m, x| m.max(x.abs()));
        let diff = max_diff(&self.interp.logits(), &fused) / scale;
        // A packed value that rounds the other way moves what follows: only exact caches are compared closely.
        let bound = if self.packed { f32::INFINITY } else { 2e-5 };
        assert!(diff <= bound, "interpreter and CPU differ by {diff}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn all_executions_agree(d in draw(), ids in prop::collection::vec(0i32..61, 1..40), cut in 0usize..40) {
        Under::new(&d, 1).check(&ids, cut, 0);
    }
}

/// Ratios of a pattern's layers.
fn ratios(pattern: usize) -> Vec<u64> {
    let list = PATTERNS[pattern].0.trim_matches(['[', ']']);
    list.split(',').map(|ratio| ratio.trim().parse().unwrap()).collect()
}

/// Lengths at which something of the architecture changes: one token, the window and its neighbours, the shortest
/// prompt whose selections are full twice over and its neighbours, for every ratio.
fn edges(d: &Draw) -> Vec<usize> {
    let spans = ratios(d.pattern).into_iter().filter(|ratio| *ratio > 0).map(|ratio| 2 * d.topk * ratio);
    let around = spans.chain([d.window]).flat_map(|n| [n - 1, n, n + 1]);
    let lengths: BTreeSet<u64> = around.chain([1, 9, 13]).filter(|n| *n > 0).collect();
    lengths.into_iter().map(|n| usize::try_from(n).unwrap()).collect()
}

/// Every way of executing at those lengths, for one pattern of layers. Odd and even patterns differ in whether caches
/// are packed, so that both kinds meet every edge.
fn edge_lengths_agree(pattern: usize) {
    let draw = Draw {
        hidden: 32,
        heads: 2,
        head_dim: 32,
        window: 7,
        pattern,
        topk: 2,
        streams: 2,
        single_pass: pattern != 5,
        moe: true,
        experts: (3, 1),
        engram: pattern % 3 == 1,
        packed: pattern.is_multiple_of(2),
        sink: true,
        seed: 7,
    };
    let lengths = edges(&draw);
    let mut under = Under::new(&draw, 2 * lengths.len() as u64);
    for (i, n) in lengths.into_iter().enumerate() {
        let ids: Vec<i32> = (0..n as i32).map(|i| (i * i * 7 + 3 * i) % 61).collect();
        for (j, cut) in [1, n / 2].into_iter().enumerate() {
            under.check(&ids, cut, 2 * i + j);
        }
    }
}

/// One test a pattern, so that they run at once and a failure names its pattern.
macro_rules! edge_tests {
    ($($name:ident: $pattern:literal,)*) => {
        $(#[test]
        fn $name() {
            edge_lengths_agree($pattern);
        })*

        #[test]
        fn every_pattern_has_its_edges() {
            assert_eq!([$($pattern),*], std::array::from_fn::<usize, { PATTERNS.len() }, _>(|i| i));
        }
    };
}

edge_tests! {
    edges_of_windows_only: 0,
    edges_of_groups_of_two: 1,
    edges_of_single_rows_and_a_reindex: 2,
    edges_of_two_sources: 3,
    edges_of_candidates: 4,
    edges_of_overlapping_and_dense_groups: 5,
    edges_of_groups_of_five: 6,
}

#[test]
fn lengths_meet_the_edges() {
    let draw = |pattern| Draw {
        hidden: 32,
        heads: 1,
        head_dim: 32,
        window: 7,
        pattern,
        topk: 2,
        streams: 1,
        single_pass: true,
        moe: false,
        experts: (2, 1),
        engram: false,
        packed: false,
        sink: false,
        seed: 0,
    };
    assert_eq!(edges(&draw(0)), [1, 6, 7, 8, 9, 13]);
    // Ratios 3 and 2, a top-k of 2: 2·2·3 and 2·2·2.
    assert_eq!(edges(&draw(3)), [1, 6, 7, 8, 9, 11, 12, 13]);
    // Ratios 4 and 8.
    assert_eq!(edges(&draw(5)), [1, 6, 7, 8, 9, 13, 15, 16, 17, 31, 32, 33]);
}
