//! Text form of diagnostics: the layout of rustc, without its colours unless asked for.
//!
//! Columns count displayed cells: wide characters take two, combining marks none, tabs four. Control
//! characters of the user's text are shown as `\u{FFFD}`, so that output cannot move the cursor. Long lines
//! are cut around the place, and words of absurd length at their start.

use super::{Diagnostic, Label, Severity, SourceMap, Span};
use std::fmt::Write;

/// Widest part of a source line that is shown, in cells.
const MAX_CELLS: usize = 120;
/// Cells kept in front of a place when a line is cut.
const LEAD_CELLS: usize = 40;
const TAB_CELLS: usize = 4;
/// Longest word that is shown whole, in characters: longer than paths are in practice.
const MAX_WORD: usize = 1000;

/// How to render.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Style {
    /// Whether to write ANSI colours.
    pub colour: bool,
}

#[derive(Clone, Copy)]
enum Paint {
    Error,
    Warning,
    Frame,
    Bold,
}

impl Style {
    fn paint(self, paint: Paint, text: &str) -> String {
        if !self.colour || text.is_empty() {
            return text.to_owned();
        }
        let code = match paint {
            Paint::Error => "1;31",
            Paint::Warning => "1;33",
            Paint::Frame => "1;34",
            Paint::Bold => "1",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    fn severity(severity: Severity) -> Paint {
        match severity {
            Severity::Error => Paint::Error,
            Severity::Warning => Paint::Warning,
        }
    }
}

/// All findings, with an empty line between them.
pub fn render_all(findings: &[Diagnostic], sources: &SourceMap, style: Style) -> String {
    let rendered: Vec<String> = findings.iter().map(|d| render(d, sources, style)).collect();
    rendered.join("\n")
}

/// One finding, ending in a line end.
pub fn render(finding: &Diagnostic, sources: &SourceMap, style: Style) -> String {
    let mut out = String::new();
    let tag = format!("{}[{}]", finding.severity.name(), finding.code);
    let tag = style.paint(Style::severity(finding.severity), &tag);
    let message = style.paint(Paint::Bold, &format!(": {}", clean_lines(&finding.message, 0)));
    let _ = writeln!(out, "{tag}{message}");

    let width = gutter_width(finding, sources);
    places(&mut out, finding, sources, width, style);
    for (word, texts) in [("note", &finding.notes), ("help", &finding.help)] {
        for text in texts {
            let mark = style.paint(Paint::Frame, "=");
            let word_bold = style.paint(Paint::Bold, word);
            let indent = width + word.len() + 5;
            let _ = writeln!(out, "{:width$} {mark} {word_bold}: {}", "", clean_lines(text, indent));
        }
    }
    out
}

fn gutter_width(finding: &Diagnostic, sources: &SourceMap) -> usize {
    let shown = finding.labels.iter().filter(|l| sources.get(&l.span.file).is_some());
    let largest = shown.map(|l| l.span.line).max().unwrap_or(0);
    largest.to_string().len()
}

/// The places of a finding, grouped by file (the own file first) and sorted by line.
fn places(out: &mut String, finding: &Diagnostic, sources: &SourceMap, width: usize, style: Style) {
    let mut files: Vec<&str> = Vec::new();
    for label in &finding.labels {
        if !files.contains(&&*label.span.file) {
            files.push(&label.span.file);
        }
    }
    for (nth, file) in files.iter().enumerate() {
        let labels: Vec<&Label> = finding.labels.iter().filter(|l| *l.span.file == **file).collect();
        let arrow = style.paint(Paint::Frame, if nth == 0 { "-->" } else { ":::" });
        let Some(first) = labels.first() else {
            continue;
        };
        let at = &first.span;
        let _ = writeln!(out, "{:width$}{arrow} {}:{}:{}", "", clean(file), at.line, at.col);
        if let Some(source) = sources.get(file) {
            let bar = style.paint(Paint::Frame, "|");
            let _ = writeln!(out, "{:width$} {bar}", "");
            let severity = finding.severity;
            snippet(out, &labels, width, style, severity, |span| source.line_at(span.start));
        }
    }
}

/// Source lines with their marks.
fn snippet<'a>(
    out: &mut String,
    labels: &[&Label],
    width: usize,
    style: Style,
    severity: Severity,
    line_of: impl Fn(&Span) -> (usize, &'a str),
) {
    let mut sorted: Vec<&Label> = labels.to_vec();
    sorted.sort_by_key(|label| (label.span.line, !label.primary, label.span.start));
    let bar = style.paint(Paint::Frame, "|");
    let mut shown: Option<(u32, Cut)> = None;
    for label in sorted {
        let (line_start, text) = line_of(&label.span);
        let from = label.span.start.saturating_sub(line_start).min(text.len());
        let to = label.span.end().saturating_sub(line_start).min(text.len());
        let repeated = shown.as_ref().is_some_and(|(line, _)| *line == label.span.line);
        if !repeated {
            if let Some((line, _)) = &shown
                && label.span.line > line + 1
            {
                let _ = writeln!(out, "{}", style.paint(Paint::Frame, "..."));
            }
            let cut = Cut::around(text, from);
            let number = style.paint(Paint::Frame, &format!("{:>width$}", label.span.line));
            let _ = writeln!(out, "{}", format!("{number} {bar} {}", cut.text).trim_end());
            shown = Some((label.span.line, cut));
        }
        let Some((_, cut)) = &shown else { continue };
        let (lead, len) = cut.cells(text, from, to);
        let mark = if label.primary { "^" } else { "-" }.repeat(len.max(1));
        let said = clean(&label.text);
        let paint = if label.primary { Style::severity(severity) } else { Paint::Frame };
        let marked = style.paint(paint, format!("{mark} {said}").trim_end());
        let _ = writeln!(out, "{:width$} {bar} {:lead$}{marked}", "", "");
    }
}

/// The shown part of a line.
struct Cut {
    text: String,
    /// Cells of the line left of the shown part.
    skipped: usize,
    /// Cells that the mark of a cut takes at the left.
    mark: usize,
}

impl Cut {
    /// The part of `line` around byte `from`.
    fn around(line: &str, from: usize) -> Cut {
        let total = cells(line);
        let at = cells(&line[..floor(line, from)]);
        let skipped = if total <= MAX_CELLS || at <= MAX_CELLS / 2 { 0 } else { at - LEAD_CELLS };
        let mut text = String::new();
        let (mut position, mut taken) = (0, 0);
        for c in line.chars() {
            let wide = cell(c);
            if position >= skipped && taken + wide <= MAX_CELLS {
                push_clean(&mut text, c);
                taken += wide;
            }
            position += wide;
        }
        let mark = usize::from(skipped > 0);
        if mark > 0 {
            text.insert(0, '…');
        }
        if position > skipped + taken {
            text.push('…');
        }
        Cut { text, skipped, mark }
    }

    /// Lead and length, in cells of the shown part, of the bytes `from..to` of `line`.
    fn cells(&self, line: &str, from: usize, to: usize) -> (usize, usize) {
        let (from, to) = (floor(line, from), floor(line, to.max(from)));
        let start = cells(&line[..from]).saturating_sub(self.skipped);
        let start = start.min(MAX_CELLS);
        let len = cells(&line[from..to]).min(MAX_CELLS - start);
        (start + self.mark, len)
    }
}

fn floor(text: &str, mut offset: usize) -> usize {
    offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    offset
}

fn cells(text: &str) -> usize {
    text.chars().map(cell).sum()
}

/// Cells that a character takes on a terminal (East Asian wide ranges, combining marks).
fn cell(c: char) -> usize {
    match u32::from(c) {
        0x09 => TAB_CELLS,
        0x300..=0x36F | 0x200B..=0x200D | 0xFE00..=0xFE0F | 0x20D0..=0x20FF => 0,
        0x1100..=0x115F
        | 0x2E80..=0x303E
        | 0x3041..=0xA4CF
        | 0xAC00..=0xD7A3
        | 0xF900..=0xFAFF
        | 0xFE30..=0xFE6F
        | 0xFF00..=0xFF60
        | 0xFFE0..=0xFFE6
        | 0x1F300..=0x1F64F
        | 0x1F900..=0x1F9FF
        | 0x20000..=0x3FFFD => 2,
        _ => 1,
    }
}

fn push_clean(out: &mut String, c: char) {
    let moves_text = matches!(u32::from(c), 0x202A..=0x202E | 0x2066..=0x2069 | 0x200E | 0x200F);
    match c {
        '\t' => out.push_str(&" ".repeat(TAB_CELLS)),
        c if c.is_control() || moves_text => out.push('\u{FFFD}'),
        c => out.push(c),
    }
}

/// One line of text that cannot move the cursor, nor push what matters off the screen with a single value.
fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(MAX_WORD));
    let mut word = 0;
    for c in text.chars() {
        word = if c == ' ' { 0 } else { word + 1 };
        match word {
            0..=MAX_WORD => push_clean(&mut out, c),
            w if w == MAX_WORD + 1 => out.push('…'),
            _ => {}
        }
    }
    out
}

