//! The [`Spec`] of values that passed every check.

use super::feed_forward::memory;
use super::values::Values;
use crate::engram::{self, EngramTable};
use crate::spec::{
    Activations, Attention, Budgets, Caches, Candidates, Compress, DecoderRows, Engram, Ffn, Index, IndexKeys, KvCache,
    LaunchBudget, LinearInputs, Mhc, MhcHead, Moe, Numerics, Parallel, Prefill, Residual, Rope, Spec, Weights, Yarn,
};
use dsc_ir::dtype::{RowFormat, WeightFormat};

pub(super) fn spec(v: &Values<'_>) -> Option<Spec> {
    Some(Spec {
        name: v.text("name")?.to_owned(),
        vocab_size: v.int("vocab_size")?,
        hidden_size: v.int("hidden_size")?,
        num_hidden_layers: narrow(v.int("num_hidden_layers")?)?,
        max_position_embeddings: v.int("max_position_embeddings")?,
        rms_norm_eps: v.float("rms_norm_eps")? as f32,
        attention: attention(v)?,
        rope: rope(v)?,
        compress: compress(v)?,
        index: if v.has("index") { Some(index(v)?) } else { None },
        kv_cache: KvCache {
            window: row(v, "kv_cache.window")?,
            main: row(v, "kv_cache.main")?,
            index: row(v, "kv_cache.index")?,
        },
        residual: if v.has("residual") { Residual::Mhc(mhc(v)?) } else { Residual::Plain },
        ffn: if v.has("moe") { Ffn::Moe(moe(v)?) } else { dense_ffn(v)? },
        engram: if v.has("engram") { Some(engram_with_rows(v)?) } else { None },
        weights: Weights {
            dense: weight(v, "weights.dense")?,
            experts: weight(v, "weights.experts")?,
            other: weight(v, "weights.other")?,
            engram: row(v, "weights.engram")?,
        },
        numerics: numerics(v)?,
        parallel: Parallel { tp: v.int("parallel.tp")?, ep: v.int("parallel.ep")? },
        prefill: Prefill { decoder_rows: decoder_rows(v)? },
        budgets: budgets(v),
    })
}

fn narrow(value: u64) -> Option<u32> {
    u32::try_from(value).ok()
}

fn narrow_list(v: &Values<'_>, path: &str) -> Option<Vec<u32>> {
    v.list(path)?.iter().map(|value| narrow(*value)).collect()
}

fn row(v: &Values<'_>, path: &str) -> Option<RowFormat> {
    RowFormat::parse(v.text(path)?)
}

fn weight(v: &Values<'_>, path: &str) -> Option<WeightFormat> {
    WeightFormat::parse(v.text(path)?)
}

fn attention(v: &Values<'_>) -> Option<Attention> {
    Some(Attention {
        num_attention_heads: v.int("attention.num_attention_heads")?,
        head_dim: v.int("attention.head_dim")?,
        qk_rope_head_dim: v.int("attention.qk_rope_head_dim")?,
        q_lora_rank: v.int("attention.q_lora_rank")?,
        o_groups: v.int("attention.o_groups")?,
        o_lora_rank: v.int("attention.o_lora_rank")?,
        sliding_window: v.int("attention.sliding_window")?,
        attn_sink: v.flag("attention.attn_sink")?,
        per_head_q_norm: v.flag("attention.per_head_q_norm")?,
    })
}

fn rope(v: &Values<'_>) -> Option<Rope> {
    let rope_theta = v.float("rope.rope_theta")?;
    let yarn = if v.has("rope.yarn") {
        Some(Yarn {
            factor: v.float("rope.yarn.factor")?,
            beta_fast: v.float("rope.yarn.beta_fast")?,
            beta_slow: v.float("rope.yarn.beta_slow")?,
            original_max_position_embeddings: v.int("rope.yarn.original_max_position_embeddings")?,
        })
    } else {
        None
    };
    Some(Rope { rope_theta, compress_rope_theta: v.float("rope.compress_rope_theta").unwrap_or(rope_theta), yarn })
}

fn compress(v: &Values<'_>) -> Option<Compress> {
    Some(Compress {
        compress_ratios: narrow_list(v, "compress.compress_ratios")?,
        kv_source_layer_ids: narrow_list(v, "compress.kv_source_layer_ids")?,
        dense_ratios: narrow_list(v, "compress.dense_ratios")?,
        overlap_ratios: narrow_list(v, "compress.overlap_ratios")?,
        position_bias: v.flag("compress.position_bias")?,
    })
}

