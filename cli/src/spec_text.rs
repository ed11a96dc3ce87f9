//! A resolved spec as YAML: one file with no base, every section written out, that loads to the same [`Spec`].

use dsc_frontend::spec::{
    Activations, Attention, Budgets, Caches, Compress, DecoderRows, Engram, Ffn, Index, IndexKeys, LinearInputs, Mhc,
    MhcHead, Moe, Residual, Rope, Spec,
};
use std::fmt::{Debug, Display, Write};

/// The text.
pub fn render(spec: &Spec) -> String {
    let mut t = Text::default();
    t.key("name", serde_json::Value::from(spec.name.as_str()));
    t.key("vocab_size", spec.vocab_size);
    t.key("hidden_size", spec.hidden_size);
    t.key("num_hidden_layers", spec.num_hidden_layers);
    t.key("max_position_embeddings", spec.max_position_embeddings);
    t.number("rms_norm_eps", spec.rms_norm_eps);
    attention(&mut t, &spec.attention);
    rope(&mut t, &spec.rope);
    compress(&mut t, &spec.compress);
    spec.index.iter().for_each(|index| self::index(&mut t, index));
    t.section("kv_cache", |t| {
        t.key("window", spec.kv_cache.window);
        t.key("main", spec.kv_cache.main);
        t.key("index", spec.kv_cache.index);
    });
    match &spec.residual {
        Residual::Plain => t.key("residual", "plain"),
        Residual::Mhc(mhc) => self::mhc(&mut t, mhc),
    }
    ffn(&mut t, &spec.ffn);
    spec.engram.iter().for_each(|engram| self::engram(&mut t, engram));
    t.section("weights", |t| {
        t.key("dense", spec.weights.dense);
        t.key("experts", spec.weights.experts);
        t.key("other", spec.weights.other);
        t.key("engram", spec.weights.engram);
    });
    numerics(&mut t, spec);
    t.section("parallel", |t| {
        t.key("tp", spec.parallel.tp);
        t.key("ep", spec.parallel.ep);
    });
    t.section("prefill", |t| {
        let rows = match spec.prefill.decoder_rows {
            DecoderRows::All => "all",
            DecoderRows::Tail => "tail",
        };
        t.key("decoder_rows", rows);
    });
    budgets(&mut t, &spec.budgets);
    t.out
}

/// Lines at a depth.
#[derive(Default)]
struct Text {
    out: String,
    depth: usize,
}

impl Text {
    fn key(&mut self, key: &str, value: impl Display) {
        let _ = writeln!(self.out, "{:1$}{key}: {value}", "", 2 * self.depth);
    }

    /// The shortest text that reads back to the same number.
    fn number(&mut self, key: &str, value: impl Debug) {
        self.key(key, format!("{value:?}"));
    }

    fn list(&mut self, key: &str, values: &[impl Debug]) {
        self.key(key, format!("{values:?}"));
    }

    fn section(&mut self, name: &str, inside: impl FnOnce(&mut Text)) {
        if self.depth == 0 {
            self.out.push('\n');
        }
        let _ = writeln!(self.out, "{:1$}{name}:", "", 2 * self.depth);
        self.depth += 1;
        inside(self);
        self.depth -= 1;
    }
}

fn attention(t: &mut Text, a: &Attention) {
    t.section("attention", |t| {
        t.key("num_attention_heads", a.num_attention_heads);
        t.key("head_dim", a.head_dim);
        t.key("qk_rope_head_dim", a.qk_rope_head_dim);
        t.key("q_lora_rank", a.q_lora_rank);
        t.key("o_groups", a.o_groups);
        t.key("o_lora_rank", a.o_lora_rank);
        t.key("sliding_window", a.sliding_window);
        t.key("attn_sink", a.attn_sink);
        t.key("per_head_q_norm", a.per_head_q_norm);
    });
}

fn rope(t: &mut Text, r: &Rope) {
    t.section("rope", |t| {
        t.number("rope_theta", r.rope_theta);
        t.number("compress_rope_theta", r.compress_rope_theta);
        if let Some(y) = &r.yarn {
            t.section("yarn", |t| {
                t.number("factor", y.factor);
                t.number("beta_fast", y.beta_fast);
                t.number("beta_slow", y.beta_slow);
                t.key("original_max_position_embeddings", y.original_max_position_embeddings);
            });
        }
    });
}

fn compress(t: &mut Text, c: &Compress) {
    t.section("compress", |t| {
        t.list("compress_ratios", &c.compress_ratios);
        t.list("kv_source_layer_ids", &c.kv_source_layer_ids);
        t.list("dense_ratios", &c.dense_ratios);
        t.list("overlap_ratios", &c.overlap_ratios);
        t.key("position_bias", c.position_bias);
    });
}

