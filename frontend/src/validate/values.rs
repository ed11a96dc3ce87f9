//! Keys and types: from the tree to a flat table of checked values, driven by [`KEYS`].
//!
//! A value that is wrong is reported and left out, so that later checks skip what depends on it and all
//! other findings still come out in the same run.

use super::quoted;
use super::scalars::hint;
use super::spans::Spans;
use crate::keys::{self, KEYS, Key, Kind, Need};
use crate::suggest::nearest;
use crate::yaml::{self, Entry, Node, Value};
use dsc_ir::diag::{
    Code, Diagnostic, E0108_UNKNOWN_KEY, E0109_MISSING_KEY, E0110_WRONG_TYPE, E0111_OUT_OF_RANGE, E0118_NOT_SUPPORTED,
    Source, Span,
};
use std::collections::{BTreeMap, BTreeSet};

/// A checked value.
#[derive(Debug, Clone, PartialEq)]
pub enum Checked {
    /// Of an integer key.
    Int(u64),
    /// Of a number key.
    Float(f64),
    /// Of a boolean key.
    Bool(bool),
    /// Of a text or a choice.
    Text(String),
    /// Of a list.
    List(Vec<u64>),
}

/// Checked values, places and findings.
pub struct Values<'t> {
    pub(super) values: BTreeMap<&'static str, Checked>,
    sections: BTreeSet<&'static str>,
    pub(super) nodes: BTreeMap<&'static str, &'t Node>,
    pub(super) in_progress: BTreeSet<&'static str>,
    pub(super) failed: BTreeSet<&'static str>,
    /// Places.
    pub spans: Spans,
    /// Findings so far.
    pub findings: Vec<Diagnostic>,
}

