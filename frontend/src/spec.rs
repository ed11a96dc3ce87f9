//! The resolved architecture: every number that inference needs, checked, with layer patterns expanded.
//!
//! `validate` produces a [`Spec`] from the YAML tree; `lower` turns it into an op graph. Nothing here
//! knows a model's name. Layer numbers are 0-based.

use dsc_ir::dtype::{RowFormat, WeightFormat};

/// A whole architecture.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// Name of the model, used for file names and messages only.
    pub name: String,
    /// Rows of the embedding and of the output head.
    pub vocab_size: u64,
    /// Width of the residual stream.
    pub hidden_size: u64,
    /// Number of layers.
    pub num_hidden_layers: u32,
    /// Longest context in tokens.
    pub max_position_embeddings: u64,
    /// Epsilon of every RMS normalisation.
    pub rms_norm_eps: f32,
    /// Attention of every layer.
    pub attention: Attention,
    /// Rotary embeddings.
    pub rope: Rope,
    /// Compressed key/value sources.
    pub compress: Compress,
    /// The sparse indexer; absent when no layer selects.
    pub index: Option<Index>,
    /// Formats of cached rows when `numerics.caches` is `packed`.
    pub kv_cache: KvCache,
    /// How sublayers join the residual stream.
    pub residual: Residual,
    /// The feed-forward sublayer.
    pub ffn: Ffn,
    /// n-gram memory; absent in most models.
    pub engram: Option<Engram>,
    /// Storage formats of weights.
    pub weights: Weights,
    /// Where values are rounded.
    pub numerics: Numerics,
    /// How the model is split over GPUs.
    pub parallel: Parallel,
    /// Options of the prefill schedule.
    pub prefill: Prefill,
    /// What must hold of the result.
    pub budgets: Budgets,
}

/// Query, window and output projection sizes, alike in every layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// Query heads of the whole model (before tensor parallelism).
    pub num_attention_heads: u64,
    /// Channels of one head; keys and values share one latent of this width.
    pub head_dim: u64,
    /// Rotated channels, the last ones of a head.
    pub qk_rope_head_dim: u64,
    /// Width of the query's low-rank bottleneck.
    pub q_lora_rank: u64,
    /// Groups of the output projection.
    pub o_groups: u64,
    /// Rank of each output group.
    pub o_lora_rank: u64,
    /// Window of uncompressed rows, the token itself included.
    pub sliding_window: u64,
    /// Whether a learned logit per head joins the softmax denominator.
    pub attn_sink: bool,
    /// Whether queries are RMS-normalised per head (no weight) before rotation.
    pub per_head_q_norm: bool,
}

/// Rotary embedding: layers of ratio 0 use `rope_theta` alone, the others `compress_rope_theta` with YaRN.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Base of window-only layers.
    pub rope_theta: f64,
    /// Base of layers that read compressed rows.
    pub compress_rope_theta: f64,
    /// YaRN frequency scaling of the latter.
    pub yarn: Option<Yarn>,
}

/// YaRN frequency interpolation (no magnitude factor).
#[derive(Debug, Clone, PartialEq)]
pub struct Yarn {
    /// Context extension factor.
    pub factor: f64,
    /// Fast boundary, in rotations over the original context.
    pub beta_fast: f64,
    /// Slow boundary, likewise.
    pub beta_slow: f64,
    /// Context of pre-training, in tokens.
    pub original_max_position_embeddings: u64,
}

/// Compressed key/value rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Compress {
    /// Ratio of each layer; 0 is window only.
    pub compress_ratios: Vec<u32>,
    /// Layers that write compressed rows, ascending.
    pub kv_source_layer_ids: Vec<u32>,
    /// Ratios whose layers attend every visible compressed row, with no selection (HCA).
    pub dense_ratios: Vec<u32>,
    /// Ratios whose windows overlap the previous one (V4's CSA): two series of channels.
    pub overlap_ratios: Vec<u32>,
    /// Whether the gate gets a learned bias per slot of the group (`ape`).
    pub position_bias: bool,
}

/// The sparse indexer.
#[derive(Debug, Clone, PartialEq)]
pub struct Index {
    /// Layers that score and select, ascending.
    pub index_source_layer_ids: Vec<u32>,
    /// Index heads.
    pub index_n_heads: u64,
    /// Channels of an index head.
    pub index_head_dim: u64,
    /// Rows selected per query.
    pub index_topk: u64,
    /// Where index keys come from.
    pub keys_from: IndexKeys,
    /// Whether index queries and keys pass a Hadamard rotation before quantisation.
    pub hadamard: bool,
    /// Candidate blocks that later index sources stay inside.
    pub candidates: Option<Candidates>,
}

