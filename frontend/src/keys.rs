//! The keys of a spec: one table that checking, the JSON Schema and the documentation share.
//!
//! Paths are dotted. Keys are the names of published configurations where there is one, in sections.
//! Sections may be left out when every key in them has a default or when they are optional as a whole.

/// One key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Key {
    /// Dotted path, such as `attention.head_dim`.
    pub path: &'static str,
    /// What it takes.
    pub kind: Kind,
    /// What happens without it.
    pub need: Need,
    /// Unit of its value; empty where there is none.
    pub unit: &'static str,
    /// What it means.
    pub doc: &'static str,
}

/// What a key takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// A mapping of the keys below it.
    Section,
    /// A mapping, or this word instead.
    SectionOr(&'static str),
    /// An integer or an expression, within bounds.
    Int(u64, u64),
    /// A number within bounds.
    Float(f64, f64),
    /// `true` or `false`.
    Bool,
    /// A text.
    Text,
    /// A text that is safe as a file name.
    Name,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// An integer of each layer: a list, or a mapping of layer patterns to values.
    PerLayer(u64),
    /// Layers, ascending: a list of numbers and patterns, or one pattern.
    Layers,
    /// A list of integers within bounds.
    Ints(u64, u64),
    /// Known, but not built yet.
    Unsupported,
}

/// What happens without a key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Need {
    /// It is an error when its section is there.
    Required,
    /// It means this YAML value.
    Default(&'static str),
    /// The feature is absent, or the value is derived as `doc` says.
    Optional,
}

const REQUIRED: Need = Need::Required;
const OPTIONAL: Need = Need::Optional;

const fn key(path: &'static str, kind: Kind, need: Need, unit: &'static str, doc: &'static str) -> Key {
    Key { path, kind, need, unit, doc }
}

const fn or(value: &'static str) -> Need {
    Need::Default(value)
}

/// Formats of cache rows that keep one layout for all channels.
const ROWS: &[&str] = &["f32", "bf16", "fp8", "mxfp4", "fp4"];
/// The same, and rows whose rotary channels stay bf16.
const KV_ROWS: &[&str] =
    &["f32", "bf16", "fp8", "mxfp4", "fp4", "fp8_rope16", "fp8_rope32", "fp8_rope64", "fp8_rope128"];
const WEIGHTS: &[&str] = &["f32", "bf16", "fp8_32", "fp8_128", "fp4"];
const PLAIN_WEIGHTS: &[&str] = &["f32", "bf16"];
const TABLE_ROWS: &[&str] = &["f32", "bf16", "fp8"];
const QUANTISED: &[&str] = &["exact", "fp8"];

