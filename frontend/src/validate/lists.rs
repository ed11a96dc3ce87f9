//! Lists: integers, one value per layer, and layers by number or pattern.

use super::values::{Checked, Values};
use crate::expr::{self, ExprError};
use crate::keys::Key;
use crate::yaml::{self, Entry, Node, Value};
use dsc_ir::diag::{Diagnostic, E0115_LAYERS, E0204_LAYER_COUNT, E0205_NO_SUCH_LAYER, Span};

impl Values<'_> {
    pub(super) fn item(&mut self, key: &Key, at: usize, node: &Node, low: u64, high: u64) -> Option<u64> {
        let path = format!("{}[{at}]", key.path);
        self.spans.values.insert(path.clone(), node.span.clone());
        let value = self.int_node(key, node, key.path)?;
        let fits = u64::try_from(value).ok().filter(|v| (low..=high).contains(v));
        if fits.is_none() {
            let bounds = (low.to_string(), high.to_string());
            self.out_of_range(key.path, node.span.clone(), &value.to_string(), &bounds.0, &bounds.1);
        }
        fits
    }

    pub(super) fn per_layer_list(&mut self, key: &Key, items: &[Node], max: u64) -> Option<Checked> {
        let values: Vec<Option<u64>> =
            items.iter().enumerate().map(|(at, item)| self.item(key, at, item, 0, max)).collect();
        let n_layers = self.int("num_hidden_layers")?;
        if values.len() as u64 != n_layers {
            let finding = self
                .error(E0204_LAYER_COUNT, key.path)
                .message(format!("`{}` has {} entries for {n_layers} layers", key.path, values.len()))
                .related(self.spans.of("num_hidden_layers"), "the number of layers")
                .help("a mapping such as `{\"0..2\": 0, \"2..\": 4}` avoids counting");
            self.findings.push(finding);
            return None;
        }
        values.into_iter().collect::<Option<_>>().map(Checked::List)
    }

    pub(super) fn per_layer_map(&mut self, key: &Key, entries: &[Entry], max: u64) -> Option<Checked> {
        let n_layers = self.int("num_hidden_layers")?;
        let mut set: Vec<Option<(u64, Span)>> = vec![None; n_layers as usize];
        let mut good = true;
        for entry in entries {
            let pattern = Node {
                value: Value::Text(yaml::Text { text: entry.key.clone(), plain: false }),
                span: entry.key_span.clone(),
            };
            let layers = self.pattern(key, &pattern);
            let value = self.int_node(key, &entry.node, key.path);
            let fits = value.and_then(|v| u64::try_from(v).ok()).filter(|v| *v <= max);
            if let (Some(value), None) = (value, fits) {
                let at = entry.node.span.clone();
                self.out_of_range(key.path, at, &value.to_string(), "0", &max.to_string());
            }
            let (Some(layers), Some(value)) = (layers, fits) else {
                good = false;
                continue;
            };
            for layer in layers {
                if let Some((_, first)) = &set[layer as usize] {
                    let finding = Diagnostic::error(E0115_LAYERS, entry.key_span.clone())
                        .message(format!("layer {layer} of `{}` has two values", key.path))
                        .related(first.clone(), "the first one")
                        .help("ranges end before their second number: `2..20` is 2 to 19");
                    self.findings.push(finding);
                    good = false;
                    break;
                }
                set[layer as usize] = Some((value, entry.key_span.clone()));
                self.spans.values.insert(format!("{}[{layer}]", key.path), entry.node.span.clone());
            }
        }
        let gaps: Vec<usize> = (0..set.len()).filter(|layer| set[*layer].is_none()).collect();
        if let (Some(first), true) = (gaps.first(), good) {
            let finding = Diagnostic::error(E0115_LAYERS, self.spans.key(key.path))
                .message(format!("`{}` says nothing about layer {first}", key.path))
                .note(format!("{} of {n_layers} layers have no value", gaps.len()))
                .help("`\"2..\": 0` reaches to the last layer");
            self.findings.push(finding);
            return None;
        }
        let values = set.into_iter().map(|value| value.map(|(value, _)| value));
        if good { values.collect::<Option<_>>().map(Checked::List) } else { None }
    }

    pub(super) fn layers(&mut self, key: &Key, node: &Node) -> Option<Checked> {
        let one = std::slice::from_ref(node);
        let items = match &node.value {
            Value::Seq(items) => items,
            _ => one,
        };
        let mut all: Vec<u64> = Vec::new();
        let mut good = true;
        for item in items {
            let Some(layers) = self.pattern(key, item) else {
                good = false;
                continue;
            };
            for layer in layers.into_iter().map(u64::from) {
                self.spans.values.insert(format!("{}[{}]", key.path, all.len()), item.span.clone());
                if all.last().is_some_and(|last| *last >= layer) {
                    let last = all.last().copied().unwrap_or_default();
                    let finding = Diagnostic::error(E0115_LAYERS, item.span.clone())
                        .message(format!("layer {layer} of `{}` comes after layer {last}", key.path))
                        .help("list layers in ascending order, each once");
                    self.findings.push(finding);
                    good = false;
                    break;
                }
                all.push(layer);
            }
        }
        good.then_some(Checked::List(all))
    }

    /// The layers of one item: a number or a pattern.
    fn pattern(&mut self, key: &Key, node: &Node) -> Option<Vec<u32>> {
        let n_layers = self.int("num_hidden_layers").and_then(|n| u32::try_from(n).ok())?;
        let layers = match &node.value {
            Value::Int(layer) => match u32::try_from(*layer) {
                Ok(layer) => vec![layer],
                Err(_) => return self.no_layer(key, node, &layer.to_string(), n_layers),
            },
            Value::Text(text) => match expr::layers(&text.text, n_layers, &mut |name| self.lookup(name)) {
                Ok(layers) => layers,
                Err(error) => {
                    self.layer_pattern(key, node, text, error);
                    return None;
                }
            },
            _ => {
                self.wrong_type(key, node, "layers or patterns such as `2..20 step 6`");
                return None;
            }
        };
        match layers.iter().find(|layer| **layer >= n_layers) {
            Some(layer) => self.no_layer(key, node, &layer.to_string(), n_layers),
            None => Some(layers),
        }
    }

    fn layer_pattern(&mut self, key: &Key, node: &Node, text: &yaml::Text, error: ExprError) {
        if !error.silent {
            let finding = Diagnostic::error(E0115_LAYERS, node.span.clone())
                .message(format!("`{}`: `{}` is no layer pattern", key.path, text.text))
                .label(error.message)
                .help("patterns are `7`, `2..20` (2 to 19), `2..=19`, `2..` and `2..20 step 6`");
            self.findings.push(finding);
        }
    }

    fn no_layer<T>(&mut self, key: &Key, node: &Node, layer: &str, n_layers: u32) -> Option<T> {
        let finding = Diagnostic::error(E0205_NO_SUCH_LAYER, node.span.clone())
            .message(format!("`{}` names layer {layer}, and there are {n_layers} layers", key.path))
            .related(self.spans.of("num_hidden_layers"), format!("layers 0 to {}", n_layers.saturating_sub(1)));
        self.findings.push(finding);
        None
    }
}
