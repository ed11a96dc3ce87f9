//! YAML text to a tree with a place for every key and value. The only module that names the YAML crate.
//!
//! YAML 1.2 core schema, one document, keys are texts, no tags and no merge keys. Aliases are expanded
//! within a budget; keys that occur twice are errors with both places. All findings of a text are
//! returned: only a syntax error stops.

use dsc_ir::diag::{
    Diagnostic, E0102_NOT_UTF8, E0103_TOO_LARGE, E0104_EMPTY, E0105_YAML, E0106_DUPLICATE_KEY, E0107_YAML_LIMIT,
    Source, Span,
};
use serde_yaml::granit_parser::{Event, Marker, Options, Parser, ScalarStyle, Span as Range, StrInput, StructureStyle};
use std::collections::BTreeMap;

/// Longest text, in bytes.
pub const MAX_BYTES: usize = 1 << 20;
/// Most nodes after the expansion of aliases.
const MAX_NODES: usize = 100_000;
/// Deepest nesting.
const MAX_DEPTH: usize = 32;

/// A value and its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// Where it stands; for an alias, where the alias stands.
    pub span: Span,
}

/// A YAML value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `null`, `~` or nothing.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// An integer.
    Int(i128),
    /// A number with a point or an exponent.
    Float(f64),
    /// Any other scalar.
    Text(Text),
    /// A list.
    Seq(Vec<Node>),
    /// A mapping, in the order of the text.
    Map(Vec<Entry>),
}

/// A text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// The characters.
    pub text: String,
    /// Whether it was written without quotes, so that offsets in it are offsets in the source.
    pub plain: bool,
}

/// One key and its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Place of the key.
    pub key_span: Span,
    /// The value.
    pub node: Node,
}

impl Node {
    /// What kind of value it is, in the words of messages.
    pub fn kind(&self) -> &'static str {
        match &self.value {
            Value::Null => "nothing",
            Value::Bool(_) => "a boolean",
            Value::Int(_) => "an integer",
            Value::Float(_) => "a number",
            Value::Text(_) => "a text",
            Value::Seq(_) => "a list",
            Value::Map(_) => "a mapping",
        }
    }

    /// The entries, if it is a mapping.
    pub fn entries(&self) -> Option<&[Entry]> {
        match &self.value {
            Value::Map(entries) => Some(entries),
            _ => None,
        }
    }

    /// The entry of this key, if it is a mapping that has it.
    pub fn get(&self, key: &str) -> Option<&Entry> {
        self.entries()?.iter().find(|entry| entry.key == key)
    }

    /// The node at a dotted path.
    pub fn at(&self, path: &str) -> Option<&Node> {
        path.split('.').try_fold(self, |node, key| Some(&node.get(key)?.node))
    }
}

/// Text from bytes, or why it is none.
pub fn decode(name: &str, bytes: &[u8]) -> Result<String, Box<Diagnostic>> {
    if bytes.len() > MAX_BYTES {
        return Err(too_large(name, bytes.len() as u64));
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(error) => {
            let valid = error.valid_up_to();
            let source = Source::new(name, String::from_utf8_lossy(&bytes[..valid]).as_ref());
            let byte = bytes.get(valid).copied().unwrap_or_default();
            Err(Box::new(
                Diagnostic::error(E0102_NOT_UTF8, source.span(valid, 0))
                    .message(format!("the file is not UTF-8: byte 0x{byte:02x} at offset {valid}"))
                    .help("save the file as UTF-8"),
            ))
        }
    }
}

/// The finding for a file beyond the limit.
pub fn too_large(name: &str, n_bytes: u64) -> Box<Diagnostic> {
    let finding = Diagnostic::error(E0103_TOO_LARGE, Source::new(name, "").span(0, 0));
    let message = format!("the file has {n_bytes} bytes, more than the limit of {MAX_BYTES}");
    Box::new(finding.message(message).help("layer lists can be patterns, such as `\"2..20\": 2`"))
}

