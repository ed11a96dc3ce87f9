//! The pages of `docs/` that come from tables in the code: `spec.md` and `diagnostics.md`.

use crate::failure::Failure;
use crate::output::Output;
use clap::Args;
use dsc_ir::diag;
use std::fmt::Write;
use std::path::PathBuf;

/// Arguments of `dsc __docs`.
#[derive(Debug, Clone, Args)]
pub struct DocsArgs {
    /// Folder to write to
    pub folder: PathBuf,
}

/// Runs it.
///
/// # Errors
/// Files that cannot be written.
pub fn run(args: &DocsArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    for (name, text) in pages() {
        let path = args.folder.join(name);
        let failed = |error| Failure::Machine(format!("cannot write `{}`: {error}", path.display()));
        std::fs::write(&path, text).map_err(failed)?;
        output.text(&format!("{}\n", path.display()))?;
    }
    Ok(())
}

/// Names and texts.
pub fn pages() -> [(&'static str, String); 2] {
    [("spec.md", spec()), ("diagnostics.md", diagnostics())]
}

const SPEC_HEAD: &str = "\
# The spec language

This page is generated from the table of keys in `frontend/src/keys.rs`; a test keeps it current, and
`dsc __docs docs` writes it anew.

A spec is one YAML mapping. Keys are strict: an unknown key, a duplicate, a wrong type or a value out of range is an
error with its place, and all errors of a file come out in one run (`dsc check`).

- **Integers** may be expressions over other integer keys: `7 * 2304`, `sliding_window + index_topk`,
  `ceil(num_hidden_layers / 2)`. A key is named by its path or, where that is unambiguous, by its last part or the end
  of it.
- **Layers** are numbers and patterns: `7`, `2..20` (2 to 19), `2..=19`, `2..` (to the last layer), `2..20 step 6`.
- **Variants** name another spec with `base: PATH` and change some keys; `null` removes a key or a section.
- **Overrides** on the command line, `--set attention.sliding_window=64`, are checked as if written in the file.
- Sections whose keys all have defaults may be left out.
";

fn spec() -> String {
    format!("{SPEC_HEAD}\n## Keys\n{}", dsc_frontend::schema::markdown())
}

const DIAGNOSTICS_HEAD: &str = "\
# Diagnostics

This page is generated from the codes in `ir/src/diag/families/`; a test keeps it current, and `dsc __docs docs` writes
it anew.

Codes that start with `E` are errors, those with `W` warnings. Errors end a command with exit code 2; exceeded budgets
(`E0304`, `E0305`) with 1; a spec file that cannot be read (`E0101`) with 3.
";

fn diagnostics() -> String {
    let mut text = DIAGNOSTICS_HEAD.to_owned();
    for info in diag::all_codes() {
        let explanation: Vec<&str> =
            info.explanation.lines().map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
        let _ = write!(text, "\n## {}: {}\n\n{}\n", info.code, info.title, explanation.join("\n"));
    }
    text
}
