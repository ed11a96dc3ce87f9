//! Scalar values: integers and expressions, numbers, words and names.

use super::quoted;
use super::values::{Checked, Values};
use crate::expr::{self, ExprError, NameError};
use crate::keys::{self, KEYS, Key, Kind, Need};
use crate::suggest::nearest;
use crate::yaml::{self, Node, Value};
use dsc_ir::diag::{Diagnostic, E0112_UNKNOWN_VALUE, E0113_EXPRESSION, E0114_EXPRESSION_VALUE};

impl Values<'_> {
    pub(super) fn choice(&mut self, key: &Key, node: &Node, words: &[&str], found: &str) -> Option<Checked> {
        if words.contains(&found) {
            return Some(Checked::Text(found.to_owned()));
        }
        let near = nearest(found, words.iter().copied()).map(|near| format!("did you mean `{near}`?"));
        let finding = Diagnostic::error(E0112_UNKNOWN_VALUE, node.span.clone())
            .message(format!("`{}` cannot be `{found}`", key.path))
            .note(format!("it takes {}", quoted(words)))
            .help(near);
        self.findings.push(finding);
        None
    }

    /// A text that is safe as a file name.
    pub(super) fn name(&mut self, key: &Key, node: &Node, found: &str) -> Option<Checked> {
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if found.starts_with(|c: char| c.is_ascii_alphanumeric()) && found.chars().all(good) && found.len() <= 64 {
            return Some(Checked::Text(found.to_owned()));
        }
        let finding = Diagnostic::error(E0112_UNKNOWN_VALUE, node.span.clone())
            .message(format!("`{}` cannot be `{found}`", key.path))
            .note(
                "names go into file names: up to 64 ASCII letters, digits, `-`, `_` and `.`, a letter or digit first",
            );
        self.findings.push(finding);
        None
    }

    pub(super) fn float_of(&mut self, key: &Key, node: &Node, low: f64, high: f64) -> Option<Checked> {
        let value = match node.value {
            Value::Int(value) => value as f64,
            Value::Float(value) => value,
            _ => return None,
        };
        if (low..=high).contains(&value) {
            return Some(Checked::Float(value));
        }
        self.out_of_range(key.path, node.span.clone(), &value.to_string(), &low.to_string(), &high.to_string());
        None
    }

    /// Value of an integer key, worked out once.
    pub(super) fn int_of(&mut self, key: &'static Key) -> Option<u64> {
        if let Some(Checked::Int(value)) = self.values.get(key.path) {
            return Some(*value);
        }
        let (Kind::Int(low, high), false) = (key.kind, self.failed.contains(key.path)) else {
            return None;
        };
        let value = match self.nodes.get(key.path).copied() {
            Some(node) => {
                self.in_progress.insert(key.path);
                let value = self.int_node(key, node, key.path);
                self.in_progress.remove(key.path);
                value
            }
            None => match key.need {
                Need::Default(text) => text.parse().ok(),
                _ => return None,
            },
        };
        let fits = value.and_then(|v| u64::try_from(v).ok()).filter(|v| (low..=high).contains(v));
        match (fits, value) {
            (Some(fits), _) => {
                self.values.insert(key.path, Checked::Int(fits));
            }
            (None, Some(value)) => {
                let at = self.spans.of(key.path);
                self.out_of_range(key.path, at, &value.to_string(), &low.to_string(), &high.to_string());
                self.failed.insert(key.path);
            }
            (None, None) => {
                self.failed.insert(key.path);
            }
        }
        fits
    }

    /// An integer or expression; reports what is wrong.
    pub(super) fn int_node(&mut self, key: &Key, node: &Node, path: &str) -> Option<i128> {
        match &node.value {
            Value::Int(value) => Some(*value),
            Value::Text(text) => {
                let outcome = expr::evaluate(&text.text, &mut |name| self.lookup(name));
                outcome.map_err(|error| self.expression(node, text, path, error)).ok()
            }
            _ => {
                self.wrong_type(key, node, "an integer or an expression");
                None
            }
        }
    }

    fn expression(&mut self, node: &Node, text: &yaml::Text, path: &str, error: ExprError) {
        if error.silent {
            return;
        }
        let mut span = node.span.clone();
        if text.plain && node.span.len >= error.start {
            let before = text.text.get(..error.start).map_or(0, |text| text.chars().count());
            span.start += error.start;
            span.col += u32::try_from(before).unwrap_or(0);
            span.len = error.len;
        }
        let code = if error.syntax { E0113_EXPRESSION } else { E0114_EXPRESSION_VALUE };
        let finding = Diagnostic::error(code, span).message(format!("`{path}`: {}", error.message)).help(error.help);
        self.findings.push(finding);
    }

    /// Value of a name in an expression: a dotted path, the last part of one, or the end of that.
    pub(super) fn lookup(&mut self, name: &str) -> Result<i128, NameError> {
        let fail = |message: String, help: Option<String>| Err(NameError { message, help, silent: false });
        let integers =
            || KEYS.iter().filter(|key| matches!(key.kind, Kind::Int(..)) && !key.path.starts_with("budgets"));
        let suffix = format!("_{name}");
        let exact: Vec<&Key> = integers().filter(|key| key.path == name || keys::last(key.path) == name).collect();
        let ending = || integers().filter(|key| key.path.ends_with(&suffix)).collect();
        let found: Vec<&'static Key> = if exact.is_empty() { ending() } else { exact };
        let key = match found[..] {
            [key] => key,
            [] => {
                let near = nearest(name, integers().flat_map(|key| endings(keys::last(key.path))));
                return fail(format!("no integer key `{name}`"), near.map(|near| format!("did you mean `{near}`?")));
            }
            _ => {
                let paths: Vec<&str> = found.iter().map(|key| key.path).collect();
                return fail(format!("`{name}` is ambiguous"), Some(format!("write one of {}", quoted(&paths))));
            }
        };
        if self.in_progress.contains(key.path) {
            return fail(format!("`{}` depends on itself", key.path), None);
        }
        let silent = self.failed.contains(key.path);
        match self.int_of(key) {
            Some(value) => Ok(i128::from(value)),
            None if silent || self.failed.contains(key.path) => {
                Err(NameError { message: String::new(), help: None, silent: true })
            }
            None => fail(format!("`{}` is not set", key.path), None),
        }
    }
}

