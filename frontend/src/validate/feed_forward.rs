//! Experts, dense feed-forwards and the n-gram memory.

use super::values::Values;
use crate::engram::{self, EngramTable, MAX_BUCKETS};
use crate::spec::Engram;
use dsc_ir::diag::{
    Diagnostic, E0109_MISSING_KEY, E0203_SCALE_GROUP, E0205_NO_SUCH_LAYER, E0209_EXPERTS, E0211_ENGRAM, E0213_CONFLICT,
};

pub(super) fn check(v: &Values<'_>, out: &mut Vec<Diagnostic>) {
    one_kind(v, out);
    experts(v, out);
    hash_layers(v, out);
    if v.has("engram") {
        if !v.has("residual") && !v.failed.contains("residual") {
            let finding = Diagnostic::error(E0213_CONFLICT, v.spans.key("engram"))
                .message("an n-gram memory is injected into residual streams, and this residual has none")
                .help("`engram: null`, or a `residual` with `hc_mult`");
            out.push(finding);
        }
        engram_ids(v, out);
        engram_rows(v, out);
        engram_groups(v, out);
    }
}

fn one_kind(v: &Values<'_>, out: &mut Vec<Diagnostic>) {
    match (v.has("moe"), v.has("dense_ffn")) {
        (true, true) => {
            let finding = Diagnostic::error(E0213_CONFLICT, v.spans.key("dense_ffn"))
                .message("the spec has both `moe` and `dense_ffn`")
                .related(v.spans.key("moe"), "the experts")
                .help("remove one (`moe: null` in a variant)");
            out.push(finding);
        }
        (false, false) if !v.spans.is_written("moe") && !v.spans.is_written("dense_ffn") => {
            let finding = Diagnostic::error(E0109_MISSING_KEY, v.spans.of(""))
                .message("the spec has neither `moe` nor `dense_ffn`")
                .help("add the section that describes the feed-forward sublayer");
            out.push(finding);
        }
        _ => {}
    }
}

fn experts(v: &Values<'_>, out: &mut Vec<Diagnostic>) -> Option<()> {
    let (chosen, experts) = (v.int("moe.num_experts_per_tok")?, v.int("moe.n_routed_experts")?);
    if chosen > experts {
        let finding = v
            .error(E0209_EXPERTS, "moe.num_experts_per_tok")
            .message(format!("a token cannot take {chosen} of {experts} experts"))
            .related(v.spans.of("moe.n_routed_experts"), format!("{experts} experts"));
        out.push(finding);
    }
    Some(())
}

fn hash_layers(v: &Values<'_>, out: &mut Vec<Diagnostic>) -> Option<()> {
    let (hashed, layers) = (v.int("moe.num_hash_layers")?, v.int("num_hidden_layers")?);
    if hashed > layers {
        let finding = v
            .error(E0205_NO_SUCH_LAYER, "moe.num_hash_layers")
            .message(format!("{hashed} layers are to be hash-routed, and there are {layers}"))
            .related(v.spans.of("num_hidden_layers"), format!("{layers} layers"));
        out.push(finding);
    }
    Some(())
}

fn engram_ids(v: &Values<'_>, out: &mut Vec<Diagnostic>) -> Option<()> {
    let vocab = v.int("vocab_size")?;
    let bounds = [("engram.engram_compressed_vocab_size", 0), ("engram.engram_pad_token_id", 1)];
    for (path, above) in bounds {
        let Some(value) = v.int(path).filter(|value| value + above > vocab) else {
            continue;
        };
        let finding = v
            .error(E0211_ENGRAM, path)
            .message(format!("`{path}` is {value}, beyond the vocabulary of {vocab}"))
            .related(v.spans.of("vocab_size"), format!("{vocab} tokens"));
        out.push(finding);
    }
    Some(())
}

/// The n-gram memory, once all of its keys are right; its row counts may still be absent.
pub(super) fn memory(v: &Values<'_>) -> Option<Engram> {
    let narrow = |path: &str| u32::try_from(v.int(path)?).ok();
    let layers = v.list("engram.engram_layer_ids")?;
    Some(Engram {
        engram_layer_ids: layers.iter().map(|layer| u32::try_from(*layer).ok()).collect::<Option<_>>()?,
        engram_num_embeddings: v.list("engram.engram_num_embeddings").unwrap_or_default().to_vec(),
        engram_max_ngram_size: narrow("engram.engram_max_ngram_size")?,
        engram_n_heads: narrow("engram.engram_n_heads")?,
        engram_head_dim: v.int("engram.engram_head_dim")?,
        engram_vocab_size: v.int("engram.engram_vocab_size")?,
        engram_compressed_vocab_size: v.int("engram.engram_compressed_vocab_size")?,
        engram_pad_token_id: v.int("engram.engram_pad_token_id")?,
    })
}

/// Row counts equal the sums of the derived bucket primes.
fn engram_rows(v: &Values<'_>, out: &mut Vec<Diagnostic>) -> Option<()> {
    let path = "engram.engram_num_embeddings";
    let memory = memory(v)?;
    let buckets = memory.engram_layer_ids.len() as u64
        * u64::from(memory.engram_max_ngram_size - 1)
        * u64::from(memory.engram_n_heads);
    if buckets > MAX_BUCKETS as u64 {
        let finding = v.error(E0211_ENGRAM, "engram.engram_n_heads");
        out.push(finding.message(format!("{buckets} buckets, more than the limit of {MAX_BUCKETS}")));
        return None;
    }
    let derived: Vec<u64> = engram::tables(&memory).iter().map(EngramTable::rows).collect();
    if let Some(rows) = derived.iter().find(|rows| i32::try_from(**rows).is_err()) {
        let finding = v.error(E0211_ENGRAM, "engram.engram_vocab_size");
        out.push(finding.message(format!("a table would have {rows} rows, beyond 2^31 - 1")));
    }
    let given = &memory.engram_num_embeddings;
    if v.spans.is_written(path) && v.list(path).is_some() && *given != derived {
        let finding = v
            .error(E0211_ENGRAM, path)
            .message(format!("tables of {} rows do not fit buckets that sum to {}", short(given), short(&derived)))
            .related(v.spans.of("engram.engram_vocab_size"), "buckets are the primes from here on")
            .help("leave the key out to take the sums");
        out.push(finding);
    }
    Some(())
}

/// The start of a list.
fn short(list: &[u64]) -> String {
    let shown: Vec<String> = list.iter().take(4).map(u64::to_string).collect();
    let more = if list.len() > 4 { format!(", and {} more", list.len() - 4) } else { String::new() };
    format!("[{}{more}]", shown.join(", "))
}

fn engram_groups(v: &Values<'_>, out: &mut Vec<Diagnostic>) -> Option<()> {
    let width = v.int("engram.engram_head_dim")?;
    if v.text("weights.engram")? == "fp8" && !width.is_multiple_of(32) {
        let finding = v
            .error(E0203_SCALE_GROUP, "engram.engram_head_dim")
            .message(format!("rows of {width} channels are no whole number of scale groups of 32"))
            .related(v.spans.of("weights.engram"), "`fp8` rows have a scale per 32 channels");
        out.push(finding);
    }
    Some(())
}
