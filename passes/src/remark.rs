//! Remarks: what a pass did or left, where, and why.

use serde::Serialize;

/// One decision of a pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Remark {
    /// Pass.
    pub pass: &'static str,
    /// Layer of the site, if it has one.
    pub layer: Option<u32>,
    /// Whether it was done.
    pub taken: bool,
    /// What, in ops.
    pub what: String,
    /// Why, or why not.
    pub reason: String,
    /// Bytes that no longer travel through memory, as an expression in the launch-time sizes; empty where none.
    pub bytes_saved: String,
}

/// Collects remarks.
#[derive(Debug, Default)]
pub struct Remarks {
    /// In order of decision.
    pub list: Vec<Remark>,
}

impl Remarks {
    /// A decision taken.
    pub fn taken(&mut self, pass: &'static str, layer: Option<u32>, what: String, reason: String, saved: String) {
        self.list.push(Remark { pass, layer, taken: true, what, reason, bytes_saved: saved });
    }

    /// A decision against.
    pub fn refused(&mut self, pass: &'static str, layer: Option<u32>, what: String, reason: String) {
        self.list.push(Remark { pass, layer, taken: false, what, reason, bytes_saved: String::new() });
    }
}