/// The same for a text of several lines; the later ones are indented.
fn clean_lines(text: &str, indent: usize) -> String {
    let lines: Vec<String> = text.lines().map(clean).collect();
    lines.join(&format!("\n{:indent$}", ""))
}

#[cfg(test)]
mod tests {
    use super::super::{Diagnostic, E0108_UNKNOWN_KEY, E0304_KV_BUDGET};
    use super::*;

    fn plain(finding: &Diagnostic, sources: &SourceMap) -> String {
        render(finding, sources, Style::default())
    }

    #[test]
    fn layout_of_the_style_guide() {
        let mut sources = SourceMap::new();
        let text = format!("{}    main: e4m3\n", "\n".repeat(30));
        let source = sources.add("specs/variant-a.yaml", text.as_str());
        let finding = Diagnostic::error(E0304_KV_BUDGET, source.span(34, 4))
            .message("KV cache grows by 1 490 bytes/token, over the budget of 1 024")
            .label("1 320 of them come from here, in 4 source layers")
            .note("plus 2.70 MB per sequence")
            .help("`main: e2m1` would bring it to 890");
        insta::assert_snapshot!(plain(&finding, &sources), @r"
        error[E0304]: KV cache grows by 1 490 bytes/token, over the budget of 1 024
          --> specs/variant-a.yaml:31:5
           |
        31 |     main: e4m3
           |     ^^^^ 1 320 of them come from here, in 4 source layers
           = note: plus 2.70 MB per sequence
           = help: `main: e2m1` would bring it to 890
        ");
    }

    #[test]
    fn wide_characters_tabs_and_related_places() {
        let mut sources = SourceMap::new();
        let text = "名: 1\n\tkey: 2 # ü\nx: 3\ny: 4\n";
        let source = sources.add("a.yaml", text);
        let at = |needle: &str| source.span(text.find(needle).unwrap(), needle.len());
        let finding = Diagnostic::error(E0108_UNKNOWN_KEY, at("2"))
            .message("two\u{1b}[31m")
            .label("here")
            .related(at("1"), "first")
            .related(at("ü"), "same line")
            .related(at("4"), "");
        insta::assert_snapshot!(plain(&finding, &sources), @r"
        error[E0108]: two�[31m
         --> a.yaml:2:7
          |
        1 | 名: 1
          |     - first
        2 |     key: 2 # ü
          |          ^ here
          |              - same line
        ...
        4 | y: 4
          |    -
        ");
    }

    #[test]
    fn long_lines_are_cut_around_the_place() {
        let mut sources = SourceMap::new();
        let text = format!("{}BAD{}", "x".repeat(1000), "y".repeat(1000));
        let source = sources.add("a.yaml", text.as_str());
        let rendered = plain(&Diagnostic::error(E0108_UNKNOWN_KEY, source.span(1000, 3)).message("m"), &sources);
        assert!(rendered.lines().all(|line| cells(line) < 140));
        let lines: Vec<&str> = rendered.lines().collect();
        let (text_at, mark_at) = (lines[3].find("BAD"), lines[4].find("^^^"));
        assert_eq!(text_at.map(|at| cells(&lines[3][..at])), mark_at);
    }

    #[test]
    fn endless_words_are_cut() {
        let value = format!("`{}` is too long", "a".repeat(100_000));
        let rendered =
            plain(&Diagnostic::new(E0108_UNKNOWN_KEY, Severity::Error, None).message(value), &SourceMap::new());
        assert!(rendered.contains("aaa… is too long") && rendered.len() < 2 * MAX_WORD, "{}", rendered.len());
    }

    #[test]
    fn colour_only_when_asked() {
        let sources = SourceMap::new();
        let finding = Diagnostic::new(E0108_UNKNOWN_KEY, Severity::Warning, None).message("m");
        assert_eq!(plain(&finding, &sources), "warning[E0108]: m\n");
        assert!(render(&finding, &sources, Style { colour: true }).contains("\x1b[1;33m"));
    }
}
