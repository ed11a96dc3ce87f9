//! Names of tensors: those of the release, and those the transformers library saves.

/// Names under which a tensor may be stored: as released, with and without `.weight`, then the library's.
pub(super) fn candidates(base: &str) -> Vec<String> {
    let library = library_name(base);
    [format!("{base}.weight"), base.to_string(), format!("{library}.weight"), library].into()
}

/// Names of the scales that belong to a tensor.
pub(super) fn scale_candidates(base: &str) -> Vec<String> {
    vec![format!("{base}.scale"), format!("{}.scale", library_name(base))]
}

/// The library's name: a `model.` prefix but for the output matrix, and a few words of its own.
fn library_name(base: &str) -> String {
    if base == "head" {
        return base.to_string();
    }
    if base == "embed" {
        return "model.embed_tokens".into();
    }
    if let Some(rest) = base.strip_prefix("hc_head_") {
        return format!("model.hc_head.hc_{rest}");
    }
    let renamed = match base.strip_suffix(".attn.kv_norm") {
        Some(layer) => format!("{layer}.attn.norm"),
        None => base.to_string(),
    };
    format!("model.{renamed}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_names() {
        for (released, library) in [
            ("embed", "model.embed_tokens"),
            ("head", "head"),
            ("hc_head_fn", "model.hc_head.hc_fn"),
            ("hc_head_scale", "model.hc_head.hc_scale"),
            ("norm", "model.norm"),
            ("layers.3.attn.kv_norm", "model.layers.3.attn.norm"),
            ("layers.3.attn.compressor.norm", "model.layers.3.attn.compressor.norm"),
            ("layers.0.ffn.experts.7.w1", "model.layers.0.ffn.experts.7.w1"),
        ] {
            assert_eq!(library_name(released), library);
        }
    }
}