fn index(t: &mut Text, i: &Index) {
    t.section("index", |t| {
        t.list("index_source_layer_ids", &i.index_source_layer_ids);
        t.key("index_n_heads", i.index_n_heads);
        t.key("index_head_dim", i.index_head_dim);
        t.key("index_topk", i.index_topk);
        let keys_from = match i.keys_from {
            IndexKeys::Latent => "latent",
            IndexKeys::Hidden => "hidden",
        };
        t.key("keys_from", keys_from);
        t.key("hadamard", i.hadamard);
        if let Some(c) = &i.candidates {
            t.section("candidates", |t| {
                t.key("candidate_source_layer_id", c.candidate_source_layer_id);
                t.key("candidate_topk_blocks", c.candidate_topk_blocks);
                t.key("candidate_block_size", c.candidate_block_size);
            });
        }
    });
}

fn mhc(t: &mut Text, m: &Mhc) {
    t.section("residual", |t| {
        t.key("hc_mult", m.hc_mult);
        t.key("hc_sinkhorn_iters", m.hc_sinkhorn_iters);
        t.number("hc_eps", m.hc_eps);
        t.key("single_pass", m.single_pass);
        let head = match m.head {
            MhcHead::LastPre => "last_pre",
            MhcHead::Learned => "learned",
        };
        t.key("head", head);
    });
}

fn ffn(t: &mut Text, ffn: &Ffn) {
    match ffn {
        Ffn::Moe(moe) => self::moe(t, moe),
        Ffn::Dense { intermediate_size, swiglu_limit } => t.section("dense_ffn", |t| {
            t.key("intermediate_size", intermediate_size);
            t.number("swiglu_limit", swiglu_limit);
        }),
    }
}

fn moe(t: &mut Text, m: &Moe) {
    t.section("moe", |t| {
        t.key("n_routed_experts", m.n_routed_experts);
        t.key("num_experts_per_tok", m.num_experts_per_tok);
        t.key("n_shared_experts", m.n_shared_experts);
        t.key("moe_intermediate_size", m.moe_intermediate_size);
        t.key("norm_topk_prob", m.norm_topk_prob);
        t.number("routed_scaling_factor", m.routed_scaling_factor);
        t.number("swiglu_limit", m.swiglu_limit);
        t.key("num_hash_layers", m.num_hash_layers);
        t.key("image_bias", m.image_bias);
    });
}

fn engram(t: &mut Text, e: &Engram) {
    t.section("engram", |t| {
        t.list("engram_layer_ids", &e.engram_layer_ids);
        t.list("engram_num_embeddings", &e.engram_num_embeddings);
        t.key("engram_max_ngram_size", e.engram_max_ngram_size);
        t.key("engram_n_heads", e.engram_n_heads);
        t.key("engram_head_dim", e.engram_head_dim);
        t.key("engram_vocab_size", e.engram_vocab_size);
        t.key("engram_compressed_vocab_size", e.engram_compressed_vocab_size);
        t.key("engram_pad_token_id", e.engram_pad_token_id);
    });
}

fn numerics(t: &mut Text, spec: &Spec) {
    let n = &spec.numerics;
    let inputs = |inputs| match inputs {
        LinearInputs::Exact => "exact",
        LinearInputs::Fp8 => "fp8",
    };
    let activations = match n.activations {
        Activations::F32 => "f32",
        Activations::Bf16 => "bf16",
    };
    let caches = match n.caches {
        Caches::Exact => "exact",
        Caches::Packed => "packed",
    };
    t.section("numerics", |t| {
        t.key("activations", activations);
        t.key("linear_inputs", inputs(n.linear_inputs));
        t.key("wo_a_input", inputs(n.wo_a_input));
        t.key("caches", caches);
        t.key("batch_invariant", n.batch_invariant);
    });
}

fn budgets(t: &mut Text, b: &Budgets) {
    if *b == Budgets::default() {
        return;
    }
    t.section("budgets", |t| {
        b.kv_bytes_per_token.iter().for_each(|bytes| t.number("kv_bytes_per_token", bytes));
        if b.launches.is_empty() {
            return;
        }
        t.section("launches", |t| {
            for phase in ["decode", "prefill"] {
                let of_phase = || b.launches.iter().filter(|l| l.phase == phase);
                if of_phase().next().is_some() {
                    t.section(phase, |t| of_phase().for_each(|l| t.key(&l.what, l.at_most)));
                }
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::{Path, PathBuf};

    fn shipped() -> Vec<PathBuf> {
        let specs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../specs");
        let yaml = |folder: PathBuf| {
            let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
            files.filter(|path| path.extension().is_some_and(|e| e == "yaml")).collect::<Vec<_>>()
        };
        let mut all = yaml(specs.clone());
        all.extend(yaml(specs.join("variants")));
        all
    }

    #[test]
    fn every_shipped_spec_loads_again() {
        let all = shipped();
        assert!(all.len() >= 13);
        for path in all {
            for set in ["numerics.caches=packed", "numerics.caches=exact"] {
                let spec = dsc_frontend::load(&path, &[set.into()]).checked.unwrap().spec;
                let text = render(&spec);
                let again = dsc_frontend::load_str("again", &text, &[]);
                assert!(again.findings.is_empty(), "{}: {}", path.display(), again.render(Default::default()));
                assert_eq!(again.checked.unwrap().spec, spec, "{}\n{text}", path.display());
            }
        }
    }
}
