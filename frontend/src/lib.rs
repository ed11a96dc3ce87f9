//! The spec language: from a YAML architecture spec, or a published `config.json`, to a checked
//! [`spec::Spec`] and on to the op graph.
//!
//! [`load`] is the way in: it reads a file, its bases and `--set` overrides, and returns all findings of
//! one run. What a spec may say is one table, [`keys::KEYS`].

pub mod engram;
pub mod expr;
mod help;
pub mod import;
pub mod keys;
mod load;
pub mod lower;
mod pcg64;
pub mod schema;
pub mod spec;
mod suggest;
pub mod targets;
pub mod validate;
pub mod yaml;

use dsc_ir::diag::{self, Diagnostic, SourceMap, Style};
use std::path::Path;

pub use load::read;
pub use validate::Spans;

/// A valid spec.
#[derive(Debug, Clone)]
pub struct Checked {
    /// The architecture.
    pub spec: spec::Spec,
    /// Place of every key, by dotted path.
    pub spans: Spans,
    /// Every text that was read.
    pub sources: SourceMap,
}

/// The outcome of [`load`].
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The spec; absent if there is an error.
    pub checked: Option<Checked>,
    /// Errors and warnings.
    pub findings: Vec<Diagnostic>,
    /// Every text that was read, for [`render`].
    pub sources: SourceMap,
}

impl Loaded {
    /// All findings as text.
    pub fn render(&self, style: Style) -> String {
        render(&self.findings, &self.sources, style)
    }
}

/// The spec in a file, with overrides of the form `KEY=VALUE`.
pub fn load(path: &Path, sets: &[String]) -> Loaded {
    check(load::file(path, sets))
}

/// The spec in a text; a relative `base` is looked up beside `name`.
pub fn load_str(name: &str, text: &str, sets: &[String]) -> Loaded {
    check(load::text(name, text, sets))
}

/// Findings as text.
pub fn render(findings: &[Diagnostic], sources: &SourceMap, style: Style) -> String {
    diag::render_all(findings, sources, style)
}

fn check(tree: load::Tree) -> Loaded {
    let load::Tree { root, mut findings, sources } = tree;
    let mut checked = None;
    if let Some(root) = root {
        let (spec, spans, found) = validate::validate(&root);
        findings.extend(found);
        in_order(&mut findings, &sources);
        let spec = spec.filter(|_| !diag::has_errors(&findings));
        checked = spec.map(|spec| Checked { spec, spans, sources: sources.clone() });
    }
    help::complete(&mut findings);
    Loaded { checked, findings, sources }
}

/// Sorts findings by their place in the texts.
fn in_order(findings: &mut [Diagnostic], sources: &SourceMap) {
    let place = |finding: &Diagnostic| {
        let span = finding.span()?;
        let file = sources.iter().position(|source| source.name == span.file)?;
        Some((file, span.start))
    };
    findings.sort_by_key(place);
}
