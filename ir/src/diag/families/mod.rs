//! The families of codes; a new family is a file here and a line in [`all_codes`].

mod architecture;
mod budget;
mod graph;
mod import;
mod spec;
mod target;

pub use architecture::*;
pub use budget::*;
pub use graph::*;
pub use import::*;
pub use spec::*;
pub use target::*;

use super::CodeInfo;
use std::sync::LazyLock;

/// Every code, in order of its number.
pub fn all_codes() -> &'static [CodeInfo] {
    static ALL: LazyLock<Vec<CodeInfo>> = LazyLock::new(|| {
        let families = [spec::CODES, architecture::CODES, budget::CODES, target::CODES, import::CODES, graph::CODES];
        let mut all = families.concat();
        all.sort_by_key(|info| info.code);
        all
    });
    &ALL
}

/// Every code as Markdown, for `docs/diagnostics.md`.
pub fn markdown() -> String {
    let entry = |info: &CodeInfo| {
        let lines: Vec<&str> = info.explanation.lines().map(str::trim).collect();
        format!("## {}: {}\n\n{}\n", info.code, info.title, lines.join("\n"))
    };
    all_codes().iter().map(entry).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_documented() {
        for pair in all_codes().windows(2) {
            assert_ne!(pair[0].code, pair[1].code);
        }
        for info in all_codes() {
            assert!(info.title.len() > 5 && info.title.len() < 90, "{}: {}", info.code, info.title);
            assert!(info.explanation.len() > 40, "{} has no explanation", info.code);
            assert_eq!(info.code.info(), Some(info));
        }
        assert!(markdown().starts_with("## E0101: A file cannot be read\n\nThe path"));
    }
}