fn index(v: &Values<'_>) -> Option<Index> {
    let candidates = if v.has("index.candidates") {
        Some(Candidates {
            candidate_source_layer_id: narrow(v.int("index.candidates.candidate_source_layer_id")?)?,
            candidate_topk_blocks: v.int("index.candidates.candidate_topk_blocks")?,
            candidate_block_size: v.int("index.candidates.candidate_block_size")?,
        })
    } else {
        None
    };
    Some(Index {
        index_source_layer_ids: narrow_list(v, "index.index_source_layer_ids")?,
        index_n_heads: v.int("index.index_n_heads")?,
        index_head_dim: v.int("index.index_head_dim")?,
        index_topk: v.int("index.index_topk")?,
        keys_from: match v.text("index.keys_from")? {
            "hidden" => IndexKeys::Hidden,
            _ => IndexKeys::Latent,
        },
        hadamard: v.flag("index.hadamard")?,
        candidates,
    })
}

fn mhc(v: &Values<'_>) -> Option<Mhc> {
    Some(Mhc {
        hc_mult: v.int("residual.hc_mult")?,
        hc_sinkhorn_iters: narrow(v.int("residual.hc_sinkhorn_iters")?)?,
        hc_eps: v.float("residual.hc_eps")? as f32,
        single_pass: v.flag("residual.single_pass")?,
        head: match v.text("residual.head")? {
            "learned" => MhcHead::Learned,
            _ => MhcHead::LastPre,
        },
    })
}

fn moe(v: &Values<'_>) -> Option<Moe> {
    Some(Moe {
        n_routed_experts: v.int("moe.n_routed_experts")?,
        num_experts_per_tok: v.int("moe.num_experts_per_tok")?,
        n_shared_experts: v.int("moe.n_shared_experts")?,
        moe_intermediate_size: v.int("moe.moe_intermediate_size")?,
        norm_topk_prob: v.flag("moe.norm_topk_prob")?,
        routed_scaling_factor: v.float("moe.routed_scaling_factor")? as f32,
        swiglu_limit: v.float("moe.swiglu_limit")? as f32,
        num_hash_layers: narrow(v.int("moe.num_hash_layers")?)?,
        image_bias: v.flag("moe.image_bias")?,
    })
}

fn dense_ffn(v: &Values<'_>) -> Option<Ffn> {
    Some(Ffn::Dense {
        intermediate_size: v.int("dense_ffn.intermediate_size")?,
        swiglu_limit: v.float("dense_ffn.swiglu_limit")? as f32,
    })
}

fn engram_with_rows(v: &Values<'_>) -> Option<Engram> {
    let mut memory = memory(v)?;
    memory.engram_num_embeddings = engram::tables(&memory).iter().map(EngramTable::rows).collect();
    Some(memory)
}

fn numerics(v: &Values<'_>) -> Option<Numerics> {
    let inputs = |path: &str| {
        Some(match v.text(path)? {
            "fp8" => LinearInputs::Fp8,
            _ => LinearInputs::Exact,
        })
    };
    Some(Numerics {
        activations: match v.text("numerics.activations")? {
            "f32" => Activations::F32,
            _ => Activations::Bf16,
        },
        linear_inputs: inputs("numerics.linear_inputs")?,
        wo_a_input: inputs("numerics.wo_a_input")?,
        caches: match v.text("numerics.caches")? {
            "exact" => Caches::Exact,
            _ => Caches::Packed,
        },
        batch_invariant: v.flag("numerics.batch_invariant")?,
    })
}

fn decoder_rows(v: &Values<'_>) -> Option<DecoderRows> {
    Some(match v.text("prefill.decoder_rows")? {
        "tail" => DecoderRows::Tail,
        _ => DecoderRows::All,
    })
}

fn budgets(v: &Values<'_>) -> Budgets {
    let mut launches = Vec::new();
    for phase in ["decode", "prefill"] {
        for what in ["swa", "full", "reindex", "reuse", "hca", "step"] {
            if let Some(at_most) = v.int(&format!("budgets.launches.{phase}.{what}")) {
                launches.push(LaunchBudget { phase: phase.into(), what: what.into(), at_most });
            }
        }
    }
    Budgets { kv_bytes_per_token: v.float("budgets.kv_bytes_per_token"), launches }
}
