//! The text of `dsc explain`: tables that read well at 100 columns.

use super::ExplainArgs;
use crate::output::{Output, exact, grouped, plural, ranges, scaled};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use dsc_ir::target::Target;
use dsc_passes::explain::{Explanation, KernelFacts, Kv, KvLayer, LayerKind, PhaseFacts, PhaseRemark};
use indexmap::IndexMap;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Columns of a table.
const WIDTH: u16 = 100;

/// The whole text.
pub fn text(e: &Explanation, target: &Target, args: &ExplainArgs, output: &Output<'_>) -> String {
    let title = output.bold(&e.model);
    let (batch, context) = (grouped(args.batch), grouped(args.context));
    let mut text = format!(
        "{title} for {} ({}): {} of {context} tokens\n\n",
        target.name,
        target.machine.name,
        plural(args.batch as usize, "sequence").replacen(&args.batch.to_string(), &batch, 1),
    );
    if args.kernel.is_none() {
        cache_text(&mut text, &e.kv, output);
    }
    for (phase, facts) in &e.phases {
        phase_line(&mut text, phase, facts, output);
        match (&args.kernel, args.brief) {
            (Some(_), _) => details(&mut text, facts, output),
            (None, true) => brief(&mut text, facts),
            (None, false) => by_layer_kind(&mut text, facts, output),
        }
    }
    match (args.kernel.is_some() || args.brief, args.remarks) {
        (_, true) => all_remarks(&mut text, &e.remarks, output),
        (false, false) => remark_summary(&mut text, &e.remarks, output),
        (true, false) => {}
    }
    text
}

