//! Sizes that have to fit each other: heads and groups, rotary channels, scale groups, ranks.

use super::values::Values;
use dsc_ir::diag::{Diagnostic, E0201_DIVIDE, E0202_ROPE, E0203_SCALE_GROUP, E0212_PARALLEL, E0213_CONFLICT};
use dsc_ir::dtype::{RowFormat, WeightFormat};

pub(super) fn check(v: &Values<'_>, out: &mut Vec<Diagnostic>) {
    let checks = [head_groups, rope, index_rope, hadamard, yarn, cache_rows, operands, expert_groups, grouped_operand];
    for check in checks {
        check(v, out);
    }
    tensor_parallel(v, out);
    tiles(v, out);
    expert_parallel(v, out);
}

fn head_groups(v: &Values<'_>, out: &mut Vec<Diagnostic>) -> Option<()> {
    let (heads, groups) = (v.int("attention.num_attention_heads")?, v.int("attention.o_groups")?);
    if !heads.is_multiple_of(groups) {
        let finding = v
            .error(E0201_DIVIDE, "attention.o_groups")
            .message(format!("{groups} output groups do not divide {heads} heads"))
            .related(v.spans.of("attention.num_attention_heads"), format!("{heads} heads"))
            .help(nearest_divisors(heads, groups, "groups"));
        out.push(finding);
    }
    Some(())
}

/// "4 or 8 groups would".
fn nearest_divisors(whole: u64, near: u64, what: &str) -> String {
    let below = (1..=near.min(whole)).rev().find(|n| whole.is_multiple_of(*n)).unwrap_or(1);
    let above = (near..=whole).find(|n| whole.is_multiple_of(*n));
    match above {
        Some(above) if above != below => format!("{below} or {above} {what} would"),
        _ => format!("{below} {what} would"),
    }
}

fn rope(v: &Values<'_>, out: &mut Vec<Diagnostic>) -> Option<()> {
    let rope = v.int("attention.qk_rope_head_dim")?;
    if !rope.is_multiple_of(2) {
        let finding = v.error(E0202_ROPE, "attention.qk_rope_head_dim");
        let message = format!("{rope} rotated channels are no whole number of pairs");
        out.push(finding.message(message).help(format!("`{}` or `{}` would be", rope - 1, rope + 1)));
    }
    let head_dim = v.int("attention.head_dim")?;
    if rope > head_dim {
        let finding = v
            .error(E0202_ROPE, "attention.qk_rope_head_dim")
            .message(format!("{rope} rotated channels do not fit a head of {head_dim}"))
            .related(v.spans.of("attention.head_dim"), format!("{head_dim} channels"));
        out.push(finding);
    }
    Some(())
}

fn index_rope(v: &Values<'_>, out: &mut Vec<Diagnostic>) -> Option<()> {
    let (rope, width) = (v.int("attention.qk_rope_head_dim")?, v.int("index.index_head_dim")?);
    let fits_heads = v.int("attention.head_dim").is_none_or(|head_dim| rope <= head_dim);
    if rope > width && fits_heads {
        let finding = v
            .error(E0202_ROPE, "index.index_head_dim")
            .message(format!("an index head of {width} channels cannot hold {rope} rotated ones"))
            .related(v.spans.of("attention.qk_rope_head_dim"), format!("{rope} rotated channels"));
        out.push(finding);
    }
    Some(())
}

fn hadamard(v: &Values<'_>, out: &mut Vec<Diagnostic>) -> Option<()> {
    let width = v.int("index.index_head_dim")?;
    if v.flag("index.hadamard")? && !width.is_power_of_two() {
        let finding = v
            .error(E0213_CONFLICT, "index.hadamard")
            .message(format!("a Hadamard rotation needs a power of two, and index heads have {width} channels"))
            .related(v.spans.of("index.index_head_dim"), format!("{width} channels"));
        out.push(finding);
    }
    Some(())
}

fn yarn(v: &Values<'_>, out: &mut Vec<Diagnostic>) -> Option<()> {
    let (fast, slow) = (v.float("rope.yarn.beta_fast")?, v.float("rope.yarn.beta_slow")?);
    if fast <= slow {
        let finding = v
            .error(E0213_CONFLICT, "rope.yarn.beta_fast")
            .message(format!("`beta_fast` ({fast}) has to be above `beta_slow` ({slow})"))
            .related(v.spans.of("rope.yarn.beta_slow"), "the slow boundary");
        out.push(finding);
    }
    Some(())
}

/// Packed cache rows are whole scale groups.
fn cache_rows(v: &Values<'_>, out: &mut Vec<Diagnostic>) -> Option<()> {
    if v.text("numerics.caches")? != "packed" {
        return None;
    }
    let compressed = v.list("compress.compress_ratios").is_some_and(|ratios| ratios.iter().any(|r| *r > 0));
    let rows = [
        ("kv_cache.window", "attention.head_dim", true),
        ("kv_cache.main", "attention.head_dim", compressed),
        ("kv_cache.index", "index.index_head_dim", v.has("index")),
    ];
    for (path, width_path, used) in rows {
        if used {
            cache_row(v, out, path, width_path);
        }
    }
    Some(())
}

