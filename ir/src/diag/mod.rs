//! Diagnostics: what is wrong with the user's input, where, why, and the way out.
//!
//! A [`Diagnostic`] has a [`Code`], a place ([`Span`]) and plain text; [`render`] prints it beside its
//! source line. Parsing and checking return all findings, `(Option<T>, Vec<Diagnostic>)`. Codes come in
//! families, one file each; their doc comments are the entries of `docs/diagnostics.md`.

mod code;
mod families;
mod render;
mod source;

pub use code::{Code, CodeInfo};
pub use families::*;
pub use render::{Style, render, render_all};
pub use source::{Source, SourceMap, Span};

use serde::Serialize;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Nothing can be built.
    Error,
    /// Worth knowing; the result stands.
    Warning,
}

impl Severity {
    /// The word printed.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
        }
    }
}

/// A text at a place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Label {
    /// Where.
    pub span: Span,
    /// What is said there; may be empty.
    pub text: String,
    /// Whether this is the finding's own place (`^^^`) rather than a related one (`---`).
    pub primary: bool,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// Kind of finding.
    pub code: Code,
    /// How bad it is.
    pub severity: Severity,
    /// The finding in one sentence, in the user's words.
    pub message: String,
    /// Places, the finding's own one first; empty when there is none.
    pub labels: Vec<Label>,
    /// Facts that explain it.
    pub notes: Vec<String>,
    /// Ways out.
    pub help: Vec<String>,
}

impl Diagnostic {
    /// An error at a place.
    pub fn error(code: Code, span: Span) -> Diagnostic {
        Diagnostic::new(code, Severity::Error, Some(span))
    }

    /// A warning at a place.
    pub fn warning(code: Code, span: Span) -> Diagnostic {
        Diagnostic::new(code, Severity::Warning, Some(span))
    }

    /// A finding, perhaps with a place.
    pub fn new(code: Code, severity: Severity, span: Option<Span>) -> Diagnostic {
        let own = span.map(|span| Label { span, text: String::new(), primary: true });
        let (notes, help) = (Vec::new(), Vec::new());
        Diagnostic { code, severity, message: String::new(), labels: own.into_iter().collect(), notes, help }
    }

    /// Sets the message.
    pub fn message(mut self, text: impl Into<String>) -> Diagnostic {
        self.message = text.into();
        self
    }

    /// Sets the text at the finding's own place.
    pub fn label(mut self, text: impl OptionalText) -> Diagnostic {
        if let (Some(own), Some(text)) = (self.labels.first_mut(), text.text()) {
            own.text = text;
        }
        self
    }

    /// Adds a related place.
    pub fn related(mut self, span: Span, text: impl Into<String>) -> Diagnostic {
        self.labels.push(Label { span, text: text.into(), primary: false });
        self
    }

    /// Adds a fact.
    pub fn note(mut self, text: impl OptionalText) -> Diagnostic {
        self.notes.extend(text.text());
        self
    }

    /// Adds a way out.
    pub fn help(mut self, text: impl OptionalText) -> Diagnostic {
        self.help.extend(text.text());
        self
    }

    /// The finding's own place.
    pub fn span(&self) -> Option<&Span> {
        self.labels.first().filter(|label| label.primary).map(|label| &label.span)
    }

    /// Whether it is an error.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

/// A text that may be absent: `&str`, `String` or `Option<String>`.
pub trait OptionalText {
    /// The text, if any.
    fn text(self) -> Option<String>;
}

impl OptionalText for &str {
    fn text(self) -> Option<String> {
        Some(self.to_owned())
    }
}

impl OptionalText for String {
    fn text(self) -> Option<String> {
        Some(self)
    }
}

impl OptionalText for Option<String> {
    fn text(self) -> Option<String> {
        self
    }
}

/// Whether any finding is an error.
pub fn has_errors(findings: &[Diagnostic]) -> bool {
    findings.iter().any(Diagnostic::is_error)
}