fn table(header: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
    table.set_header(header.iter().copied());
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if at == 0 { 2 } else { 1 }, 1));
        if right.contains(&at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn push(text: &mut String, table: &Table) {
    for line in table.lines() {
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text.push('\n');
}

fn cache_text(text: &mut String, kv: &Kv, output: &Output<'_>) {
    let _ = writeln!(
        text,
        "{}: {} B/token, and {} B per sequence that do not grow (other state: {} B)",
        output.bold("KV cache"),
        exact(kv.bytes_per_token.0),
        grouped(kv.bytes_per_sequence),
        grouped(kv.other_bytes_per_sequence),
    );
    let mut alike: IndexMap<(&str, &str, u64, u32), Vec<&KvLayer>> = IndexMap::new();
    for l in &kv.layers {
        alike.entry((&l.name, &l.dtype, l.row_bytes, l.ratio)).or_default().push(l);
    }
    let header = ["cache", "format", "B/row", "tokens/row", "layers", "B/token", "B/sequence"];
    let mut t = table(&header, &[2, 3, 5, 6]);
    for ((name, dtype, row, ratio), layers) in alike {
        let numbers: Vec<u32> = layers.iter().map(|l| l.layer).collect();
        let per_token: f64 = layers.iter().map(|l| l.bytes_per_token.0).sum();
        let per_sequence: u64 = layers.iter().map(|l| l.bytes_per_sequence).sum();
        t.add_row([
            name.to_owned(),
            dtype.trim_start_matches("row.").to_owned(),
            grouped(row),
            if ratio == 0 { "window".into() } else { ratio.to_string() },
            ranges(&numbers),
            if ratio == 0 { String::new() } else { exact(per_token) },
            if ratio == 0 { grouped(per_sequence) } else { String::new() },
        ]);
    }
    push(text, &t);
}

fn phase_line(text: &mut String, phase: &str, facts: &PhaseFacts, output: &Output<'_>) {
    let collectives = match facts.collectives_per_step {
        0 => String::new(),
        n => format!(" and {}", plural(n as usize, "collective")),
    };
    let _ = writeln!(
        text,
        "{}: {}{collectives} a step, {}, {}FLOP, {}B read and written\n",
        output.bold(phase),
        plural(facts.launches_per_step as usize, "launch").replace("launchs", "launches"),
        plural(facts.distinct_kernels as usize, "distinct kernel"),
        scaled(facts.total.flops.value),
        scaled(facts.total.bytes.value),
    );
}

fn by_layer_kind(text: &mut String, facts: &PhaseFacts, output: &Output<'_>) {
    for kind in &facts.layer_kinds {
        let _ = writeln!(text, "  {}", output.bold(&kind_title(kind)));
        push(text, &kernel_table(kind.kernels.iter()));
    }
    if !facts.once.is_empty() {
        let _ = writeln!(text, "  {}", output.bold("once a step"));
        push(text, &kernel_table(facts.once.iter()));
    }
    let mut t = table(&["kernel", "what it makes"], &[]);
    for (k, _) in distinct(facts) {
        t.add_row([k.name.clone(), made(k).join(", ")]);
    }
    push(text, &t);
}

fn kind_title(kind: &LayerKind) -> String {
    let ratio = if kind.ratio == 0 { String::new() } else { format!(", ratio {}", kind.ratio) };
    let layers = match kind.layers.len() {
        1 => format!("layer {}", kind.layers[0]),
        n => format!("{n} layers ({})", ranges(&kind.layers)),
    };
    let collectives = match kind.collectives {
        0 => String::new(),
        n => format!(" and {}", plural(n as usize, "collective")),
    };
    format!("{}{ratio}: {layers}, {} launches{collectives} each", kind.role, kind.launches)
}

fn kernel_table<'k>(kernels: impl Iterator<Item = &'k KernelFacts>) -> Table {
    let mut t = table(&["#", "kernel", "anchor", "ops", "FLOP", "B"], &[0, 4, 5]);
    for (at, k) in kernels.enumerate() {
        t.add_row([
            (at + 1).to_string(),
            k.name.clone(),
            k.anchor.clone(),
            ops(k),
            scaled(k.flops.value),
            scaled(k.bytes.value),
        ]);
    }
    t
}

/// Ops in order, a repeated one as `linear x2`.
fn ops(k: &KernelFacts) -> String {
    let mut runs: Vec<(&str, usize)> = Vec::new();
    for op in &k.ops {
        match runs.last_mut() {
            Some((last, n)) if last == op => *n += 1,
            _ => runs.push((op, 1)),
        }
    }
    let runs = runs.iter().map(|(op, n)| if *n == 1 { (*op).to_owned() } else { format!("{op} x{n}") });
    runs.collect::<Vec<_>>().join(", ")
}

/// What a kernel writes: `stream bf16[n_tokens, 4, 5120]`.
fn made(k: &KernelFacts) -> Vec<String> {
    let written = |p: &String| {
        let p = p.strip_prefix("output ").or_else(|| p.strip_prefix("state_out "))?;
        Some(p.replacen(':', "", 1))
    };
    k.params.iter().filter_map(written).collect()
}

/// Distinct kernels with their launches of a step, in order of their first launch.
fn distinct(facts: &PhaseFacts) -> Vec<(&KernelFacts, usize)> {
    let mut kernels: IndexMap<&str, (&KernelFacts, usize)> = IndexMap::new();
    let layers = facts.layer_kinds.iter().flat_map(|kind| kind.kernels.iter().map(|k| (k, kind.layers.len())));
    for (k, n) in layers.chain(facts.once.iter().map(|k| (k, 1))) {
        kernels.entry(&k.name).or_insert((k, 0)).1 += n;
    }
    kernels.into_values().collect()
}

fn brief(text: &mut String, facts: &PhaseFacts) {
    let mut t = table(&["kernel", "anchor", "launches", "ops", "FLOP", "B"], &[2, 4, 5]);
    for (k, launches) in distinct(facts) {
        t.add_row([
            k.name.clone(),
            k.anchor.clone(),
            launches.to_string(),
            ops(k),
            scaled(k.flops.value),
            scaled(k.bytes.value),
        ]);
    }
    push(text, &t);
}

fn details(text: &mut String, facts: &PhaseFacts, output: &Output<'_>) {
    for (k, launches) in distinct(facts) {
        let launches = plural(launches, "launch").replace("launchs", "launches");
        let _ = writeln!(text, "  {} ({}), {launches} a step", output.bold(&k.name), k.anchor);
        let _ = writeln!(text, "    ops    {}", ops(k));
        let _ = writeln!(text, "    flops  {} = {}", grouped(k.flops.value), k.flops.expression);
        let _ = writeln!(text, "    bytes  {} = {}", grouped(k.bytes.value), k.bytes.expression);
        for p in &k.params {
            let (role, rest) = p.split_once(' ').unwrap_or(("", p));
            let _ = writeln!(text, "    {role:<9} {rest}");
        }
        text.push('\n');
    }
}

/// Decisions with the same pass, outcome and reason, counted.
fn remark_summary(text: &mut String, remarks: &[PhaseRemark], output: &Output<'_>) {
    let mut alike: IndexMap<(&str, bool, &str), usize> = IndexMap::new();
    for r in remarks {
        *alike.entry((r.remark.pass, r.remark.taken, &r.remark.reason)).or_default() += 1;
    }
    let _ = writeln!(text, "{} (each with --remarks)", output.bold("What the passes did, and left"));
    let mut t = table(&["pass", "", "sites", "reason"], &[2]);
    for ((pass, taken, reason), n) in alike {
        let taken = if taken { "done" } else { "left" };
        t.add_row([pass, taken, &n.to_string(), reason]);
    }
    push(text, &t);
}

/// Phase, pass, whether it was done, what, why, bytes saved.
type Decision<'e> = (&'e str, &'e str, bool, &'e str, &'e str, &'e str);

/// Every distinct decision, with the layers it was taken in.
fn all_remarks(text: &mut String, remarks: &[PhaseRemark], output: &Output<'_>) {
    let mut alike: IndexMap<Decision<'_>, BTreeSet<u32>> = IndexMap::new();
    for r in remarks {
        let key =
            (&*r.phase, r.remark.pass, r.remark.taken, &*r.remark.what, &*r.remark.reason, &*r.remark.bytes_saved);
        alike.entry(key).or_default().extend(r.remark.layer);
    }
    let _ = writeln!(text, "{}\n", output.bold("What the passes did, and left"));
    for ((phase, pass, taken, what, reason, saved), layers) in alike {
        let taken = if taken { "done" } else { "left" };
        let layers: Vec<u32> = layers.into_iter().collect();
        let layers = match layers[..] {
            [] => String::new(),
            [layer] => format!(" (layer {layer})"),
            _ => format!(" (layers {})", ranges(&layers)),
        };
        let _ = writeln!(text, "  {phase} {pass} {taken}: {what}{layers}\n      {reason}");
        if !saved.is_empty() {
            let _ = writeln!(text, "      saves {saved} B");
        }
    }
}