fn cache_row(v: &Values<'_>, out: &mut Vec<Diagnostic>, path: &str, width_path: &str) -> Option<()> {
    let (name, width) = (v.text(path)?, v.int(width_path)?);
    let format = RowFormat::parse(name)?;
    let mut quantised = width;
    if let RowFormat::Fp8Rope { rope } = format {
        let rotated = v.int("attention.qk_rope_head_dim")?;
        if u64::from(rope) != rotated {
            let finding = v
                .error(E0213_CONFLICT, path)
                .message(format!("`{name}` keeps {rope} rotated channels in bf16, and heads have {rotated}"))
                .related(v.spans.of("attention.qk_rope_head_dim"), format!("{rotated} rotated channels"))
                .help(format!("`fp8_rope{rotated}`, or `fp8`, which rounds them too"));
            out.push(finding);
            return None;
        }
        quantised = width.saturating_sub(rotated);
    }
    let group = format.group();
    if group > 0 && !quantised.is_multiple_of(group) {
        let finding = v
            .error(E0203_SCALE_GROUP, width_path)
            .message(format!("`{path}: {name}` has a scale per {group} channels, which do not divide {quantised}"))
            .help("`numerics.caches: exact` or a format without scales would do");
        let written = v.spans.is_written(path).then(|| v.spans.of(path));
        out.push(match written {
            Some(format) => finding.related(format, "the format"),
            None => finding,
        });
    }
    Some(())
}

/// A linear: the key its input width follows from, the width, and what it is.
struct Operand {
    path: &'static str,
    width: u64,
    what: &'static str,
}

/// Inputs of the linears that are stored like `weights.dense`, of all ranks together.
fn dense_operands(v: &Values<'_>) -> Vec<Operand> {
    let orders = v.int("engram.engram_max_ngram_size").map(|n| n.saturating_sub(1));
    let shared = v.int("moe.n_shared_experts").filter(|n| *n > 0);
    let candidates = [
        ("hidden_size", v.int("hidden_size"), "the query and key projections"),
        ("attention.q_lora_rank", v.int("attention.q_lora_rank"), "the query's second projection"),
        (
            "attention.o_lora_rank",
            v.int("attention.o_lora_rank").zip(v.int("attention.o_groups")).map(|(r, g)| r * g),
            "the second output projection",
        ),
        (
            "moe.moe_intermediate_size",
            v.int("moe.moe_intermediate_size").filter(|_| shared.is_some()),
            "the shared expert's last projection",
        ),
        ("dense_ffn.intermediate_size", v.int("dense_ffn.intermediate_size"), "the last projection"),
        (
            "engram.engram_head_dim",
            v.int("engram.engram_head_dim")
                .zip(v.int("engram.engram_n_heads"))
                .zip(orders)
                .map(|((d, h), o)| d * h * o),
            "the Engram projection",
        ),
    ];
    let operand = |(path, width, what): (_, Option<u64>, _)| Some(Operand { path, width: width?, what });
    candidates.into_iter().filter_map(operand).collect()
}

/// Quantised operands are whole groups of 32.
fn operands(v: &Values<'_>, out: &mut Vec<Diagnostic>) -> Option<()> {
    let dense = WeightFormat::parse(v.text("weights.dense")?)?;
    let fp8_inputs = v.text("numerics.linear_inputs")? == "fp8";
    let grouped = dense == WeightFormat::Fp4 || (fp8_inputs && dense.is_quantised());
    for operand in dense_operands(v).into_iter().filter(|o| grouped && !o.width.is_multiple_of(32)) {
        let (reason, key) = if fp8_inputs {
            ("numerics.linear_inputs: fp8", "numerics.linear_inputs")
        } else {
            ("weights.dense: fp4", "weights.dense")
        };
        let finding = v
            .error(E0203_SCALE_GROUP, operand.path)
            .message(format!("the input of {} has {} channels, no multiple of 32", operand.what, operand.width))
            .related(v.spans.of(key), format!("`{reason}` has a scale per 32 channels"));
        out.push(finding);
    }
    Some(())
}

