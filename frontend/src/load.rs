//! Files to one tree: reading, `base:` of variants, `--set` overrides, and the deep merge of all three.

use crate::keys::{self, Need};
use crate::suggest::nearest;
use crate::yaml::{self, Entry, Node, Value};
use dsc_ir::diag::{
    Diagnostic, E0101_FILE, E0105_YAML, E0110_WRONG_TYPE, E0116_BASE, E0117_SET, Severity, Source, SourceMap, Span,
};
use std::path::{Component, Path, PathBuf};

/// Longest chain of bases.
const MAX_BASES: usize = 16;

/// A merged tree, or what is wrong.
#[derive(Debug, Default)]
pub struct Tree {
    /// The tree; absent when a text could not be read at all.
    pub root: Option<Node>,
    /// Findings so far.
    pub findings: Vec<Diagnostic>,
    /// Every text that was read.
    pub sources: SourceMap,
}

/// The tree of a file, its bases and the overrides.
pub fn file(path: &Path, sets: &[String]) -> Tree {
    let mut tree = Tree::default();
    let name = path.display().to_string();
    let root = match read(path) {
        Ok(text) => tree.text(&name, &text, path, &mut vec![canonical(path)]),
        Err(finding) => {
            tree.findings.push(*finding);
            None
        }
    };
    tree.finish(root, sets)
}

/// The tree of a text; a relative `base` is looked up beside `name`.
pub fn text(name: &str, text: &str, sets: &[String]) -> Tree {
    let mut tree = Tree::default();
    let root = tree.text(name, text, Path::new(name), &mut Vec::new());
    tree.finish(root, sets)
}

/// Text of a file; the finding has the path as its file name.
pub fn read(path: &Path) -> Result<String, Box<Diagnostic>> {
    use std::io::Read;
    let name = path.display().to_string();
    let mut bytes = Vec::new();
    let limit = yaml::MAX_BYTES as u64 + 1;
    let outcome = std::fs::File::open(path).and_then(|f| {
        let size = f.metadata()?.len();
        f.take(limit).read_to_end(&mut bytes)?;
        Ok(size)
    });
    match outcome {
        Ok(size) if size >= limit => Err(yaml::too_large(&name, size)),
        Ok(_) => yaml::decode(&name, &bytes),
        Err(error) => {
            let finding = Diagnostic::new(E0101_FILE, Severity::Error, None);
            Err(Box::new(finding.message(format!("cannot read `{name}`: {}", reason(&error)))))
        }
    }
}

/// The operating system's reason, without its error number.
fn reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "no such file".into(),
        std::io::ErrorKind::PermissionDenied => "permission denied".into(),
        std::io::ErrorKind::IsADirectory => "it is a folder".into(),
        _ => error.to_string(),
    }
}

/// The path without `folder/..`, for messages.
fn tidy(path: &Path) -> PathBuf {
    let mut tidy = PathBuf::new();
    for part in path.components() {
        let inside = matches!(tidy.components().next_back(), Some(Component::Normal(_)));
        if part == Component::ParentDir && inside {
            tidy.pop();
        } else {
            tidy.push(part);
        }
    }
    tidy
}