/// Origin of index keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexKeys {
    /// A linear of the compressed latent before rotation (V4.1).
    Latent,
    /// A second compressor on the hidden state (V4).
    Hidden,
}

/// Two-level selection: one layer picks blocks, later index sources score only those.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidates {
    /// The layer that picks.
    pub candidate_source_layer_id: u32,
    /// Blocks kept per query.
    pub candidate_topk_blocks: u64,
    /// Compressed rows per block.
    pub candidate_block_size: u64,
}

/// Row formats of the caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvCache {
    /// Window rows.
    pub window: RowFormat,
    /// Compressed rows.
    pub main: RowFormat,
    /// Index keys (and index queries).
    pub index: RowFormat,
}

/// Residual stream.
#[derive(Debug, Clone, PartialEq)]
pub enum Residual {
    /// `x + f(norm(x))`.
    Plain,
    /// Manifold-constrained hyper-connections.
    Mhc(Mhc),
}

/// Hyper-connection parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct Mhc {
    /// Streams.
    pub hc_mult: u64,
    /// Sinkhorn iterations, the first softmax pass included.
    pub hc_sinkhorn_iters: u32,
    /// Epsilon of the mix.
    pub hc_eps: f32,
    /// Whether a sublayer's collapse uses the previous sublayer's mix (V4.1) or its own (V4).
    pub single_pass: bool,
    /// How the streams become the head's input.
    pub head: MhcHead,
}

/// Final collapse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MhcHead {
    /// With the pre-mix of the last sublayer.
    LastPre,
    /// With a learned sigmoid mix (`hc_head_*`).
    Learned,
}

/// Feed-forward sublayer.
#[derive(Debug, Clone, PartialEq)]
pub enum Ffn {
    /// Mixture of experts in every layer.
    Moe(Moe),
    /// One SwiGLU of this inner width in every layer (weights `ffn.w1`, `ffn.w3`, `ffn.w2`).
    Dense {
        /// Inner width.
        intermediate_size: u64,
        /// Clamp of gate and up projections; 0 is none.
        swiglu_limit: f32,
    },
}

/// Mixture of experts.
#[derive(Debug, Clone, PartialEq)]
pub struct Moe {
    /// Routed experts of the whole model (before expert parallelism).
    pub n_routed_experts: u64,
    /// Experts per token.
    pub num_experts_per_tok: u64,
    /// Shared experts (0 or 1).
    pub n_shared_experts: u64,
    /// Inner width of an expert.
    pub moe_intermediate_size: u64,
    /// Whether the chosen weights are divided by their sum.
    pub norm_topk_prob: bool,
    /// Factor on the weights.
    pub routed_scaling_factor: f32,
    /// Clamp of gate and up projections; 0 is none.
    pub swiglu_limit: f32,
    /// The first layers, whose experts come from a table by token id.
    pub num_hash_layers: u32,
    /// Whether image tokens have a selection bias of their own (`gate.bias_vl`).
    pub image_bias: bool,
}

/// n-gram memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Engram {
    /// Layers with a memory before them, ascending.
    pub engram_layer_ids: Vec<u32>,
    /// Table rows of each, equal to the sums of the derived bucket primes.
    pub engram_num_embeddings: Vec<u64>,
    /// Largest n-gram; orders are 2 up to it.
    pub engram_max_ngram_size: u32,
    /// Hash heads per order.
    pub engram_n_heads: u32,
    /// Channels of one table row.
    pub engram_head_dim: u64,
    /// Smallest bucket count before the search for primes.
    pub engram_vocab_size: u64,
    /// Distinct compressed token ids.
    pub engram_compressed_vocab_size: u64,
    /// Token id whose compressed id stands for missing history.
    pub engram_pad_token_id: u64,
}

/// Storage formats of weights as published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weights {
    /// Attention projections, shared experts, Engram projection.
    pub dense: WeightFormat,
    /// Routed experts.
    pub experts: WeightFormat,
    /// Embedding, head, gate, compressor, index key and head-weight projections, norms (`bf16` or `f32`).
    pub other: WeightFormat,
    /// Engram tables: one row per bucket.
    pub engram: RowFormat,
}

