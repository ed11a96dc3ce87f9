//! Source texts and places in them.

use indexmap::IndexMap;
use serde::{Serialize, Serializer};
use std::sync::Arc;

/// A place in a source text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Span {
    /// Name of the source, as in [`SourceMap`].
    #[serde(serialize_with = "as_text")]
    pub file: Arc<str>,
    /// Byte offset of the first byte.
    pub start: usize,
    /// Length in bytes; 0 marks a point.
    pub len: usize,
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub col: u32,
}

fn as_text<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}

impl Span {
    /// The first byte after the span.
    pub fn end(&self) -> usize {
        self.start.saturating_add(self.len)
    }
}

/// A named text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// File name, or a name such as `--set KEY=VALUE`.
    pub name: Arc<str>,
    /// The whole text.
    pub text: Arc<str>,
}

impl Source {
    /// A source of this name and text.
    pub fn new(name: impl Into<Arc<str>>, text: impl Into<Arc<str>>) -> Source {
        Source { name: name.into(), text: text.into() }
    }

    /// The place of `len` bytes at `start`; offsets beyond the text are moved to its end.
    pub fn span(&self, start: usize, len: usize) -> Span {
        let start = self.floor(start.min(self.text.len()));
        let end = self.floor(start.saturating_add(len).min(self.text.len()));
        let before = &self.text[..start];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let line = before.bytes().filter(|&b| b == b'\n').count() + 1;
        let col = before[line_start..].chars().count() + 1;
        Span { file: self.name.clone(), start, len: end - start, line: clamp(line), col: clamp(col) }
    }

    /// The line that holds `offset`: its first byte and its text without the line end.
    pub fn line_at(&self, offset: usize) -> (usize, &str) {
        let offset = self.floor(offset.min(self.text.len()));
        let start = self.text[..offset].rfind('\n').map_or(0, |at| at + 1);
        let end = self.text[offset..].find('\n').map_or(self.text.len(), |at| offset + at);
        (start, self.text[start..end].trim_end_matches('\r'))
    }

    /// The nearest character boundary at or before `offset`.
    fn floor(&self, mut offset: usize) -> usize {
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        offset
    }
}

fn clamp(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// The sources of one run, by name.
#[derive(Debug, Clone, Default)]
pub struct SourceMap {
    sources: IndexMap<Arc<str>, Source>,
}

impl SourceMap {
    /// No sources.
    pub fn new() -> SourceMap {
        SourceMap::default()
    }

    /// Adds a source (a later one of the same name replaces it) and returns it.
    pub fn add(&mut self, name: impl Into<Arc<str>>, text: impl Into<Arc<str>>) -> Source {
        let source = Source::new(name, text);
        self.sources.insert(source.name.clone(), source.clone());
        source
    }

    /// The source of this name.
    pub fn get(&self, name: &str) -> Option<&Source> {
        self.sources.get(name)
    }

    /// All sources, in the order they were added.
    pub fn iter(&self) -> impl Iterator<Item = &Source> {
        self.sources.values()
    }

    /// Adds the sources of another map.
    pub fn extend(&mut self, other: &SourceMap) {
        for source in other.iter() {
            self.sources.insert(source.name.clone(), source.clone());
        }
    }
}
