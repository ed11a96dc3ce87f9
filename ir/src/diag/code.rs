//! Codes of findings, and the macro that declares a family of them.

use serde::{Serialize, Serializer};
use std::fmt;

/// Identifies a kind of finding, such as `E0101`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Code(&'static str);

impl Code {
    /// A code; only the families' macro should call this.
    pub const fn new(text: &'static str) -> Code {
        Code(text)
    }

    /// The code as printed.
    pub fn as_str(self) -> &'static str {
        self.0
    }

    /// Title and explanation, where the code is a documented one.
    pub fn info(self) -> Option<&'static CodeInfo> {
        super::all_codes().iter().find(|info| info.code == self)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0)
    }
}

/// What `docs/diagnostics.md` says about a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodeInfo {
    /// The code.
    pub code: Code,
    /// One line.
    pub title: &'static str,
    /// The reason and the way out: Markdown, one source line per line.
    pub explanation: &'static str,
}

/// Declares the codes of one family: constants, and `CODES`, the table of their documentation.
///
/// The first line of a doc comment is the title, the lines after it the explanation.
macro_rules! codes {
    ($($(#[doc = $line:literal])+ $name:ident = $text:literal;)+) => {
        $($(#[doc = $line])+ pub const $name: $crate::diag::Code = $crate::diag::Code::new($text);)+

        /// Documentation of the codes above.
        pub(super) const CODES: &[$crate::diag::CodeInfo] =
            &[$($crate::diag::code::documented($name, concat!($($line, "\n"),+))),+];
    };
}
pub(super) use codes;

/// Splits a doc comment into title and explanation.
pub(super) const fn documented(code: Code, doc: &'static str) -> CodeInfo {
    let bytes = doc.as_bytes();
    let mut end = 0;
    while end < bytes.len() && bytes[end] != b'\n' {
        end += 1;
    }
    let (title, rest) = doc.split_at(end);
    CodeInfo { code, title: title.trim_ascii(), explanation: rest.trim_ascii() }
}