/// The tree of a text. Only syntax errors, an exceeded limit or an empty text give no tree.
pub fn parse(source: &Source) -> (Option<Node>, Vec<Diagnostic>) {
    if source.text.len() > MAX_BYTES {
        return (None, vec![*too_large(&source.name, source.text.len() as u64)]);
    }
    let mut options = Options::default();
    options.flow_nesting_limit = MAX_DEPTH;
    options.block_nesting_limit = MAX_DEPTH;
    options.set_emit_comments(false);
    let parser = Parser::new_from_str_with_options(&source.text, options);
    let mut builder = Builder { source, parser, anchors: BTreeMap::new(), n_nodes: 0, findings: Vec::new() };
    let tree = match builder.document() {
        Ok(tree) => tree,
        Err(stop) => {
            builder.findings.push(*stop);
            None
        }
    };
    (tree, builder.findings)
}

type Stop = Box<Diagnostic>;

struct Builder<'a> {
    source: &'a Source,
    parser: Parser<'a, StrInput<'a>>,
    anchors: BTreeMap<usize, (Node, usize)>,
    n_nodes: usize,
    findings: Vec<Diagnostic>,
}

impl<'a> Builder<'a> {
    fn document(&mut self) -> Result<Option<Node>, Stop> {
        let mut tree = None;
        while let Some((event, range)) = self.next()? {
            match event {
                Event::StreamStart | Event::StreamEnd | Event::DocumentStart(..) | Event::DocumentEnd => {}
                _ if tree.is_some() => {
                    return Err(self.stop(E0105_YAML, range, "a second document starts here", "keep one per file"));
                }
                event => tree = Some(self.node(event, range, 0)?),
            }
        }
        let empty = tree.as_ref().is_none_or(|node| node.value == Value::Null);
        if empty {
            let at = self.source.span(0, 0);
            let finding = Diagnostic::error(E0104_EMPTY, at).message("the file is empty");
            self.findings.push(finding.help("`dsc import config.json` writes a spec to start from"));
            return Ok(None);
        }
        Ok(tree)
    }

    fn next(&mut self) -> Result<Option<(Event<'a>, Range)>, Stop> {
        match self.parser.next_event() {
            None => Ok(None),
            Some(Ok(event)) => Ok(Some(event)),
            Some(Err(error)) => {
                let span = self.point(error.marker());
                let text = error.to_string();
                let reason = text.split(" at char ").next().unwrap_or_default();
                let limit = reason.contains("limit") || reason.contains("nesting");
                let code = if limit { E0107_YAML_LIMIT } else { E0105_YAML };
                Err(Box::new(Diagnostic::error(code, span).message(format!("not valid YAML: {reason}"))))
            }
        }
    }

    /// The node that `event` starts.
    fn node(&mut self, event: Event<'a>, mut range: Range, depth: usize) -> Result<Node, Stop> {
        self.n_nodes += 1;
        if self.n_nodes > MAX_NODES || depth > MAX_DEPTH {
            return Err(self.limit(range));
        }
        let before = self.n_nodes;
        let (value, anchor) = match event {
            Event::Alias(id) => return self.alias(id, range),
            Event::Scalar(text, style, anchor, tag) => {
                self.no_tag(tag.is_some(), range);
                let plain = style == ScalarStyle::Plain;
                let value = if plain { resolve(&text) } else { Value::Text(Text { text: text.into(), plain }) };
                (value, anchor)
            }
            Event::SequenceStart(style, anchor, tag) => {
                self.no_tag(tag.is_some(), range);
                let (items, end) = self.items(depth)?;
                range.end = if style == StructureStyle::Flow { end } else { range.end };
                (Value::Seq(items), anchor)
            }
            Event::MappingStart(style, anchor, tag) => {
                self.no_tag(tag.is_some(), range);
                let (entries, end) = self.entries(depth)?;
                range.end = if style == StructureStyle::Flow { end } else { range.end };
                (Value::Map(entries), anchor)
            }
            _ => {
                return Err(self.stop(E0105_YAML, range, "not valid YAML: a value is missing", ""));
            }
        };
        let node = Node { value, span: self.span(range) };
        if anchor > 0 {
            self.anchors.insert(anchor, (node.clone(), self.n_nodes - before + 1));
        }
        Ok(node)
    }

