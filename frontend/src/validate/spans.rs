//! Places of keys and values, by dotted path.

use crate::keys;
use dsc_ir::diag::Span;
use std::collections::BTreeMap;

/// Places by dotted path.
#[derive(Debug, Clone, PartialEq)]
pub struct Spans {
    pub(super) values: BTreeMap<String, Span>,
    pub(super) keys: BTreeMap<String, Span>,
    root: Span,
}

impl Spans {
    /// No places yet; `root` stands in for those that were not written.
    pub(super) fn new(root: Span) -> Spans {
        Spans { values: BTreeMap::new(), keys: BTreeMap::new(), root }
    }

    /// The place of a key's value; where it was not written, that of its section or of the file.
    pub fn of(&self, path: &str) -> Span {
        let written = self.values.get(path).or_else(|| self.keys.get(path));
        match written {
            Some(span) => span.clone(),
            None if path.is_empty() => self.root.clone(),
            None => self.key(keys::parent(path)),
        }
    }

    /// The place of the key itself, likewise.
    pub fn key(&self, path: &str) -> Span {
        match self.keys.get(path) {
            Some(span) => span.clone(),
            None if path.is_empty() => self.root.clone(),
            None => self.key(keys::parent(path)),
        }
    }

    /// Whether the key was written.
    pub fn is_written(&self, path: &str) -> bool {
        self.keys.contains_key(path)
    }

    /// Places of keys and values below a path, such as list items (`compress.compress_ratios[3]`).
    pub fn item(&self, path: &str, at: usize) -> Span {
        self.values.get(&format!("{path}[{at}]")).cloned().unwrap_or_else(|| self.of(path))
    }
}
