//! `dsc import`: a published `config.json` to the text of a spec.
//!
//! Knows `deepseek_v41`, and `deepseek_v4` with the release's keys and with those that the transformers
//! library saves. Every key is either used, or left out with its part of the model, or listed as unused.

mod config;
mod v4;
mod v41;
mod write;

use crate::yaml;
use config::Config;
use dsc_ir::diag::{
    Diagnostic, E0501_JSON, E0502_MODEL_TYPE, E0504_IMPORT_VALUE, Severity, SourceMap, Style, has_errors,
};
use write::Parts;

/// The outcome of [`import`].
#[derive(Debug, Clone)]
pub struct Imported {
    /// Text of the spec; absent if there is an error.
    pub yaml: Option<String>,
    /// Errors, keys not used, parts left out.
    pub findings: Vec<Diagnostic>,
    /// The configuration and the spec, for [`crate::render`].
    pub sources: SourceMap,
}

impl Imported {
    /// All findings as text.
    pub fn render(&self, style: Style) -> String {
        crate::render(&self.findings, &self.sources, style)
    }
}

/// The spec of a configuration; `name` is the file's name in messages.
pub fn import(name: &str, text: &str) -> Imported {
    let mut sources = SourceMap::new();
    let source = sources.add(name, text);
    if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(text) {
        let offset = text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum::<usize>();
        let at = source.span(offset + error.column().saturating_sub(1), 0);
        let reason = error.to_string();
        let reason = reason.split(" at line").next().unwrap_or_default();
        let finding = Diagnostic::error(E0501_JSON, at).message(format!("not JSON: {reason}"));
        return Imported { yaml: None, findings: vec![finding], sources };
    }
    if !text.trim_start().starts_with('{') {
        let finding = Diagnostic::error(E0501_JSON, source.span(0, 1)).message("a configuration is a JSON object");
        return Imported { yaml: None, findings: vec![finding], sources };
    }
    // JSON is YAML, and the YAML tree has places.
    let (root, mut findings) = yaml::parse(&source);
    let Some(root) = root else {
        return Imported { yaml: None, findings, sources };
    };
    let mut config = Config::new(&root);
    let yaml = convert(&mut config).map(|parts| parts.text());
    config.report_missing();
    config.report_unused();
    findings.extend(config.into_findings());
    let yaml = yaml.filter(|_| !has_errors(&findings));
    let yaml = yaml.filter(|yaml| is_valid(name, yaml, &mut findings, &mut sources));
    Imported { yaml, findings, sources }
}

fn convert(config: &mut Config<'_>) -> Option<Parts> {
    let model_type = config.text("model_type")?;
    match model_type.as_str() {
        "deepseek_v41" => {
            config.enter("text_config")?;
            v41::parts(config)
        }
        "deepseek_v41_text" => v41::parts(config),
        "deepseek_v4" => v4::parts(config),
        other => {
            let finding = Diagnostic::new(E0502_MODEL_TYPE, Severity::Error, config.place("model_type"))
                .message(format!("cannot import the model type `{other}`"))
                .note("known are `deepseek_v41` and `deepseek_v4`");
            let v32 = other.starts_with("deepseek_v3");
            config.push(finding.note(v32.then(|| "multi-head latent attention is not supported yet".to_owned())));
            config.ignore_all();
            None
        }
    }
}

/// Whether the text is a valid spec; findings are added otherwise.
fn is_valid(name: &str, yaml: &str, findings: &mut Vec<Diagnostic>, sources: &mut SourceMap) -> bool {
    let loaded = crate::load_str("imported spec", yaml, &[]);
    if loaded.checked.is_none() {
        let finding = Diagnostic::new(E0504_IMPORT_VALUE, Severity::Error, None)
            .message(format!("`{name}` describes an architecture that is not valid"))
            .note("the findings below are about the spec written from it");
        findings.push(finding);
        sources.extend(&loaded.sources);
    }
    findings.extend(loaded.findings);
    loaded.checked.is_some()
}