    fn alias(&mut self, id: usize, range: Range) -> Result<Node, Stop> {
        let Some((node, n_nodes)) = self.anchors.get(&id) else {
            return Err(self.stop(E0105_YAML, range, "an alias to the value that it is part of", ""));
        };
        self.n_nodes = self.n_nodes.saturating_add(*n_nodes);
        if self.n_nodes > MAX_NODES {
            return Err(self.limit(range));
        }
        Ok(Node { value: node.value.clone(), span: self.span(range) })
    }

    /// The items of a list, and where it ends.
    fn items(&mut self, depth: usize) -> Result<(Vec<Node>, Marker), Stop> {
        let mut items = Vec::new();
        let mut end = Marker::default();
        while let Some((event, range)) = self.next()? {
            end = range.end;
            if matches!(event, Event::SequenceEnd) {
                break;
            }
            items.push(self.node(event, range, depth + 1)?);
        }
        Ok((items, end))
    }

    /// The entries of a mapping, and where it ends.
    fn entries(&mut self, depth: usize) -> Result<(Vec<Entry>, Marker), Stop> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut places: BTreeMap<String, Span> = BTreeMap::new();
        let mut end = Marker::default();
        while let Some((event, range)) = self.next()? {
            end = range.end;
            if matches!(event, Event::MappingEnd) {
                break;
            }
            let (key, key_span) = self.key(event, range)?;
            let Some((event, range)) = self.next()? else {
                break;
            };
            let node = self.node(event, range, depth + 1)?;
            if let Some(first) = places.get(&key) {
                let finding = Diagnostic::error(E0106_DUPLICATE_KEY, key_span)
                    .message(format!("key `{key}` occurs twice"))
                    .label("the second one")
                    .related(first.clone(), "the first one")
                    .help("remove one of them");
                self.findings.push(finding);
            } else {
                places.insert(key.clone(), key_span.clone());
                entries.push(Entry { key, key_span, node });
            }
        }
        Ok((entries, end))
    }

    fn key(&mut self, event: Event<'a>, range: Range) -> Result<(String, Span), Stop> {
        match event {
            Event::Scalar(text, _, 0, None) => Ok((text.into(), self.span(range))),
            _ => Err(self.stop(E0105_YAML, range, "keys have to be plain texts", "")),
        }
    }

    fn no_tag(&mut self, tagged: bool, range: Range) {
        if tagged {
            let finding = self.stop(E0105_YAML, range, "YAML tags have no meaning in a spec", "remove the tag");
            self.findings.push(*finding);
        }
    }

    fn limit(&self, range: Range) -> Stop {
        let what = format!("more than {MAX_NODES} values, or nested deeper than {MAX_DEPTH}");
        self.stop(E0107_YAML_LIMIT, range, &what, "aliases count as often as they are used")
    }

    fn stop(&self, code: dsc_ir::diag::Code, range: Range, message: &str, help: &str) -> Stop {
        let help = (!help.is_empty()).then(|| help.to_owned());
        Box::new(Diagnostic::error(code, self.span(range)).message(message).help(help))
    }

    fn point(&self, at: &Marker) -> Span {
        let start = at.byte_offset().unwrap_or(0).min(self.source.text.len());
        let (line, col) = (narrow(at.line()), narrow(at.col() + 1));
        Span { file: self.source.name.clone(), start, len: 0, line, col }
    }

    /// The place of a range, up to the end of its first line.
    fn span(&self, range: Range) -> Span {
        let mut span = self.point(&range.start);
        let end = range.end.byte_offset().unwrap_or(span.start).min(self.source.text.len());
        let text = self.source.text.get(span.start..end.max(span.start)).unwrap_or_default();
        span.len = text.lines().next().unwrap_or_default().trim_end().len();
        span
    }
}

