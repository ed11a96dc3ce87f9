//! Generated pages are current.

use super::repo;
use dsc_cli::docs::pages;

#[test]
fn generated_pages_are_current() {
    for (name, text) in pages() {
        let path = repo(&format!("docs/{name}"));
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(written == text, "{path} is not current: run `cargo run -p dsc -- __docs docs`");
    }
}
