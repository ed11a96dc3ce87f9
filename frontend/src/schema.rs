//! `dsc schema`: JSON Schema (2020-12) of a spec, for editors, from the table of keys.

use crate::keys::{self, KEYS, Key, Kind, Need};
use serde_json::{Map, Value, json};

/// The schema, with description, unit and default of every key.
///
/// Required keys are not marked as such, since a variant may take any of them from its base.
pub fn schema() -> Value {
    let mut root = section("");
    root.insert("$schema".into(), json!("https://json-schema.org/draft/2020-12/schema"));
    root.insert("title".into(), json!("dsc architecture spec"));
    Value::Object(root)
}

fn section(path: &str) -> Map<String, Value> {
    let mut properties = Map::new();
    for key in keys::children(path).filter(|key| key.kind != Kind::Unsupported) {
        properties.insert(keys::last(key.path).to_owned(), property(key));
    }
    let mut section = Map::new();
    section.insert("type".into(), json!("object"));
    section.insert("properties".into(), Value::Object(properties));
    section.insert("additionalProperties".into(), json!(false));
    section
}

fn property(key: &Key) -> Value {
    let mut schema = match kind(key) {
        Value::Object(map) => map,
        _ => Map::new(),
    };
    if key.need != Need::Required {
        schema = allow_null(schema);
    }
    schema.insert("description".into(), json!(key.doc));
    if !key.unit.is_empty() {
        schema.insert("x-unit".into(), json!(key.unit));
    }
    if let Some(value) = default(key) {
        schema.insert("default".into(), value);
    }
    Value::Object(schema)
}

fn kind(key: &Key) -> Value {
    let expression = json!({"type": "string", "description": "an expression, such as `window + topk`"});
    let int = |low: u64, high: u64| json!({"type": "integer", "minimum": low, "maximum": high});
    match key.kind {
        Kind::Section => Value::Object(section(key.path)),
        Kind::SectionOr(word) => {
            json!({"anyOf": [{"const": word}, Value::Object(section(key.path))]})
        }
        Kind::Int(low, high) => json!({"anyOf": [int(low, high), expression]}),
        Kind::Float(low, high) => json!({"type": "number", "minimum": low, "maximum": high}),
        Kind::Bool => json!({"type": "boolean"}),
        Kind::Text => json!({"type": "string"}),
        Kind::Name => json!({"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"}),
        Kind::Choice(words) => json!({"enum": words}),
        Kind::PerLayer(high) => json!({"anyOf": [
            {"type": "array", "items": {"anyOf": [int(0, high), expression]}},
            {"type": "object", "additionalProperties": {"anyOf": [int(0, high), expression]}},
        ]}),
        Kind::Layers => json!({"anyOf": [
            {"type": "array", "items": {"type": ["integer", "string"]}},
            {"type": ["integer", "string"]},
        ]}),
        Kind::Ints(low, high) => {
            json!({"type": "array", "items": {"anyOf": [int(low, high), expression]}})
        }
        Kind::Unsupported => json!({}),
    }
}

/// `null` removes a key in a variant.
fn allow_null(schema: Map<String, Value>) -> Map<String, Value> {
    let mut outer = Map::new();
    outer.insert("anyOf".into(), json!([Value::Object(schema), {"type": "null"}]));
    outer
}

/// The default as JSON.
fn default(key: &Key) -> Option<Value> {
    match key.need {
        Need::Default(text) => Some(serde_json::from_str(text).unwrap_or_else(|_| json!(text))),
        _ => None,
    }
}

/// The same table as Markdown, for `docs/spec.md`.
pub fn markdown() -> String {
    let mut out = String::new();
    for key in KEYS.iter().filter(|key| key.kind != Kind::Unsupported) {
        let need = match key.need {
            Need::Required => "required".to_owned(),
            Need::Default(value) => format!("default `{value}`"),
            Need::Optional => "optional".to_owned(),
        };
        if key.is_section() {
            let level = 3 + key.path.matches('.').count();
            out.push_str(&format!("\n{} `{}` ({need})\n\n{}\n", "#".repeat(level), key.path, key.doc));
            if keys::children(key.path).any(|child| !child.is_section()) {
                out.push_str("\n| key | takes | unit | without it | meaning |\n|---|---|---|---|---|\n");
            }
        } else {
            let (takes, unit) = (takes(key), key.unit);
            let doc = key.doc.replace('|', "\\|");
            if key.path == "base" {
                out.push_str("\n| key | takes | unit | without it | meaning |\n|---|---|---|---|---|\n");
            }
            out.push_str(&format!("| `{}` | {takes} | {unit} | {need} | {doc} |\n", key.path));
        }
    }
    out
}

fn takes(key: &Key) -> String {
    match key.kind {
        Kind::Section | Kind::SectionOr(_) | Kind::Unsupported => "a mapping".into(),
        Kind::Int(low, high) => format!("integer, {low} to {high}"),
        Kind::Float(low, high) => format!("number, {low} to {high}"),
        Kind::Bool => "`true` or `false`".into(),
        Kind::Text | Kind::Name => "text".into(),
        Kind::Choice(words) => words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", "),
        Kind::PerLayer(_) => "integer per layer".into(),
        Kind::Layers => "layers".into(),
        Kind::Ints(low, high) => format!("integers, {low} to {high}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_described() {
        let schema = schema();
        for key in KEYS.iter().filter(|key| key.kind != Kind::Unsupported) {
            let mut at = &schema;
            for part in key.path.split('.') {
                let object = at["anyOf"].as_array().into_iter().flatten().find_map(|one| {
                    one.get("properties").or_else(|| one["anyOf"].as_array()?.iter().find_map(|o| o.get("properties")))
                });
                at = &at.get("properties").or(object).unwrap()[part];
            }
            assert_eq!(at["description"], key.doc, "{}", key.path);
            if let Need::Default(_) = key.need {
                assert!(!at["default"].is_null(), "{}", key.path);
            }
        }
        assert_eq!(schema["properties"]["numerics"]["anyOf"][0]["properties"]["caches"]["default"], "packed");
    }

    #[test]
    fn markdown_lists_every_key() {
        let text = markdown();
        assert!(
            KEYS.iter()
                .filter(|key| key.kind != Kind::Unsupported)
                .all(|key| text.contains(&format!("`{}`", key.path)))
        );
    }
}
