//! Reading a configuration: typed access that remembers which keys were used.

use crate::validate::quoted;
use crate::yaml::{Entry, Node, Value};
use dsc_ir::diag::{
    Diagnostic, E0503_IMPORT_MISSING, E0504_IMPORT_VALUE, Severity, Span, W0510_IMPORT_UNUSED, W0511_IMPORT_LEFT_OUT,
};
use std::collections::BTreeSet;

/// A configuration; keys are looked up in the entered section first and then at the top level.
pub struct Config<'a> {
    root: &'a Node,
    section: Option<&'a Entry>,
    used: BTreeSet<String>,
    missing: Vec<String>,
    findings: Vec<Diagnostic>,
    ignore_rest: bool,
}

impl<'a> Config<'a> {
    pub fn new(root: &'a Node) -> Config<'a> {
        Config {
            root,
            section: None,
            used: BTreeSet::new(),
            missing: Vec::new(),
            findings: Vec::new(),
            ignore_rest: false,
        }
    }

    /// Looks up keys in this section first from now on.
    pub fn enter(&mut self, key: &str) -> Option<()> {
        let entry = self.entry(key).filter(|entry| entry.node.entries().is_some());
        let Some(entry) = entry else {
            self.missing(key);
            return None;
        };
        self.section = Some(entry);
        self.used.insert(key.to_owned());
        self.text("model_type");
        Some(())
    }

    pub fn push(&mut self, finding: Diagnostic) {
        self.findings.push(finding);
    }

    pub fn ignore_all(&mut self) {
        self.ignore_rest = true;
    }

    pub fn into_findings(self) -> Vec<Diagnostic> {
        self.findings
    }

    /// The entry at a dotted path.
    fn entry(&self, path: &str) -> Option<&'a Entry> {
        let find = |node: &'a Node| {
            let mut parts = path.split('.');
            let first = node.get(parts.next()?)?;
            parts.try_fold(first, |entry, part| entry.node.get(part))
        };
        self.section.and_then(|section| find(&section.node)).or_else(|| find(self.root))
    }

    /// Place of a key's value.
    pub fn place(&self, path: &str) -> Option<Span> {
        self.entry(path).map(|entry| entry.node.span.clone())
    }

    /// Value of a key that is there and not null; it counts as used.
    pub fn node(&mut self, path: &str) -> Option<&'a Node> {
        let entry = self.entry(path)?;
        self.mark(entry);
        // Some keys are given twice, in the section and at the top level.
        if let Some(outer) = self.root.get(path) {
            self.mark(outer);
        }
        Some(&entry.node).filter(|node| node.value != Value::Null)
    }

    fn mark(&mut self, entry: &Entry) {
        self.used.insert(mark(&entry.key_span));
    }

    pub fn has(&self, path: &str) -> bool {
        self.entry(path).is_some_and(|entry| entry.node.value != Value::Null)
    }

    fn missing(&mut self, path: &str) {
        if !self.missing.iter().any(|known| known == path) {
            self.missing.push(path.to_owned());
        }
    }

    /// One error for all keys that are missing.
    pub fn report_missing(&mut self) {
        if self.missing.is_empty() {
            return;
        }
        let place = self.section.map_or(&self.root.span, |section| &section.key_span).clone();
        let names: Vec<&str> = self.missing.iter().map(String::as_str).collect();
        let finding = Diagnostic::error(E0503_IMPORT_MISSING, place)
            .message(format!("the configuration lacks {}", quoted(&names)));
        self.findings.push(finding);
    }

    /// Reports a value that is not understood.
    pub fn refuse(&mut self, path: &str, message: String) {
        let finding = Diagnostic::new(E0504_IMPORT_VALUE, Severity::Error, self.place(path)).message(message);
        self.findings.push(finding);
    }

    fn typed<T>(&mut self, path: &str, what: &str, read: impl Fn(&Node) -> Option<T>) -> Option<T> {
        let Some(node) = self.node(path) else {
            self.missing(path);
            return None;
        };
        let value = read(node);
        if value.is_none() {
            let found = match node.value {
                Value::Int(value) => value.to_string(),
                Value::Float(value) => value.to_string(),
                _ => node.kind().to_owned(),
            };
            self.refuse(path, format!("`{path}` should be {what}, not {found}"));
        }
        value
    }

    pub fn int(&mut self, path: &str) -> Option<u64> {
        self.typed(path, "a natural number", int_of)
    }

    pub fn int_or(&mut self, path: &str, default: u64) -> Option<u64> {
        if self.has(path) { self.int(path) } else { Some(default) }
    }

    pub fn float(&mut self, path: &str) -> Option<f64> {
        self.typed(path, "a number", |node| match node.value {
            Value::Int(value) => Some(value as f64),
            Value::Float(value) => Some(value),
            _ => None,
        })
    }

    pub fn float_or(&mut self, path: &str, default: f64) -> Option<f64> {
        if self.has(path) { self.float(path) } else { Some(default) }
    }

    pub fn flag_or(&mut self, path: &str, default: bool) -> Option<bool> {
        if !self.has(path) {
            return Some(default);
        }
        self.typed(path, "true or false", |node| match node.value {
            Value::Bool(value) => Some(value),
            _ => None,
        })
    }

    pub fn text(&mut self, path: &str) -> Option<String> {
        self.typed(path, "a text", |node| match &node.value {
            Value::Text(text) => Some(text.text.clone()),
            _ => None,
        })
    }

    pub fn ints(&mut self, path: &str) -> Option<Vec<u64>> {
        self.typed(path, "a list of natural numbers", |node| match &node.value {
            Value::Seq(items) => items.iter().map(int_of).collect(),
            _ => None,
        })
    }

    pub fn texts(&mut self, path: &str) -> Option<Vec<String>> {
        self.typed(path, "a list of texts", |node| match &node.value {
            Value::Seq(items) => items
                .iter()
                .map(|item| match &item.value {
                    Value::Text(text) => Some(text.text.clone()),
                    _ => None,
                })
                .collect(),
            _ => None,
        })
    }

    /// Refuses any value of a key but this one.
    pub fn only_text(&mut self, path: &str, allowed: &str) {
        if self.has(path) && self.text(path).is_some_and(|found| found != allowed) {
            self.refuse(path, format!("dsc knows `{path}` only as `{allowed}`"));
        }
    }

    pub fn only_flag(&mut self, path: &str, allowed: bool) {
        if self.flag_or(path, allowed).is_some_and(|found| found != allowed) {
            self.refuse(path, format!("dsc knows `{path}` only as `{allowed}`"));
        }
    }

    pub fn only_number(&mut self, path: &str, allowed: f64) {
        if self.float_or(path, allowed).is_some_and(|found| found != allowed) {
            self.refuse(path, format!("dsc knows `{path}` only as {allowed}"));
        }
    }

    /// Leaves a part out with a warning; its keys count as used.
    pub fn leave_out(&mut self, keys: &[&str], what: &str) {
        let present: Vec<&'a Entry> = keys.iter().filter_map(|key| self.entry(key)).collect();
        present.iter().for_each(|entry| self.mark_all(entry));
        if let Some(first) = present.iter().find(|entry| entry.node.value != Value::Null) {
            let finding = Diagnostic::warning(W0511_IMPORT_LEFT_OUT, first.key_span.clone())
                .message(format!("{what} left out"))
                .note("not supported yet; the spec describes the model without");
            self.findings.push(finding);
        }
    }

    fn mark_all(&mut self, entry: &Entry) {
        self.mark(entry);
        for inner in entry.node.entries().unwrap_or_default() {
            self.mark_all(inner);
        }
    }

    /// One warning per key that nothing asked for.
    pub fn report_unused(&mut self) {
        if self.ignore_rest || self.findings.iter().any(Diagnostic::is_error) {
            return;
        }
        let mut unused = Vec::new();
        for entry in self.root.entries().unwrap_or_default() {
            self.unused(entry, "", &mut unused);
        }
        self.findings.extend(unused);
    }

    fn unused(&self, entry: &Entry, prefix: &str, out: &mut Vec<Diagnostic>) {
        let path = if prefix.is_empty() { entry.key.clone() } else { format!("{prefix}.{}", entry.key) };
        match entry.node.entries() {
            Some(inner) if !inner.is_empty() => inner.iter().for_each(|entry| self.unused(entry, &path, out)),
            _ if self.used.contains(&mark(&entry.key_span)) => {}
            _ => {
                let finding = Diagnostic::warning(W0510_IMPORT_UNUSED, entry.key_span.clone());
                out.push(finding.message(format!("`{path}` was not used")));
            }
        }
    }
}

/// What tells one key of the text from another.
fn mark(span: &Span) -> String {
    format!("@{}", span.start)
}

fn int_of(node: &Node) -> Option<u64> {
    match node.value {
        Value::Int(value) => u64::try_from(value).ok(),
        Value::Float(value) if value >= 0.0 && value.fract() == 0.0 && value < 9e15 => Some(value as u64),
        _ => None,
    }
}