/// Routed experts: groups of 32 in both widths when they, or their operands, are quantised.
fn expert_groups(v: &Values<'_>, out: &mut Vec<Diagnostic>) -> Option<()> {
    let experts = WeightFormat::parse(v.text("weights.experts")?).filter(|_| v.has("moe"))?;
    let fp8_inputs = v.text("numerics.linear_inputs")? == "fp8";
    if experts != WeightFormat::Fp4 && !(fp8_inputs && experts.is_quantised()) {
        return None;
    }
    for path in ["hidden_size", "moe.moe_intermediate_size"] {
        let width = v.int(path)?;
        let reported = out.iter().any(|finding| finding.span() == Some(&v.spans.of(path)));
        if !width.is_multiple_of(32) && !reported {
            let finding = v
                .error(E0203_SCALE_GROUP, path)
                .message(format!("`{path}` is {width}, no multiple of 32"))
                .related(v.spans.of("weights.experts"), format!("`{experts}` experts have a scale per 32 channels"));
            out.push(finding);
        }
    }
    Some(())
}

fn grouped_operand(v: &Values<'_>, out: &mut Vec<Diagnostic>) -> Option<()> {
    let (heads, groups) = (v.int("attention.num_attention_heads")?, v.int("attention.o_groups")?);
    let width = heads / groups * v.int("attention.head_dim")?;
    if v.text("numerics.wo_a_input")? == "fp8" && !width.is_multiple_of(32) {
        let finding = v
            .error(E0203_SCALE_GROUP, "numerics.wo_a_input")
            .message(format!("an output group has {width} input channels, no multiple of 32"))
            .help("`wo_a_input: exact` has no scale groups");
        out.push(finding);
    }
    Some(())
}

fn tensor_parallel(v: &Values<'_>, out: &mut Vec<Diagnostic>) -> Option<()> {
    let tp = v.int("parallel.tp")?;
    let shared = v.int("moe.n_shared_experts").is_some_and(|n| n > 0);
    let split = [
        ("attention.num_attention_heads", "heads", true),
        ("attention.o_groups", "output groups", true),
        ("moe.moe_intermediate_size", "channels of the shared expert", shared),
        ("dense_ffn.intermediate_size", "channels of the feed-forward", true),
    ];
    for (path, what, used) in split {
        let Some(whole) = v.int(path).filter(|whole| used && !whole.is_multiple_of(tp)) else {
            continue;
        };
        let finding = v
            .error(E0212_PARALLEL, "parallel.tp")
            .message(format!("{tp} tensor parallel ranks cannot share {whole} {what} evenly"))
            .related(v.spans.of(path), format!("{whole} {what}"))
            .help(nearest_divisors(whole, tp, "ranks"));
        out.push(finding);
    }
    Some(())
}

/// A rank's part of a quantised weight is whole scale tiles or groups.
fn tiles(v: &Values<'_>, out: &mut Vec<Diagnostic>) -> Option<()> {
    let tp = v.int("parallel.tp").filter(|tp| *tp > 1)?;
    let tile = match WeightFormat::parse(v.text("weights.dense")?)? {
        WeightFormat::Fp8 { tile } => tile,
        WeightFormat::Fp4 => 32,
        WeightFormat::F32 | WeightFormat::Bf16 => return None,
    };
    let head_dim = v.int("attention.head_dim");
    let shared = v.int("moe.n_shared_experts").is_some_and(|n| n > 0);
    let split = [
        (
            "attention.num_attention_heads",
            v.int("attention.num_attention_heads").zip(head_dim).map(|(h, d)| h * d),
            "query channels",
        ),
        (
            "attention.o_lora_rank",
            v.int("attention.o_groups")
                .filter(|groups| groups.is_multiple_of(tp))
                .zip(v.int("attention.o_lora_rank"))
                .map(|(g, r)| g * r),
            "channels of the output groups",
        ),
        (
            "moe.moe_intermediate_size",
            v.int("moe.moe_intermediate_size").filter(|_| shared),
            "channels of the shared expert",
        ),
        ("dense_ffn.intermediate_size", v.int("dense_ffn.intermediate_size"), "channels of the feed-forward"),
    ];
    for (path, whole, what) in split {
        let Some(part) = whole.filter(|w| w.is_multiple_of(tp)).map(|w| w / tp) else {
            continue;
        };
        if !part.is_multiple_of(u64::from(tile)) {
            let finding = v
                .error(E0212_PARALLEL, "parallel.tp")
                .message(format!("with {tp} ranks each has {part} {what}, which cut a {tile}-wide scale tile"))
                .related(v.spans.of(path), "the size that is split")
                .related(v.spans.of("weights.dense"), format!("tiles of {tile}"));
            out.push(finding);
        }
    }
    Some(())
}

fn expert_parallel(v: &Values<'_>, out: &mut Vec<Diagnostic>) -> Option<()> {
    let (ep, experts) = (v.int("parallel.ep")?, v.int("moe.n_routed_experts")?);
    if !experts.is_multiple_of(ep) {
        let finding = v
            .error(E0212_PARALLEL, "parallel.ep")
            .message(format!("{ep} expert parallel ranks cannot share {experts} experts evenly"))
            .related(v.spans.of("moe.n_routed_experts"), format!("{experts} experts"))
            .help(nearest_divisors(experts, ep, "ranks"));
        out.push(finding);
    }
    Some(())
}
