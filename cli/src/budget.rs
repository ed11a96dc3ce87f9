//! Budgets of a spec, held against its compiled schedules.

use crate::output::{exact, grouped, plural};
use dsc_frontend::Spans;
use dsc_frontend::spec::{Caches, LaunchBudget, Spec};
use dsc_ir::diag::{Diagnostic, E0304_KV_BUDGET, E0305_LAUNCH_BUDGET};
use dsc_ir::dtype::RowFormat;
use dsc_passes::explain::{Kv, KvLayer, PhaseFacts};
use indexmap::IndexMap;

/// Caches that grow with the context, and the keys of their formats.
const CACHES: [(&str, &str); 2] = [("attn.main", "kv_cache.main"), ("attn.index_keys", "kv_cache.index")];

/// An error for each budget that the result exceeds, at its key.
pub fn check(spec: &Spec, kv: &Kv, phases: &IndexMap<String, PhaseFacts>, spans: &Spans) -> Vec<Diagnostic> {
    let launches = spec.budgets.launches.iter().filter_map(|b| launch_budget(b, phases.get(&b.phase)?, spans));
    kv_budget(spec, kv, spans).into_iter().chain(launches).collect()
}

fn kv_budget(spec: &Spec, kv: &Kv, spans: &Spans) -> Option<Diagnostic> {
    let (needed, at_most) = (kv.bytes_per_token.0, spec.budgets.kv_bytes_per_token?);
    if needed <= at_most {
        return None;
    }
    let message = format!("KV cache grows by {} bytes/token, over the budget of {}", exact(needed), exact(at_most));
    let mut finding = Diagnostic::error(E0304_KV_BUDGET, spans.of("budgets.kv_bytes_per_token")).message(message);
    for (cache, key) in CACHES {
        let layers: Vec<&KvLayer> = kv.layers.iter().filter(|l| l.name == cache && l.ratio > 0).collect();
        let share: f64 = layers.iter().map(|l| l.bytes_per_token.0).sum();
        let text = format!("{} of them come from here, in {}", exact(share), plural(layers.len(), "layer"));
        finding = match spans.is_written(key) {
            _ if layers.is_empty() => finding,
            true => finding.related(spans.of(key), text),
            false => finding.note(format!("`{key}`: {text}")),
        };
    }
    let fixed = grouped(kv.bytes_per_sequence);
    let finding = finding.note(format!("plus {fixed} bytes per sequence that do not grow with the context"));
    Some(finding.help(smaller_main(spec, kv, at_most)))
}

/// The widest format of compressed rows that keeps the budget.
fn smaller_main(spec: &Spec, kv: &Kv, at_most: f64) -> Option<String> {
    if spec.numerics.caches == Caches::Exact {
        return Some("`numerics.caches: packed` stores rows in the formats of `kv_cache`".into());
    }
    [RowFormat::Fp8, RowFormat::Fp4].into_iter().find_map(|format| {
        let row = format.row_bytes(spec.attention.head_dim) as f64;
        let bytes =
            |l: &KvLayer| if l.name == CACHES[0].0 { row / f64::from(l.ratio.max(1)) } else { l.bytes_per_token.0 };
        let reached: f64 = kv.layers.iter().map(bytes).sum();
        (reached <= at_most).then(|| format!("`kv_cache.main: {format}` would bring it to {}", exact(reached)))
    })
}

fn launch_budget(budget: &LaunchBudget, facts: &PhaseFacts, spans: &Spans) -> Option<Diagnostic> {
    let LaunchBudget { phase, what, at_most } = budget;
    let (launches, whose) = if what == "step" {
        (facts.launches_per_step, format!("a {phase} step"))
    } else {
        let kinds = facts.layer_kinds.iter().filter(|kind| kind.role == *what);
        let most = kinds.max_by_key(|kind| kind.launches)?;
        let layer = most.layers.first().copied().unwrap_or_default();
        (most.launches, format!("a `{what}` layer in {phase} (layer {layer})"))
    };
    let path = format!("budgets.launches.{phase}.{what}");
    (launches > *at_most).then(|| {
        Diagnostic::error(E0305_LAUNCH_BUDGET, spans.of(&path))
            .message(format!("{whose} takes {launches} launches, over the budget of {at_most}"))
            .help(format!("`dsc explain --phase {phase}` lists them, and why they were not fused"))
    })
}