/// Every key, sections before the keys in them.
#[rustfmt::skip]
pub const KEYS: &[Key] = &[
    key("base", Kind::Text, OPTIONAL, "path", "Another spec that this one changes, relative to this file. Keys given here replace the base's; `null` removes a key or a section."),
    key("name", Kind::Name, REQUIRED, "", "Name of the model, used in file names and messages only."),
    key("vocab_size", Kind::Int(1, 1 << 30), REQUIRED, "tokens", "Rows of the embedding and of the output head."),
    key("hidden_size", Kind::Int(1, 1 << 20), REQUIRED, "channels", "Width of the residual stream."),
    key("num_hidden_layers", Kind::Int(1, 1024), REQUIRED, "layers", "Number of layers."),
    key("max_position_embeddings", Kind::Int(1, 1 << 30), REQUIRED, "tokens", "Longest context."),
    key("rms_norm_eps", Kind::Float(0.0, 1.0), REQUIRED, "", "Epsilon of every RMS normalisation."),

    key("attention", Kind::Section, REQUIRED, "", "Query, window and output projection, alike in every layer."),
    key("attention.num_attention_heads", Kind::Int(1, 4096), REQUIRED, "heads", "Query heads of the whole model, before tensor parallelism."),
    key("attention.head_dim", Kind::Int(2, 4096), REQUIRED, "channels", "Channels of one head; keys and values share one latent of this width."),
    key("attention.qk_rope_head_dim", Kind::Int(2, 4096), REQUIRED, "channels", "Rotated channels, the last ones of a head."),
    key("attention.q_lora_rank", Kind::Int(1, 1 << 20), REQUIRED, "channels", "Width of the query's low-rank bottleneck."),
    key("attention.o_groups", Kind::Int(1, 4096), REQUIRED, "groups", "Groups of the output projection; each takes an equal share of the heads."),
    key("attention.o_lora_rank", Kind::Int(1, 1 << 20), REQUIRED, "channels", "Rank of each output group."),
    key("attention.sliding_window", Kind::Int(1, 1 << 20), REQUIRED, "tokens", "Window of uncompressed rows, the token itself included."),
    key("attention.attn_sink", Kind::Bool, or("true"), "", "Whether a learned logit per head joins the softmax denominator."),
    key("attention.per_head_q_norm", Kind::Bool, or("false"), "", "Whether queries are RMS-normalised per head, with no weight, before rotation."),
    key("attention.kv_lora_rank", Kind::Unsupported, OPTIONAL, "", "Latent rank of multi-head latent attention (V3.2)."),
    key("attention.qk_nope_head_dim", Kind::Unsupported, OPTIONAL, "", "Unrotated channels of multi-head latent attention (V3.2)."),
    key("attention.v_head_dim", Kind::Unsupported, OPTIONAL, "", "Value channels of multi-head latent attention (V3.2)."),

    key("rope", Kind::Section, REQUIRED, "", "Rotary embeddings: layers of ratio 0 use `rope_theta` alone, the others `compress_rope_theta` with YaRN."),
    key("rope.rope_theta", Kind::Float(1.0, 1e12), REQUIRED, "", "Base of window-only layers."),
    key("rope.compress_rope_theta", Kind::Float(1.0, 1e12), OPTIONAL, "", "Base of layers that read compressed rows; `rope_theta` when left out."),
    key("rope.yarn", Kind::Section, OPTIONAL, "", "YaRN frequency interpolation of the latter, without a magnitude factor."),
    key("rope.yarn.factor", Kind::Float(1.0, 1e6), REQUIRED, "", "Context extension factor."),
    key("rope.yarn.beta_fast", Kind::Float(1e-6, 1e6), or("32"), "rotations", "Fast boundary, in rotations over the original context."),
    key("rope.yarn.beta_slow", Kind::Float(1e-6, 1e6), or("1"), "rotations", "Slow boundary, likewise."),
    key("rope.yarn.original_max_position_embeddings", Kind::Int(1, 1 << 30), REQUIRED, "tokens", "Context of pre-training."),

    key("compress", Kind::Section, REQUIRED, "", "Compressed key/value rows."),
    key("compress.compress_ratios", Kind::PerLayer(1 << 20), REQUIRED, "tokens per row", "Ratio of each layer; 0 is window only. A list, or a mapping such as `{\"0..2\": 0, \"2..\": 4}`."),
    key("compress.kv_source_layer_ids", Kind::Layers, or("[]"), "layers", "Layers that write compressed rows; later layers of the same ratio read them."),
    key("compress.dense_ratios", Kind::Ints(1, 1 << 20), or("[]"), "tokens per row", "Ratios whose layers attend every visible row, with no selection (HCA)."),
    key("compress.overlap_ratios", Kind::Ints(2, 1 << 20), or("[]"), "tokens per row", "Ratios whose windows overlap the previous one (CSA of V4): two series of channels."),
    key("compress.position_bias", Kind::Bool, or("false"), "", "Whether the gate has a learned bias per slot of a window (`ape`)."),

    key("index", Kind::Section, OPTIONAL, "", "The sparse indexer, which scores compressed rows and selects some; absent when no layer selects."),
    key("index.index_source_layer_ids", Kind::Layers, REQUIRED, "layers", "Layers that score and select; later layers up to the next one read their selection."),
    key("index.index_n_heads", Kind::Int(1, 4096), REQUIRED, "heads", "Index heads."),
    key("index.index_head_dim", Kind::Int(2, 4096), REQUIRED, "channels", "Channels of an index head."),
    key("index.index_topk", Kind::Int(1, 1 << 20), REQUIRED, "rows", "Rows selected per query."),
    key("index.keys_from", Kind::Choice(&["latent", "hidden"]), or("latent"), "", "Where index keys come from: a linear of the compressed latent before rotation, or a second compressor on the hidden state (V4)."),
    key("index.hadamard", Kind::Bool, or("false"), "", "Whether index queries and keys pass a Hadamard rotation before quantisation."),
    key("index.candidates", Kind::Section, OPTIONAL, "", "Two-level selection: one layer picks blocks, later index sources score only those."),
    key("index.candidates.candidate_source_layer_id", Kind::Int(0, 1023), REQUIRED, "layer", "The layer that picks."),
    key("index.candidates.candidate_topk_blocks", Kind::Int(1, 1 << 20), REQUIRED, "blocks", "Blocks kept per query."),
    key("index.candidates.candidate_block_size", Kind::Int(1, 1 << 20), REQUIRED, "rows", "Compressed rows per block."),

    key("kv_cache", Kind::Section, OPTIONAL, "", "Row formats of the caches when `numerics.caches` is `packed`."),
    key("kv_cache.window", Kind::Choice(KV_ROWS), or("fp8"), "", "Window rows. `fp8`: E4M3 with a power-of-two scale per 32 channels; `fp8_rope64`: the same per 64 with the last 64 channels in bf16."),
    key("kv_cache.main", Kind::Choice(KV_ROWS), or("fp4"), "", "Compressed rows. `fp4`: E2M1 with an E4M3 scale per 16 channels."),
    key("kv_cache.index", Kind::Choice(ROWS), or("mxfp4"), "", "Index keys and queries. `mxfp4`: E2M1 with a power-of-two scale per 32 channels."),

    key("residual", Kind::SectionOr("plain"), or("plain"), "", "How sublayers join the residual stream: `plain` addition, or hyper-connections (mHC) with the keys below."),
    key("residual.hc_mult", Kind::Int(1, 16), REQUIRED, "streams", "Residual streams."),
    key("residual.hc_sinkhorn_iters", Kind::Int(1, 1000), REQUIRED, "iterations", "Sinkhorn iterations, the first softmax pass included."),
    key("residual.hc_eps", Kind::Float(0.0, 1.0), REQUIRED, "", "Epsilon of the mix."),
    key("residual.single_pass", Kind::Bool, or("true"), "", "Whether a sublayer's collapse uses the previous sublayer's mix (V4.1) or its own (V4)."),
    key("residual.head", Kind::Choice(&["last_pre", "learned"]), or("last_pre"), "", "How the streams become the head's input: the last sublayer's pre-mix, or a learned sigmoid mix."),

    key("moe", Kind::Section, OPTIONAL, "", "Mixture of experts in every layer. A spec has either `moe` or `dense_ffn`."),
    key("moe.n_routed_experts", Kind::Int(1, 65536), REQUIRED, "experts", "Routed experts of the whole model, before expert parallelism."),
    key("moe.num_experts_per_tok", Kind::Int(1, 256), REQUIRED, "experts", "Routed experts per token."),
    key("moe.n_shared_experts", Kind::Int(0, 1), or("0"), "experts", "Shared experts."),
    key("moe.moe_intermediate_size", Kind::Int(1, 1 << 20), REQUIRED, "channels", "Inner width of an expert."),
    key("moe.norm_topk_prob", Kind::Bool, or("true"), "", "Whether the chosen weights are divided by their sum."),
    key("moe.routed_scaling_factor", Kind::Float(0.0, 1e6), or("1.0"), "", "Factor on the weights."),
    key("moe.swiglu_limit", Kind::Float(0.0, 1e6), or("0.0"), "", "Clamp of gate (above) and up projection (both sides); 0 is none."),
    key("moe.num_hash_layers", Kind::Int(0, 1024), or("0"), "layers", "The first layers, whose experts come from a table by token id."),
    key("moe.image_bias", Kind::Bool, or("false"), "", "Whether the checkpoint has a second selection bias for image tokens (`gate.bias_vl`)."),
    key("moe.n_group", Kind::Unsupported, OPTIONAL, "", "Expert groups (V3.2)."),
    key("moe.topk_group", Kind::Unsupported, OPTIONAL, "", "Expert groups per token (V3.2)."),
    key("moe.first_k_dense_replace", Kind::Unsupported, OPTIONAL, "", "Leading layers with a dense feed-forward (V3.2)."),

    key("dense_ffn", Kind::Section, OPTIONAL, "", "One SwiGLU in every layer instead of experts."),
    key("dense_ffn.intermediate_size", Kind::Int(1, 1 << 20), REQUIRED, "channels", "Inner width."),
    key("dense_ffn.swiglu_limit", Kind::Float(0.0, 1e6), or("0.0"), "", "Clamp of gate (above) and up projection (both sides); 0 is none."),

    key("engram", Kind::Section, OPTIONAL, "", "n-gram memory before some layers; absent in most models."),
    key("engram.engram_layer_ids", Kind::Layers, REQUIRED, "layers", "Layers with a memory before them."),
    key("engram.engram_num_embeddings", Kind::Ints(1, (1 << 31) - 1), OPTIONAL, "rows", "Rows of each table; they have to equal the sums of the derived bucket primes, and are those sums when left out."),
    key("engram.engram_max_ngram_size", Kind::Int(2, 16), REQUIRED, "tokens", "Largest n-gram; orders are 2 up to it."),
    key("engram.engram_n_heads", Kind::Int(1, 64), REQUIRED, "heads", "Hash heads per order."),
    key("engram.engram_head_dim", Kind::Int(1, 4096), REQUIRED, "channels", "Channels of one table row."),
    key("engram.engram_vocab_size", Kind::Int(2, 1 << 30), REQUIRED, "rows", "Buckets are primes from this number on."),
    key("engram.engram_compressed_vocab_size", Kind::Int(1, 1 << 30), REQUIRED, "tokens", "Distinct token ids after compression."),
    key("engram.engram_pad_token_id", Kind::Int(0, 1 << 30), REQUIRED, "token", "Token id whose compressed id stands for missing history."),

    key("weights", Kind::Section, OPTIONAL, "", "Storage formats of weights as published."),
    key("weights.dense", Kind::Choice(WEIGHTS), or("bf16"), "", "Attention projections, shared experts, Engram projection. `fp8_128`: E4M3 with a scale per 128 x 128 tile."),
    key("weights.experts", Kind::Choice(WEIGHTS), or("bf16"), "", "Routed experts. `fp4`: E2M1 with a scale per 32 inputs."),
    key("weights.other", Kind::Choice(PLAIN_WEIGHTS), or("bf16"), "", "Embedding, head, gate, compressor, index key and head-weight projections, norms."),
    key("weights.engram", Kind::Choice(TABLE_ROWS), or("fp8"), "", "Rows of Engram tables. `fp8`: E4M3 with a power-of-two scale per 32 channels."),

    key("numerics", Kind::Section, OPTIONAL, "", "Where values are rounded."),
    key("numerics.activations", Kind::Choice(&["f32", "bf16"]), or("bf16"), "", "Storage of values between operations."),
    key("numerics.linear_inputs", Kind::Choice(QUANTISED), or("exact"), "", "Operands of FP8 and FP4 linears: as they are, or E4M3 with a power-of-two scale per 32 channels."),
    key("numerics.wo_a_input", Kind::Choice(QUANTISED), or("exact"), "", "The same for the grouped output projection `wo_a`; exact as published."),
    key("numerics.caches", Kind::Choice(&["exact", "packed"]), or("packed"), "", "Cache rows and index queries: in the activation dtype, or in the formats of `kv_cache`."),
    key("numerics.batch_invariant", Kind::Bool, or("false"), "", "Whether a row's result must not depend on the other rows of the step."),

    key("parallel", Kind::Section, OPTIONAL, "", "How the model is split over GPUs; shapes are per rank."),
    key("parallel.tp", Kind::Int(1, 1024), or("1"), "ranks", "Tensor parallel ranks: heads, output groups, the input of `wo_b`, the shared expert."),
    key("parallel.ep", Kind::Int(1, 65536), or("1"), "ranks", "Expert parallel ranks: routed experts."),

    key("prefill", Kind::Section, OPTIONAL, "", "Options of the prefill schedule."),
    key("prefill.decoder_rows", Kind::Choice(&["all", "tail"]), or("all"), "", "Rows that run through the layers after the last source: every prompt row (exact), or the last `sliding_window` ones (bounded replay: exact for prompts within the window)."),

    key("budgets", Kind::Section, OPTIONAL, "", "Upper bounds on the built result; exceeding one fails the build at its key."),
    key("budgets.kv_bytes_per_token", Kind::Float(0.0, 1e12), OPTIONAL, "bytes per token", "Bytes that each token adds to the caches for good."),
    key("budgets.launches", Kind::Section, OPTIONAL, "", "Bounds on kernel launches."),
    key("budgets.launches.decode", Kind::Section, OPTIONAL, "", "In decode: of one layer of a role, or of the whole step."),
    key("budgets.launches.decode.swa", Kind::Int(0, 1 << 30), OPTIONAL, "launches", "Window-only layers."),
    key("budgets.launches.decode.full", Kind::Int(0, 1 << 30), OPTIONAL, "launches", "Layers that write and select."),
    key("budgets.launches.decode.reindex", Kind::Int(0, 1 << 30), OPTIONAL, "launches", "Layers that select from earlier rows."),
    key("budgets.launches.decode.reuse", Kind::Int(0, 1 << 30), OPTIONAL, "launches", "Layers that reuse rows and selection."),
    key("budgets.launches.decode.hca", Kind::Int(0, 1 << 30), OPTIONAL, "launches", "Layers that read every visible row."),
    key("budgets.launches.decode.step", Kind::Int(0, 1 << 30), OPTIONAL, "launches", "The whole step."),
    key("budgets.launches.prefill", Kind::Section, OPTIONAL, "", "The same in prefill."),
    key("budgets.launches.prefill.swa", Kind::Int(0, 1 << 30), OPTIONAL, "launches", "Window-only layers."),
    key("budgets.launches.prefill.full", Kind::Int(0, 1 << 30), OPTIONAL, "launches", "Layers that write and select."),
    key("budgets.launches.prefill.reindex", Kind::Int(0, 1 << 30), OPTIONAL, "launches", "Layers that select from earlier rows."),
    key("budgets.launches.prefill.reuse", Kind::Int(0, 1 << 30), OPTIONAL, "launches", "Layers that reuse rows and selection."),
    key("budgets.launches.prefill.hca", Kind::Int(0, 1 << 30), OPTIONAL, "launches", "Layers that read every visible row."),
    key("budgets.launches.prefill.step", Kind::Int(0, 1 << 30), OPTIONAL, "launches", "The whole step."),

    key("dspark", Kind::Unsupported, OPTIONAL, "", "Draft stages of speculative decoding (DSpark)."),
    key("num_nextn_predict_layers", Kind::Unsupported, OPTIONAL, "", "Draft stages of speculative decoding (MTP, DSpark)."),
    key("mtp", Kind::Unsupported, OPTIONAL, "", "Draft stages of speculative decoding (MTP)."),
    key("vision", Kind::Unsupported, OPTIONAL, "", "A vision tower."),
    key("vision_config", Kind::Unsupported, OPTIONAL, "", "A vision tower."),
    key("mla", Kind::Unsupported, OPTIONAL, "", "Multi-head latent attention (V3.2)."),
];

/// The key at a dotted path.
pub fn find(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

/// The keys directly inside a section; the empty path is the top level.
pub fn children(section: &str) -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(move |key| parent(key.path) == section)
}

/// The section of a path; empty at the top level.
pub fn parent(path: &str) -> &str {
    path.rsplit_once('.').map_or("", |(section, _)| section)
}

/// The last component of a path.
pub fn last(path: &str) -> &str {
    path.rsplit_once('.').map_or(path, |(_, last)| last)
}

impl Key {
    /// Whether it is a mapping of further keys.
    pub fn is_section(&self) -> bool {
        matches!(self.kind, Kind::Section | Kind::SectionOr(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order() {
        for (at, key) in KEYS.iter().enumerate() {
            let section = parent(key.path);
            let known = section.is_empty() || KEYS[..at].iter().any(|k| k.path == section && k.is_section());
            assert!(known, "{} comes before its section", key.path);
            assert!(KEYS[..at].iter().all(|k| k.path != key.path), "{} twice", key.path);
            assert!(key.doc.ends_with('.'), "{}", key.path);
        }
    }
}
