//! Writing a spec: the sections that all model types share, and lists as patterns.

use super::config::Config;
use std::fmt::Write;

/// Sections of a spec, in order: name and `key: value` lines.
#[derive(Debug, Default)]
pub struct Parts {
    sections: Vec<(String, Vec<(String, String)>)>,
}

impl Parts {
    /// Starts a section; the empty name is the top level.
    pub fn section(&mut self, name: &str) {
        self.sections.push((name.to_owned(), Vec::new()));
    }

    /// Adds a key to the last section.
    pub fn key(&mut self, key: &str, value: impl ToString) {
        if let Some((_, lines)) = self.sections.last_mut() {
            lines.push((key.to_owned(), value.to_string()));
        }
    }

    pub fn int(&mut self, config: &mut Config<'_>, key: &str) -> Option<u64> {
        let value = config.int(key)?;
        self.key(key, value);
        Some(value)
    }

    pub fn float(&mut self, config: &mut Config<'_>, key: &str) -> Option<f64> {
        let value = config.float(key)?;
        self.key(key, number(value));
        Some(value)
    }

    /// The spec.
    pub fn text(&self) -> String {
        let mut out = String::from("# Written by `dsc import`.\n");
        for (name, lines) in &self.sections {
            let depth = if name.is_empty() { 0 } else { name.split('.').count() };
            let header = name.rsplit('.').next().unwrap_or_default();
            if depth == 1 {
                let _ = write!(out, "\n{header}:\n");
            } else if depth > 1 {
                let _ = writeln!(out, "{:1$}{header}:", "", 2 * (depth - 1));
            }
            for (key, value) in lines {
                let _ = writeln!(out, "{:1$}{key}: {value}", "", 2 * depth);
            }
        }
        out
    }
}

/// A number as YAML.
pub fn number(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 { format!("{value:.1}") } else { format!("{value:?}") }
}

/// A text as YAML.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Names, sizes, attention and rotary sections.
pub fn head(config: &mut Config<'_>, parts: &mut Parts, name: &str) -> Option<()> {
    parts.section("");
    parts.key("name", quoted(name));
    for key in ["vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings"] {
        parts.int(config, key);
    }
    parts.float(config, "rms_norm_eps");
    config.only_number("num_key_value_heads", 1.0);
    config.only_text("hidden_act", "silu");
    config.only_text("scoring_func", "sqrtsoftplus");
    config.only_text("topk_method", "noaux_tc");
    for key in ["tie_word_embeddings", "attention_bias", "mlp_bias"] {
        config.only_flag(key, false);
    }
    parts.section("attention");
    for key in ["num_attention_heads", "head_dim", "qk_rope_head_dim", "q_lora_rank", "o_groups", "o_lora_rank"] {
        parts.int(config, key);
    }
    parts.int(config, "sliding_window");
    parts.key("attn_sink", true);
    Some(())
}

/// YaRN from the section at `path`.
pub fn yarn(config: &mut Config<'_>, parts: &mut Parts, path: &str) -> Option<()> {
    if !config.has(path) {
        return Some(());
    }
    for key in ["type", "rope_type"] {
        config.only_text(&format!("{path}.{key}"), "yarn");
    }
    config.only_number(&format!("{path}.attention_factor"), 1.0);
    parts.section("rope.yarn");
    for (key, default) in [("factor", None), ("beta_fast", Some(32.0)), ("beta_slow", Some(1.0))] {
        let full = format!("{path}.{key}");
        let value = match default {
            Some(default) => config.float_or(&full, default)?,
            None => config.float(&full)?,
        };
        parts.key(key, number(value));
    }
    parts.key("original_max_position_embeddings", config.int(&format!("{path}.original_max_position_embeddings"))?);
    Some(())
}

pub fn residual(config: &mut Config<'_>, parts: &mut Parts, single_pass: bool) {
    parts.section("residual");
    parts.int(config, "hc_mult");
    parts.int(config, "hc_sinkhorn_iters");
    parts.float(config, "hc_eps");
    parts.key("single_pass", single_pass);
    parts.key("head", if single_pass { "last_pre" } else { "learned" });
}

pub fn moe(config: &mut Config<'_>, parts: &mut Parts) -> Option<()> {
    parts.section("moe");
    for key in ["n_routed_experts", "num_experts_per_tok", "n_shared_experts", "moe_intermediate_size"] {
        parts.int(config, key);
    }
    parts.key("norm_topk_prob", config.flag_or("norm_topk_prob", true)?);
    parts.key("routed_scaling_factor", number(config.float_or("routed_scaling_factor", 1.0)?));
    parts.key("swiglu_limit", number(config.float_or("swiglu_limit", 0.0)?));
    Some(())
}