fn narrow(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// A plain scalar by the YAML 1.2 core schema.
fn resolve(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    if let Some(int) = integer(text) {
        return Value::Int(int);
    }
    match float(text) {
        Some(float) => Value::Float(float),
        None => Value::Text(Text { text: text.to_owned(), plain: true }),
    }
}

fn integer(text: &str) -> Option<i128> {
    let radix = |digits: &str, base| {
        let signed = digits.starts_with(['+', '-']);
        (!signed).then(|| i128::from_str_radix(digits, base).ok()).flatten()
    };
    if let Some(hex) = text.strip_prefix("0x") {
        return radix(hex, 16);
    }
    if let Some(octal) = text.strip_prefix("0o") {
        return radix(octal, 8);
    }
    text.parse().ok()
}

fn float(text: &str) -> Option<f64> {
    let bare = text.strip_prefix(['+', '-']).unwrap_or(text);
    match bare {
        ".inf" | ".Inf" | ".INF" => {
            return Some(if text.starts_with('-') { f64::NEG_INFINITY } else { f64::INFINITY });
        }
        ".nan" | ".NaN" | ".NAN" => return Some(f64::NAN),
        _ => {}
    }
    let numeric = bare.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && bare.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-'));
    numeric.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(text: &str) -> (Option<Node>, Vec<Diagnostic>) {
        parse(&Source::new("a.yaml", text))
    }

    #[test]
    fn scalars_follow_the_core_schema() {
        let (node, findings) = tree("[1, 0x10, 1e-20, .5, yes, ~, true, 'x', 1_000, 2..20, -3]");
        assert!(findings.is_empty());
        let Value::Seq(items) = node.unwrap().value else { panic!("no list") };
        let kinds: Vec<&str> = items.iter().map(Node::kind).collect();
        assert_eq!(kinds[..4], ["an integer", "an integer", "a number", "a number"]);
        assert_eq!(kinds[4..8], ["a text", "nothing", "a boolean", "a text"]);
        assert_eq!(kinds[8..], ["a text", "a text", "an integer"]);
    }

    #[test]
    fn places_are_right_after_wide_characters() {
        let (node, _) = tree("# größe\na:\n  é: 12\n");
        let node = node.unwrap();
        let span = &node.at("a.é").unwrap().span;
        assert_eq!((span.line, span.col, span.len), (3, 6, 2));
        assert_eq!(&"# größe\na:\n  é: 12\n"[span.start..span.end()], "12");
    }

    #[test]
    fn duplicates_are_all_found() {
        let (node, findings) = tree("a: 1\na: 2\nb: {c: 1, c: 2}\n");
        assert!(node.is_some());
        assert_eq!(findings.len(), 2);
        assert_eq!(findings[0].labels[1].span.line, 1);
    }

    #[test]
    fn aliases_are_expanded_within_a_budget() {
        let (node, findings) = tree("a: &x [1, 2]\nb: *x\n");
        assert!(findings.is_empty());
        assert_eq!(node.unwrap().at("b").unwrap().kind(), "a list");
        let mut bomb = String::from("a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n");
        for level in 1..9 {
            let uses = vec![format!("*a{}", level - 1); 10].join(", ");
            bomb.push_str(&format!("a{level}: &a{level} [{uses}]\n"));
        }
        let (node, findings) = tree(&bomb);
        assert!(node.is_none());
        assert_eq!(findings[0].code, E0107_YAML_LIMIT);
    }

    #[test]
    fn odd_texts_are_refused() {
        for text in ["", "# only\n", "a: [1", "a: b: c", "? [1]\n: 2", "a: &x [*x]", "a: *nope", "a: 1\n---\nb: 2"] {
            assert!(!tree(text).1.is_empty(), "{text:?}");
        }
        let deep = "[".repeat(5000);
        assert_eq!(tree(&deep).1[0].code, E0107_YAML_LIMIT);
    }
}
