//! The spec that most commands take, from a file or from inside a bundle.

use crate::failure::Failure;
use crate::output::Output;
use clap::Args;
use dsc_frontend::Checked;
use dsc_ir::target::Target;
use dsc_runtime::bundle::{Bundle, BundleError};
use std::path::Path;

/// The target whose schedule is looked at when none is named.
pub const DEFAULT_TARGET: &str = "sm_90a";

/// File of a bundle that holds its spec.
const BUNDLE_SPEC: &str = "spec.yaml";

/// Changes to a spec from the command line.
#[derive(Debug, Clone, Default, Args)]
pub struct Overrides {
    /// Override a key, checked as if written in the spec (repeatable)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Tensor parallel ranks: the same as --set parallel.tp=N
    #[arg(long, value_name = "N")]
    pub tp: Option<u64>,
    /// Expert parallel ranks: the same as --set parallel.ep=N
    #[arg(long, value_name = "N")]
    pub ep: Option<u64>,
}

impl Overrides {
    /// All of them as `KEY=VALUE`, the short forms last.
    pub fn all(&self) -> Vec<String> {
        let short = [("tp", self.tp), ("ep", self.ep)];
        let short = short.into_iter().filter_map(|(key, value)| Some(format!("parallel.{key}={}", value?)));
        self.sets.iter().cloned().chain(short).collect()
    }
}

/// A checked spec from a file; its warnings become notes.
///
/// # Errors
/// A file that cannot be read, or findings.
pub fn spec(path: &Path, overrides: &Overrides, output: &mut Output<'_>) -> Result<Checked, Failure> {
    accept(dsc_frontend::load(path, &overrides.all()), output)
}

/// The same from a spec file, or from the spec inside a bundle.
///
/// # Errors
/// Likewise, or a bundle that is damaged.
pub fn spec_or_bundle(path: &Path, overrides: &Overrides, output: &mut Output<'_>) -> Result<Checked, Failure> {
    let is_archive = path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(".tar.zst"));
    if !path.is_dir() && !is_archive {
        return spec(path, overrides, output);
    }
    let bundle = Bundle::load(path)?;
    let name = path.join(BUNDLE_SPEC).display().to_string();
    accept(dsc_frontend::load_str(&name, bundle.text(BUNDLE_SPEC)?, &overrides.all()), output)
}

fn accept(loaded: dsc_frontend::Loaded, output: &mut Output<'_>) -> Result<Checked, Failure> {
    match loaded.checked {
        Some(checked) => {
            output.note(&dsc_frontend::render(&loaded.findings, &loaded.sources, output.notes_style));
            Ok(checked)
        }
        None => Err(Failure::of_spec(loaded)),
    }
}

impl From<BundleError> for Failure {
    fn from(error: BundleError) -> Failure {
        Failure::Command { exit_code: error.exit_code(), message: error.to_string() }
    }
}

/// The target of this architecture or machine.
///
/// # Errors
/// There is none.
pub fn target(name: &str) -> Result<Target, Failure> {
    Ok(dsc_frontend::targets::find(name)?)
}

/// A count of tokens such as `4096`, `64k` or `1m`, in powers of two.
///
/// # Errors
/// Anything else, or zero.
pub fn tokens(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    let number: u64 = digits.parse().map_err(|_| "a count such as 4096, 64k or 1m is needed".to_owned())?;
    // The same bound as `max_position_embeddings`.
    number.checked_mul(unit).filter(|n| (1..=1 << 30).contains(n)).ok_or_else(|| "1 to 1024m are possible".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_tokens() {
        assert_eq!(tokens("64k"), Ok(65536));
        assert_eq!(tokens("1M"), Ok(1 << 20));
        assert_eq!(tokens("7"), Ok(7));
        for wrong in ["", "k", "0", "-1", "1.5k", "2048m", "99999999999999999999", "64\u{212a}"] {
            assert!(tokens(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn short_forms_are_overrides() {
        let overrides = Overrides { sets: vec!["name=x".into()], tp: Some(4), ep: None };
        assert_eq!(overrides.all(), ["name=x", "parallel.tp=4"]);
    }
}