/// A name and what follows each of its underscores.
fn endings(name: &str) -> impl Iterator<Item = &str> {
    std::iter::once(name).chain(name.match_indices('_').map(move |(at, _)| &name[at + 1..]))
}

/// A way out of some frequent confusions.
pub(super) fn hint(key: &Key, node: &Node) -> Option<String> {
    match (key.kind, &node.value) {
        (Kind::Bool, Value::Text(text)) => match text.text.to_lowercase().as_str() {
            "yes" | "on" | "y" => Some("write `true`".into()),
            "no" | "off" | "n" => Some("write `false`".into()),
            _ => None,
        },
        (Kind::Bool, Value::Int(0)) => Some("write `false`".into()),
        (Kind::Bool, Value::Int(1)) => Some("write `true`".into()),
        (Kind::Int(..), Value::Float(value)) if value.fract() == 0.0 && value.abs() < 1e15 => {
            Some(format!("write `{value}`"))
        }
        (Kind::Float(..), Value::Text(text)) if text.text.trim().parse::<f64>().is_ok() => {
            Some("remove the quotes".into())
        }
        (Kind::Section | Kind::SectionOr(_), Value::Text(text)) => {
            let (name, value) = text.text.split_once(':')?;
            Some(format!("write `{name}: {value}`, with a space after the colon"))
        }
        (Kind::Ints(..), Value::Int(value)) => Some(format!("write `[{value}]`")),
        (Kind::PerLayer(_), Value::Int(value)) => Some(format!("write `{{\"0..\": {value}}}` for all layers")),
        _ => None,
    }
}
