//! From a tree to a checked [`Spec`]: keys and types (`values`), then what the architecture demands of
//! shapes, layers and feed-forwards, then the spec itself (`build`).
//!
//! Every stage reports all it finds; checks skip values that are missing or already reported.

mod build;
mod feed_forward;
mod layers;
mod lists;
mod scalars;
mod shapes;
mod spans;
mod values;

pub use spans::Spans;

use crate::spec::Spec;
use crate::yaml::Node;
use dsc_ir::diag::{Diagnostic, has_errors};

/// The spec of a tree, places of its values, and findings in the order of the text.
pub fn validate(root: &Node) -> (Option<Spec>, Spans, Vec<Diagnostic>) {
    let mut values = values::Values::new(root);
    let checks = [shapes::check, layers::check, feed_forward::check];
    for check in checks {
        let mut findings = Vec::new();
        check(&values, &mut findings);
        values.findings.append(&mut findings);
    }
    let spec = if has_errors(&values.findings) { None } else { build::spec(&values) };
    (spec, values.spans, values.findings)
}

/// `a`, `b` and `c`.
pub fn quoted(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => quoted.join(""),
    }
}
