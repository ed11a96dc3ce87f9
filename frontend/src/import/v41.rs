//! `deepseek_v41`: keys in `text_config`, quantisation and ids at the top level.

use super::config::Config;
use super::write::{self, Parts, layer_list, per_layer};

pub fn parts(config: &mut Config<'_>) -> Option<Parts> {
    let mut parts = Parts::default();
    write::head(config, &mut parts, "deepseek-v41");
    parts.section("rope");
    parts.float(config, "rope_theta");
    parts.float(config, "compress_rope_theta");
    write::yarn(config, &mut parts, "rope_scaling");
    compress(config, &mut parts);
    index(config, &mut parts);
    kv_cache(config, &mut parts);
    write::residual(config, &mut parts, true);
    write::moe(config, &mut parts);
    parts.key("image_bias", true);
    engram(config, &mut parts);
    write::weights(config, &mut parts);
    left_out(config);
    Some(parts)
}

fn compress(config: &mut Config<'_>, parts: &mut Parts) -> Option<()> {
    let ratios = ratios(config)?;
    parts.section("compress");
    parts.key("compress_ratios", per_layer(&ratios));
    parts.key("kv_source_layer_ids", layer_list(&config.ints("kv_source_layer_ids")?));
    Some(())
}

/// Ratios of the layers; entries of draft stages may follow.
pub fn ratios(config: &mut Config<'_>) -> Option<Vec<u64>> {
    let n_layers = usize::try_from(config.int("num_hidden_layers")?).ok()?;
    let stages = usize::try_from(config.int_or("num_nextn_predict_layers", 0)?).ok()?;
    let mut ratios = config.ints("compress_ratios")?;
    let stage_ratios = ratios.get(n_layers..).unwrap_or_default();
    if ratios.len() < n_layers || stage_ratios.len() > stages || stage_ratios.iter().any(|ratio| *ratio != 0) {
        let n = ratios.len();
        let message =
            format!("`compress_ratios` has {n} entries for {n_layers} layers and {stages} draft stages of ratio 0");
        config.refuse("compress_ratios", message);
        return None;
    }
    ratios.truncate(n_layers);
    Some(ratios)
}

fn index(config: &mut Config<'_>, parts: &mut Parts) -> Option<()> {
    let sources = config.ints("index_source_layer_ids")?;
    if sources.is_empty() {
        return Some(());
    }
    parts.section("index");
    parts.key("index_source_layer_ids", layer_list(&sources));
    for key in ["index_n_heads", "index_head_dim", "index_topk"] {
        parts.int(config, key);
    }
    // The inference configuration writes -1 for none.
    let none = config.node("candidate_source_layer_id").is_none_or(|node| node.value == crate::yaml::Value::Int(-1));
    if !none {
        parts.section("index.candidates");
        for key in ["candidate_source_layer_id", "candidate_topk_blocks", "candidate_block_size"] {
            parts.int(config, key);
        }
    }
    Some(())
}

/// The published row formats, where their scale groups fit; bf16 otherwise.
fn kv_cache(config: &mut Config<'_>, parts: &mut Parts) -> Option<()> {
    let (head, index) = (config.int("head_dim")?, config.int_or("index_head_dim", 32)?);
    let fits = |format: &'static str, width: u64, group| {
        if width.is_multiple_of(group) { format } else { "bf16" }
    };
    parts.section("kv_cache");
    parts.key("window", fits("fp8", head, 32));
    parts.key("main", fits("fp4", head, 16));
    parts.key("index", fits("mxfp4", index, 32));
    Some(())
}

fn engram(config: &mut Config<'_>, parts: &mut Parts) -> Option<()> {
    let layers = if config.has("engram_layer_ids") { config.ints("engram_layer_ids")? } else { Vec::new() };
    let keys = [
        "engram_max_ngram_size",
        "engram_n_heads",
        "engram_head_dim",
        "engram_vocab_size",
        "engram_compressed_vocab_size",
        "engram_pad_token_id",
    ];
    if layers.is_empty() {
        // Sizes of a memory that no layer has.
        for key in keys.into_iter().chain(["engram_num_embeddings"]) {
            config.node(key);
        }
        return Some(());
    }
    parts.section("engram");
    parts.key("engram_layer_ids", layer_list(&layers));
    if config.has("engram_num_embeddings") {
        let rows = config.ints("engram_num_embeddings")?;
        parts.key("engram_num_embeddings", format!("{rows:?}"));
    }
    for key in keys {
        parts.int(config, key);
    }
    Some(())
}

fn left_out(config: &mut Config<'_>) {
    let draft = [
        "num_nextn_predict_layers",
        "dspark_block_size",
        "dspark_noise_token_id",
        "dspark_target_layer_ids",
        "dspark_markov_rank",
        "dspark_n_routed_experts",
        "dspark_num_experts_per_tok",
    ];
    config.leave_out(&draft, "draft stages (DSpark)");
    config.leave_out(&["vision_config", "image_token_id"], "the vision tower");
}