fn canonical(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

impl Tree {
    /// Parses one text and merges it over its base.
    fn text(&mut self, name: &str, text: &str, path: &Path, chain: &mut Vec<PathBuf>) -> Option<Node> {
        let source = self.sources.add(name, text);
        let (root, findings) = yaml::parse(&source);
        self.findings.extend(findings);
        let mut root = root?;
        let Value::Map(entries) = &mut root.value else {
            let finding = Diagnostic::error(E0110_WRONG_TYPE, root.span.clone());
            let message = format!("a spec is a mapping of keys, and this is {}", root.kind());
            self.findings.push(finding.message(message).help("write `key: value` lines"));
            return None;
        };
        let Some(at) = entries.iter().position(|entry| entry.key == "base") else {
            return Some(root);
        };
        let base = entries.remove(at);
        let place = root.span.clone();
        let base = self.base(&base, path, chain)?;
        Some(Node { span: place, ..merge("", base, root) })
    }

    fn base(&mut self, entry: &Entry, path: &Path, chain: &mut Vec<PathBuf>) -> Option<Node> {
        let fail = |message: String| Diagnostic::error(E0116_BASE, entry.node.span.clone()).message(message);
        let Value::Text(named) = &entry.node.value else {
            let message = format!("`base` takes the path of a spec, not {}", entry.node.kind());
            self.findings.push(Diagnostic::error(E0110_WRONG_TYPE, entry.node.span.clone()).message(message));
            return None;
        };
        let folder = path.parent().unwrap_or(Path::new(""));
        let base = tidy(&folder.join(&named.text));
        let shown = base.display().to_string();
        let identity = canonical(&base);
        if chain.contains(&identity) {
            let finding = fail(format!("the base `{shown}` is based on this spec"));
            self.findings.push(finding.help("a chain of bases has to end at a complete spec"));
            return None;
        }
        if chain.len() >= MAX_BASES {
            self.findings.push(fail(format!("more than {MAX_BASES} bases")));
            return None;
        }
        match read(&base) {
            Ok(text) => {
                chain.push(identity);
                let root = self.text(&shown, &text, &base, chain);
                chain.pop();
                root
            }
            Err(finding) if finding.code == E0101_FILE => {
                let finding = fail(finding.message).label("named here");
                self.findings.push(finding.help("paths are relative to the folder of this spec"));
                None
            }
            Err(finding) => {
                self.findings.push(*finding);
                None
            }
        }
    }

    fn finish(mut self, root: Option<Node>, sets: &[String]) -> Tree {
        self.root = root;
        for set in sets {
            if let Err(finding) = self.set(set) {
                self.findings.push(*finding);
            }
        }
        self
    }

    /// Applies one `KEY=VALUE`.
    fn set(&mut self, set: &str) -> Result<(), Box<Diagnostic>> {
        let source = self.sources.add(format!("--set {set}"), set);
        let whole = source.span(0, set.len());
        let fail = |span: Span, message: String| Box::new(Diagnostic::error(E0117_SET, span).message(message));
        let usage = "write `--set attention.sliding_window=64`";
        let Some((path, value)) = set.split_once('=') else {
            return Err(Box::new(fail(whole, "an override has the form KEY=VALUE".into()).help(usage)));
        };
        let key_span = source.span(0, path.len());
        if path.split('.').any(|part| part.trim() != part || part.is_empty()) {
            return Err(Box::new(fail(key_span, format!("`{path}` is not a dotted key")).help(usage)));
        }
        if path == "base" {
            return Err(fail(key_span, "`base` cannot be overridden".into()));
        }
        if keys::find(path).is_none() {
            let near = nearest(path, keys::KEYS.iter().map(|key| key.path));
            let near = near.or_else(|| same_name(path)).map(|key| format!("did you mean `{key}`?"));
            return Err(Box::new(
                fail(key_span, format!("no key `{path}`"))
                    .help(near.unwrap_or_else(|| "`dsc schema` lists every key".into())),
            ));
        }
        let value = set_value(&source, path.len() + 1, value)?;
        if let Some(root) = self.root.take() {
            let over = nest(path, value, &key_span);
            self.root = Some(merge("", root, over));
        }
        Ok(())
    }
}

/// A key elsewhere with the same last name.
fn same_name(path: &str) -> Option<&'static str> {
    keys::KEYS.iter().map(|key| key.path).find(|known| keys::last(known) == keys::last(path))
}

/// The value of an override, its places moved to where it stands in the override.
fn set_value(source: &Source, offset: usize, text: &str) -> Result<Node, Box<Diagnostic>> {
    let span = source.span(offset, text.len());
    if matches!(text.trim(), "" | "~" | "null") {
        return Ok(Node { value: Value::Null, span });
    }
    let (node, findings) = yaml::parse(&Source::new(source.name.clone(), text));
    let moved = |inner: &Span| source.span(offset + inner.start, inner.len);
    match (node, findings.into_iter().next()) {
        (Some(mut node), None) => {
            move_spans(&mut node, &moved);
            Ok(node)
        }
        (_, finding) => {
            let span = finding.as_ref().and_then(Diagnostic::span).map_or(span, moved);
            let message = finding.map_or("not valid YAML".into(), |f| f.message);
            Err(Box::new(Diagnostic::error(E0105_YAML, span).message(message)))
        }
    }
}

fn move_spans(node: &mut Node, moved: &dyn Fn(&Span) -> Span) {
    node.span = moved(&node.span);
    match &mut node.value {
        Value::Seq(items) => items.iter_mut().for_each(|item| move_spans(item, moved)),
        Value::Map(entries) => {
            for entry in entries {
                entry.key_span = moved(&entry.key_span);
                move_spans(&mut entry.node, moved);
            }
        }
        _ => {}
    }
}

/// A tree that holds `value` at a dotted path.
fn nest(path: &str, value: Node, span: &Span) -> Node {
    path.rsplit('.').fold(value, |node, key| {
        let entry = Entry { key: key.to_owned(), key_span: span.clone(), node };
        Node { value: Value::Map(vec![entry]), span: span.clone() }
    })
}

/// `over` on top of `base`: sections are merged key by key, anything else is replaced, `null` removes.
fn merge(path: &str, base: Node, over: Node) -> Node {
    let section = path.is_empty() || keys::find(path).is_some_and(keys::Key::is_section);
    let (mut entries, changes) = match (base.value, over.value) {
        (Value::Map(entries), Value::Map(changes)) if section => (entries, changes),
        (_, value) => {
            return Node { value, span: over.span };
        }
    };
    for change in changes {
        let at = entries.iter().position(|entry| entry.key == change.key);
        let inner = if path.is_empty() { change.key.clone() } else { format!("{path}.{}", change.key) };
        let removable = keys::find(&inner).is_some_and(|key| key.need != Need::Required);
        match (at, change.node.value == Value::Null && removable) {
            (Some(at), true) => {
                entries.remove(at);
            }
            (None, true) => {}
            (Some(at), false) => {
                let entry = &mut entries[at];
                let old = std::mem::replace(&mut entry.node, change.node.clone());
                entry.node = merge(&inner, old, change.node);
                entry.key_span = change.key_span;
            }
            (None, false) => entries.push(change),
        }
    }
    Node { value: Value::Map(entries), span: base.span }
}