impl<'t> Values<'t> {
    /// Checks keys and types of a tree.
    pub fn new(root: &'t Node) -> Values<'t> {
        let spans = Spans::new(root.span.clone());
        let mut values = Values {
            values: BTreeMap::new(),
            sections: BTreeSet::from([""]),
            nodes: BTreeMap::new(),
            in_progress: BTreeSet::new(),
            failed: BTreeSet::new(),
            spans,
            findings: Vec::new(),
        };
        values.section("", root);
        values.missing();
        values.evaluate();
        values
    }

    /// Value of an integer key.
    pub fn int(&self, path: &str) -> Option<u64> {
        match self.values.get(path)? {
            Checked::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// Value of a number key.
    pub fn float(&self, path: &str) -> Option<f64> {
        match self.values.get(path)? {
            Checked::Float(value) => Some(*value),
            _ => None,
        }
    }

    /// Value of a boolean key.
    pub fn flag(&self, path: &str) -> Option<bool> {
        match self.values.get(path)? {
            Checked::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// Value of a text or choice key.
    pub fn text(&self, path: &str) -> Option<&str> {
        match self.values.get(path)? {
            Checked::Text(value) => Some(value),
            _ => None,
        }
    }

    /// Value of a list key.
    pub fn list(&self, path: &str) -> Option<&[u64]> {
        match self.values.get(path)? {
            Checked::List(value) => Some(value),
            _ => None,
        }
    }

    /// Whether a section is there.
    pub fn has(&self, section: &str) -> bool {
        self.sections.contains(section)
    }

    /// Adds an error at a key's value.
    pub fn error(&self, code: Code, path: &str) -> Diagnostic {
        Diagnostic::error(code, self.spans.of(path))
    }

    /// Keys of one mapping.
    fn section(&mut self, path: &'static str, node: &'t Node) {
        for entry in node.entries().unwrap_or_default() {
            let inner = if path.is_empty() { entry.key.clone() } else { format!("{path}.{}", entry.key) };
            match keys::find(&inner) {
                Some(key) => self.entry(key, entry),
                None => self.unknown(path, &inner, entry),
            }
        }
    }

    fn entry(&mut self, key: &'static Key, entry: &'t Entry) {
        self.spans.keys.insert(key.path.to_owned(), entry.key_span.clone());
        let node = &entry.node;
        if node.value == Value::Null {
            if key.need == Need::Required {
                let at = entry.key_span.clone();
                let finding = Diagnostic::error(E0109_MISSING_KEY, at).message(format!("`{}` has no value", key.path));
                self.findings.push(finding.note(key.doc));
                self.failed.insert(key.path);
            }
            return;
        }
        if node.span.len > 0 {
            self.spans.values.insert(key.path.to_owned(), node.span.clone());
        }
        match (key.kind, &node.value) {
            (Kind::Unsupported, _) => {
                let what = key.doc.trim_end_matches('.');
                let finding = Diagnostic::error(E0118_NOT_SUPPORTED, entry.key_span.clone())
                    .message(format!("`{}` is not supported yet", key.path))
                    .label(what)
                    .help("remove the key to build the rest of the model");
                self.findings.push(finding);
            }
            (Kind::Section | Kind::SectionOr(_), Value::Map(_)) => {
                self.spans.values.remove(key.path);
                self.sections.insert(key.path);
                self.section(key.path, node);
            }
            (Kind::SectionOr(word), Value::Text(text)) if text.text == word => {}
            (Kind::Section, _) => self.wrong_type(key, node, "a mapping of keys"),
            (Kind::SectionOr(word), _) => self.wrong_type(key, node, &format!("a mapping of keys or `{word}`")),
            _ => {
                self.nodes.insert(key.path, node);
            }
        }
    }

    fn unknown(&mut self, section: &str, path: &str, entry: &Entry) {
        let place = if section.is_empty() { "at the top level".to_owned() } else { format!("in `{section}`") };
        let siblings = keys::children(section).map(|key| keys::last(key.path));
        let near = nearest(&entry.key, siblings).map(|near| format!("did you mean `{near}`?"));
        let elsewhere = || {
            let known = KEYS.iter().find(|key| keys::last(key.path) == entry.key)?;
            let home = keys::parent(known.path);
            Some(if home.is_empty() {
                format!("`{}` belongs at the top level", entry.key)
            } else {
                format!("`{}` belongs in `{home}`", entry.key)
            })
        };
        let merge = (entry.key == "<<").then(|| "merge keys are not part of YAML 1.2; use `base`".to_owned());
        let any = || {
            let near = nearest(&entry.key, KEYS.iter().map(|key| keys::last(key.path)))?;
            let full = KEYS.iter().find(|key| keys::last(key.path) == near)?.path;
            Some(format!("did you mean `{full}`?"))
        };
        let help = merge.or_else(elsewhere).or(near).or_else(any);
        let finding = Diagnostic::error(E0108_UNKNOWN_KEY, entry.key_span.clone())
            .message(format!("unknown key `{}` {place}", entry.key))
            .help(help.unwrap_or_else(|| "`dsc schema` lists every key".into()));
        self.findings.push(finding);
        self.spans.keys.insert(path.to_owned(), entry.key_span.clone());
    }

    /// Reports required keys that are missing, and notes which sections exist by default.
    fn missing(&mut self) {
        let mut lacking: Vec<(&'static str, Vec<&'static Key>)> = Vec::new();
        for key in KEYS {
            let section = keys::parent(key.path);
            if !self.sections.contains(section) || self.spans.is_written(key.path) {
                continue;
            }
            match key.need {
                Need::Required => {
                    self.failed.insert(key.path);
                    match lacking.iter_mut().find(|(known, _)| *known == section) {
                        Some((_, keys)) => keys.push(key),
                        None => lacking.push((section, vec![key])),
                    }
                }
                Need::Optional if key.kind == Kind::Section && defaults_inside(key.path) => {
                    self.sections.insert(key.path);
                }
                _ => {}
            }
        }
        for (section, keys) in lacking {
            self.report_missing(section, &keys);
        }
    }

    fn report_missing(&mut self, section: &str, missing: &[&Key]) {
        let names: Vec<&str> = missing.iter().map(|key| keys::last(key.path)).collect();
        let place = if section.is_empty() { "the spec".to_owned() } else { format!("`{section}`") };
        let meaning = if let [key] = missing { key.doc } else { "`dsc schema` says what each means" };
        let finding = Diagnostic::error(E0109_MISSING_KEY, self.spans.key(section))
            .message(format!("{place} lacks {}", quoted(&names)))
            .note(meaning);
        self.findings.push(finding);
    }

    /// Works out all values, integers first: lists need the number of layers.
    fn evaluate(&mut self) {
        let keys: Vec<&'static Key> = KEYS.iter().filter(|key| self.applies(key)).collect();
        for key in keys.iter().filter(|key| matches!(key.kind, Kind::Int(..))) {
            self.int_of(key);
        }
        for key in keys {
            let default;
            let node = match (self.nodes.get(key.path), key.need) {
                (Some(node), _) => *node,
                (None, Need::Default(text)) => {
                    default = yaml::parse(&Source::new("default", text)).0;
                    let Some(node) = &default else { continue };
                    node
                }
                _ => continue,
            };
            if let Some(value) = self.value(key, node) {
                self.values.insert(key.path, value);
            }
        }
    }

    fn applies(&self, key: &Key) -> bool {
        !key.is_section() && self.sections.contains(keys::parent(key.path))
    }

    fn value(&mut self, key: &'static Key, node: &Node) -> Option<Checked> {
        match (key.kind, &node.value) {
            (Kind::Int(..), _) => None,
            (Kind::Float(low, high), Value::Int(_) | Value::Float(_)) => self.float_of(key, node, low, high),
            (Kind::Bool, Value::Bool(value)) => Some(Checked::Bool(*value)),
            (Kind::Name, Value::Text(text)) => self.name(key, node, &text.text),
            (Kind::Text, Value::Text(text)) => Some(Checked::Text(text.text.clone())),
            (Kind::Choice(words), Value::Text(text)) => self.choice(key, node, words, &text.text),
            (Kind::PerLayer(max), Value::Seq(items)) => self.per_layer_list(key, items, max),
            (Kind::PerLayer(max), Value::Map(entries)) => self.per_layer_map(key, entries, max),
            (Kind::Layers, Value::Seq(_) | Value::Int(_) | Value::Text(_)) => self.layers(key, node),
            (Kind::Ints(low, high), Value::Seq(items)) => {
                let ints = items.iter().enumerate().map(|(at, item)| self.item(key, at, item, low, high));
                let ints: Vec<Option<u64>> = ints.collect();
                ints.into_iter().collect::<Option<_>>().map(Checked::List)
            }
            (kind, _) => {
                let expected = match kind {
                    Kind::Float(..) => "a number".to_owned(),
                    Kind::Bool => "`true` or `false`".to_owned(),
                    Kind::Text | Kind::Name => "a text".to_owned(),
                    Kind::Choice(words) => format!("one of {}", quoted(words)),
                    Kind::PerLayer(_) => "a list with one integer per layer, or a mapping of layers to integers".into(),
                    Kind::Layers => "a list of layers, or a pattern such as `2..20 step 6`".into(),
                    _ => "a list of integers".to_owned(),
                };
                self.wrong_type(key, node, &expected);
                None
            }
        }
    }

    pub(super) fn wrong_type(&mut self, key: &Key, node: &Node, expected: &str) {
        let written = node.span.len > 0;
        let at = if written { node.span.clone() } else { self.spans.key(key.path) };
        let finding = Diagnostic::error(E0110_WRONG_TYPE, at)
            .message(format!("`{}` takes {expected}, not {}", key.path, node.kind()))
            .help(hint(key, node));
        self.findings.push(finding);
        self.failed.insert(key.path);
    }

    pub(super) fn out_of_range(&mut self, path: &str, at: Span, found: &str, low: &str, high: &str) {
        let finding = Diagnostic::error(E0111_OUT_OF_RANGE, at)
            .message(format!("`{path}` is {found}, outside {low} to {high}"))
            .note(keys::find(path).map(|key| key.doc.to_owned()));
        self.findings.push(finding);
    }
}

/// Whether every key of a section has a default, so that the section exists without being written.
fn defaults_inside(section: &str) -> bool {
    let mut any = false;
    keys::children(section).all(|key| {
        any = true;
        matches!(key.need, Need::Default(_) | Need::Optional)
    }) && any
}
