//! `deepseek_v4`: the release's keys (`compress_ratios`, `num_hash_layers`, `rope_scaling`) and those of
//! the transformers library (`layer_types`, `mlp_layer_types`, `compress_rates`, `rope_parameters`).

use super::config::Config;
use super::v41::ratios;
use super::write::{self, Parts, layer_list, number, per_layer};

/// Ratio of compressed sparse attention in the release.
const CSA: u64 = 4;
/// Ratio of heavily compressed attention in the release.
const HCA: u64 = 128;

pub fn parts(config: &mut Config<'_>) -> Option<Parts> {
    let mut parts = Parts::default();
    write::head(config, &mut parts, "deepseek-v4");
    parts.key("per_head_q_norm", true);
    rope(config, &mut parts);
    layers(config, &mut parts);
    kv_cache(config, &mut parts);
    write::residual(config, &mut parts, false);
    write::moe(config, &mut parts);
    hash_layers(config, &mut parts);
    write::weights(config, &mut parts);
    let draft = ["num_nextn_predict_layers", "dspark_target_layer_ids", "dspark_markov_rank", "dspark_block_size"];
    config.leave_out(&draft, "draft stages (MTP)");
    Some(parts)
}

fn rope(config: &mut Config<'_>, parts: &mut Parts) -> Option<()> {
    let saved = config.has("rope_parameters.main");
    parts.section("rope");
    let theta = if saved { config.float("rope_parameters.main.rope_theta")? } else { config.float("rope_theta")? };
    parts.key("rope_theta", number(theta));
    if !saved {
        parts.float(config, "compress_rope_theta");
        return write::yarn(config, parts, "rope_scaling");
    }
    config.only_text("rope_parameters.main.rope_type", "default");
    config.only_number("rope_theta", theta);
    let compressed = config.float("rope_parameters.compress.rope_theta")?;
    config.only_number("compress_rope_theta", compressed);
    parts.key("compress_rope_theta", number(compressed));
    rotated_share(config);
    write::yarn(config, parts, "rope_parameters.compress")
}

/// `partial_rotary_factor` says the same as `qk_rope_head_dim`.
fn rotated_share(config: &mut Config<'_>) -> Option<()> {
    let share = config.int("qk_rope_head_dim")? as f64 / config.int("head_dim")?.max(1) as f64;
    for key in [
        "partial_rotary_factor",
        "rope_parameters.main.partial_rotary_factor",
        "rope_parameters.compress.partial_rotary_factor",
    ] {
        config.only_number(key, share);
    }
    Some(())
}

/// Ratios, sources and selection: every layer compresses its own rows, CSA layers select from them.
fn layers(config: &mut Config<'_>, parts: &mut Parts) -> Option<()> {
    let (ratios, csa) = if config.has("layer_types") { typed_ratios(config)? } else { (ratios(config)?, CSA) };
    let which = |keep: &dyn Fn(u64) -> bool| -> Vec<u64> {
        (0_u64..).zip(&ratios).filter(|(_, ratio)| keep(**ratio)).map(|(layer, _)| layer).collect()
    };
    let mut dense: Vec<u64> = ratios.iter().copied().filter(|ratio| *ratio > 0 && *ratio != csa).collect();
    dense.sort_unstable();
    dense.dedup();
    parts.section("compress");
    parts.key("compress_ratios", per_layer(&ratios));
    parts.key("kv_source_layer_ids", layer_list(&which(&|ratio| ratio > 0)));
    parts.key("dense_ratios", format!("{dense:?}"));
    parts.key("overlap_ratios", format!("[{csa}]"));
    parts.key("position_bias", true);
    let selecting = which(&|ratio| ratio == csa);
    if !selecting.is_empty() {
        parts.section("index");
        parts.key("index_source_layer_ids", layer_list(&selecting));
        parts.int(config, "index_n_heads");
        let width = parts.int(config, "index_head_dim")?;
        parts.int(config, "index_topk");
        parts.key("keys_from", "hidden");
        parts.key("hadamard", width.is_power_of_two());
    }
    Some(())
}

/// Ratios from `layer_types` and `compress_rates`, and the one of CSA.
fn typed_ratios(config: &mut Config<'_>) -> Option<(Vec<u64>, u64)> {
    let csa = config.int_or("compress_rates.compressed_sparse_attention", CSA)?;
    let hca = config.int_or("compress_rates.heavily_compressed_attention", HCA)?;
    if csa == hca {
        config.refuse("compress_rates", format!("dsc tells CSA from HCA by their rate, and both are {csa}"));
        return None;
    }
    let types = config.texts("layer_types")?;
    let mut ratios = Vec::new();
    for kind in &types {
        ratios.push(match kind.as_str() {
            "sliding_attention" => 0,
            "compressed_sparse_attention" => csa,
            "heavily_compressed_attention" => hca,
            other => {
                config.refuse("layer_types", format!("dsc knows no layers of type `{other}`"));
                return None;
            }
        });
    }
    if config.has("compress_ratios") && ratios_differ(config, &ratios)? {
        config.refuse("compress_ratios", "`compress_ratios` and `layer_types` disagree".into());
    }
    Some((ratios, csa))
}

fn ratios_differ(config: &mut Config<'_>, typed: &[u64]) -> Option<bool> {
    Some(ratios(config)? != typed)
}

/// Rows with bf16 rotary channels where the scale groups fit.
fn kv_cache(config: &mut Config<'_>, parts: &mut Parts) -> Option<()> {
    let (head, rope) = (config.int("head_dim")?, config.int("qk_rope_head_dim")?);
    let published = head.saturating_sub(rope).is_multiple_of(64) && [16, 32, 64, 128].contains(&rope);
    let row = match (published, head.is_multiple_of(32)) {
        (true, _) => format!("fp8_rope{rope}"),
        (false, true) => "fp8".into(),
        (false, false) => "bf16".into(),
    };
    parts.section("kv_cache");
    parts.key("window", &row);
    parts.key("main", &row);
    let index = config.int_or("index_head_dim", 32)?;
    parts.key("index", if index.is_multiple_of(32) { "mxfp4" } else { "bf16" });
    Some(())
}

fn hash_layers(config: &mut Config<'_>, parts: &mut Parts) -> Option<()> {
    let n_hash = if config.has("mlp_layer_types") {
        let types = config.texts("mlp_layer_types")?;
        let n_hash = types.iter().take_while(|kind| *kind == "hash_moe").count();
        if let Some(other) = types[n_hash..].iter().find(|kind| *kind != "moe") {
            let message = format!("layers of type `{other}` after the leading `hash_moe` ones are not known");
            config.refuse("mlp_layer_types", message);
            return None;
        }
        n_hash as u64
    } else {
        config.int_or("num_hash_layers", 0)?
    };
    parts.key("num_hash_layers", n_hash);
    Some(())
}