/// Weight formats and numerics. Without `quantization_config` weights are plain; float32 is exact.
pub fn weights(config: &mut Config<'_>, parts: &mut Parts) -> Option<()> {
    let dtype_key = if config.has("dtype") { "dtype" } else { "torch_dtype" };
    let dtype = if config.has(dtype_key) { config.text(dtype_key)? } else { "bfloat16".into() };
    let plain = match dtype.as_str() {
        "float32" => "f32",
        "bfloat16" => "bf16",
        other => {
            config.refuse(dtype_key, format!("dsc knows no models of `{other}`"));
            return None;
        }
    };
    let quantised = config.has("quantization_config");
    let (dense, experts) = if quantised { quantisation(config)? } else { (plain.to_owned(), plain.to_owned()) };
    parts.section("weights");
    parts.key("dense", dense);
    parts.key("experts", experts);
    parts.key("other", if quantised { "bf16" } else { plain });
    let exact = !quantised && plain == "f32";
    parts.section("numerics");
    parts.key("activations", if exact { "f32" } else { "bf16" });
    parts.key("linear_inputs", if exact { "exact" } else { "fp8" });
    parts.key("wo_a_input", "exact");
    parts.key("caches", if exact { "exact" } else { "packed" });
    Some(())
}

/// Formats of dense weights and experts.
fn quantisation(config: &mut Config<'_>) -> Option<(String, String)> {
    let at = |key: &str| format!("quantization_config.{key}");
    config.only_text(&at("quant_method"), "fp8");
    config.only_text(&at("activation_scheme"), "dynamic");
    config.only_text(&at("scale_fmt"), "ue8m0");
    config.only_text(&at("fmt"), "e4m3");
    let tile = config.ints(&at("weight_block_size"))?;
    let dense = match tile[..] {
        [32, 32] => "fp8_32",
        [128, 128] => "fp8_128",
        _ => {
            config.refuse(&at("weight_block_size"), format!("dsc knows tiles of 32 x 32 and 128 x 128, not {tile:?}"));
            return None;
        }
    };
    let nested = at("expert_dtype");
    let key = if config.has(&nested) { nested.as_str() } else { "expert_dtype" };
    let experts = match config.has(key).then(|| config.text(key)).flatten().as_deref() {
        None | Some("fp8") => dense,
        Some("fp4") => "fp4",
        Some(other) => {
            let message = format!("dsc knows no experts of `{other}`");
            config.refuse(key, message);
            return None;
        }
    };
    Some((dense.to_owned(), experts.to_owned()))
}

/// Layers as a pattern where they are evenly spaced, as a list otherwise.
pub fn layer_list(layers: &[u64]) -> String {
    if let [first, second, .., last] = layers {
        let step = second.saturating_sub(*first);
        let even = step > 0 && layers.windows(2).all(|pair| pair[1] == pair[0].saturating_add(step));
        if even {
            let end = last.saturating_add(1);
            return if step == 1 { format!("{first}..{end}") } else { format!("{first}..{end} step {step}") };
        }
    }
    format!("{layers:?}")
}

/// One value per layer as a mapping of ranges where that is shorter, as a list otherwise.
pub fn per_layer(values: &[u64]) -> String {
    let mut ranges: Vec<String> = Vec::new();
    let mut at = 0;
    while at < values.len() {
        let run = values[at..].iter().take_while(|value| **value == values[at]).count();
        let alternating = values[at..].iter().zip(values[at..].iter().skip(2)).take_while(|(a, b)| a == b).count() + 2;
        if run < 2 && alternating >= 4 && at + alternating <= values.len() {
            let end = at + alternating;
            ranges.push(format!("\"{at}..{end} step 2\": {}", values[at]));
            ranges.push(format!("\"{}..{end} step 2\": {}", at + 1, values[at + 1]));
            at = end;
        } else {
            ranges.push(format!("\"{at}..{}\": {}", at + run, values[at]));
            at += run;
        }
    }
    let mapping = format!("{{{}}}", ranges.join(", "));
    let list = format!("{values:?}");
    if mapping.len() < list.len() { mapping } else { list }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        assert_eq!(layer_list(&[2, 8, 14]), "2..15 step 6");
        assert_eq!(layer_list(&[2, 3, 4]), "2..5");
        assert_eq!(layer_list(&[2, 8, 9]), "[2, 8, 9]");
        assert_eq!(layer_list(&[]), "[]");
        assert_eq!(per_layer(&[0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2]), r#"{"0..6": 0, "6..14": 2}"#);
        let mut v4 = vec![0, 0];
        v4.extend([4, 128].repeat(20));
        v4.push(4);
        assert_eq!(per_layer(&v4), r#"{"0..2": 0, "2..43 step 2": 4, "3..43 step 2": 128}"#);
        assert_eq!(per_layer(&[1, 2, 3]), "[1, 2, 3]");
    }
}