/// Where values are rounded; see `docs/spec.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numerics {
    /// Storage of values between operations.
    pub activations: Activations,
    /// Whether operands of FP8 and FP4 linears are quantised to FP8 per 32 channels.
    pub linear_inputs: LinearInputs,
    /// The same for the grouped output projection `wo_a`.
    pub wo_a_input: LinearInputs,
    /// Whether caches (and index queries) hold packed rows.
    pub caches: Caches,
    /// Whether a row's result must not depend on the other rows of the step.
    pub batch_invariant: bool,
}

/// Storage of values between operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activations {
    /// 32-bit floats.
    F32,
    /// Rounded to bfloat16 where the published model rounds.
    Bf16,
}

/// Operands of quantised linears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinearInputs {
    /// As they are.
    Exact,
    /// E4M3 with one power-of-two scale per 32 channels.
    Fp8,
}

/// Cache contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caches {
    /// In the activation dtype.
    Exact,
    /// In the packed row formats of `kv_cache`.
    Packed,
}

/// Degrees of parallelism; shapes in the graph are per rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parallel {
    /// Tensor parallel ranks: heads, output groups, `wo_b` input, shared expert.
    pub tp: u64,
    /// Expert parallel ranks: routed experts.
    pub ep: u64,
}

/// Options of the prefill schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefill {
    /// Rows that run through the layers after the last source.
    pub decoder_rows: DecoderRows,
}

/// Rows of the decoder part in prefill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecoderRows {
    /// Every prompt row (exact).
    All,
    /// The last `sliding_window` rows of each prompt (bounded replay).
    Tail,
}

/// Assertions on the built result; `None` is unchecked.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Budgets {
    /// Bytes of cache per token, as an upper bound.
    pub kv_bytes_per_token: Option<f64>,
    /// Launch bounds: (phase, what, bound), where `what` is a role or `step`.
    pub launches: Vec<LaunchBudget>,
}

/// One bound on launches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchBudget {
    /// `decode` or `prefill`.
    pub phase: String,
    /// A role (`swa`, `full`, `reindex`, `reuse`, `hca`) or `step`.
    pub what: String,
    /// Largest number allowed.
    pub at_most: u64,
}

/// What a layer does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Window only.
    Swa,
    /// Writes compressed rows and selects from them.
    Full,
    /// Selects anew from an earlier layer's rows.
    Reindex,
    /// Reads an earlier layer's rows and selection.
    Reuse,
    /// Reads every visible compressed row.
    Hca,
}

impl Role {
    /// The name used in output.
    pub fn name(self) -> &'static str {
        match self {
            Role::Swa => "swa",
            Role::Full => "full",
            Role::Reindex => "reindex",
            Role::Reuse => "reuse",
            Role::Hca => "hca",
        }
    }
}

impl Spec {
    /// Ratio of layer `l` (0: window only).
    pub fn ratio(&self, l: u32) -> u32 {
        self.compress.compress_ratios.get(l as usize).copied().unwrap_or(0)
    }

    /// Whether layer `l` writes compressed rows.
    pub fn is_kv_source(&self, l: u32) -> bool {
        self.compress.kv_source_layer_ids.contains(&l)
    }

    /// The last layer that writes compressed rows.
    pub fn last_source(&self) -> Option<u32> {
        self.compress.kv_source_layer_ids.iter().copied().max()
    }

    /// Whether layer `l` scores and selects.
    pub fn is_index_source(&self, l: u32) -> bool {
        self.index.as_ref().is_some_and(|i| i.index_source_layer_ids.contains(&l))
    }

    /// The layer whose compressed rows layer `l` reads: the nearest source at or before it.
    pub fn owner(&self, l: u32) -> Option<u32> {
        if self.ratio(l) == 0 {
            return None;
        }
        self.compress.kv_source_layer_ids.iter().copied().filter(|&s| s <= l).max()
    }

    /// The layer whose selection layer `l` reads: the nearest index source at or before it.
    pub fn selector(&self, l: u32) -> Option<u32> {
        if self.ratio(l) == 0 || self.compress.dense_ratios.contains(&self.ratio(l)) {
            return None;
        }
        self.index.as_ref()?.index_source_layer_ids.iter().copied().filter(|&s| s <= l).max()
    }

    /// Role of layer `l`.
    pub fn role(&self, l: u32) -> Role {
        let ratio = self.ratio(l);
        if ratio == 0 {
            Role::Swa
        } else if self.compress.dense_ratios.contains(&ratio) {
            Role::Hca
        } else if self.is_kv_source(l) {
            Role::Full
        } else if self.is_index_source(l) {
            Role::Reindex
        } else {
            Role::Reuse
        }
    }
}
