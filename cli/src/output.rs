//! Where commands write: results to one stream, notes for people to another, and how numbers read.

use crate::failure::Failure;
use dsc_ir::diag::Style;
use serde::Serialize;
use std::io::{self, Write};

/// The two streams and how they are painted.
pub struct Output<'a> {
    /// Results.
    pub out: &'a mut dyn Write,
    /// Findings, progress and other notes.
    pub notes: &'a mut dyn Write,
    /// Paint of results.
    pub out_style: Style,
    /// Paint of notes.
    pub notes_style: Style,
}

impl Output<'_> {
    /// Writes one JSON document.
    ///
    /// # Errors
    /// A stream that nobody reads.
    pub fn json(&mut self, document: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(document)?;
        Ok(writeln!(self.out, "{text}")?)
    }

    /// Writes a text as it is.
    ///
    /// # Errors
    /// A stream that nobody reads.
    pub fn text(&mut self, text: &str) -> Result<(), Failure> {
        Ok(self.out.write_all(text.as_bytes())?)
    }

    /// Writes a note; one that cannot be written is lost.
    pub fn note(&mut self, text: &str) {
        let _ = self.notes.write_all(text.as_bytes());
    }

    /// A text in bold, where results have paint.
    pub fn bold(&self, text: &str) -> String {
        bold(self.out_style, text)
    }
}

/// A text in bold, where there is paint.
pub fn bold(style: Style, text: &str) -> String {
    if style.colour { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
}

/// Colour on a terminal, unless `NO_COLOR` is set.
pub fn style_of(stream: &impl io::IsTerminal) -> Style {
    Style { colour: stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) }
}

/// A whole number with a space between thousands.
pub fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// An exact number, perhaps a fraction.
pub fn exact(value: f64) -> String {
    if value.fract() == 0.0 && (0.0..9e15).contains(&value) { grouped(value as u64) } else { value.to_string() }
}

/// A count to three digits with a decimal prefix: `8.71 G`.
pub fn scaled(value: u64) -> String {
    const PREFIXES: [(&str, f64); 5] = [("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)];
    let value = value as f64;
    // A number that would round up to 1000 of a prefix takes the next one.
    let Some((prefix, unit)) = PREFIXES.iter().find(|(_, unit)| value >= unit * 0.9995) else {
        return format!("{value} ");
    };
    let scaled = value / unit;
    let decimals = if scaled >= 99.95 {
        0
    } else if scaled >= 9.995 {
        1
    } else {
        2
    };
    format!("{scaled:.decimals$} {prefix}")
}

/// `1 layer`, `2 layers`.
pub fn plural(count: usize, noun: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{s}")
}

/// Ascending numbers as ranges: `2, 8-13`.
pub fn ranges(numbers: &[u32]) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut at = 0;
    while at < numbers.len() {
        let run = numbers[at..].windows(2).take_while(|pair| pair[1] == pair[0].saturating_add(1)).count();
        let (first, last) = (numbers[at], numbers[at + run]);
        match run {
            0 => parts.push(first.to_string()),
            1 => parts.extend([first.to_string(), last.to_string()]),
            _ => parts.push(format!("{first}-{last}")),
        }
        at += run + 1;
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(2_703_360), "2 703 360");
        assert_eq!(exact(3514.25), "3514.25");
        assert_eq!(exact(890.0), "890");
        assert_eq!(scaled(999), "999 ");
        assert_eq!(scaled(999_950), "1.00 M");
        assert_eq!(scaled(9_192_864), "9.19 M");
        assert_eq!(scaled(41_984_000), "42.0 M");
        assert_eq!(scaled(u64::MAX), "18447 P");
    }

    #[test]
    fn layers_are_ranges() {
        assert_eq!(ranges(&[]), "");
        assert_eq!(ranges(&[2, 8]), "2, 8");
        assert_eq!(ranges(&[3, 4, 5, 6, 9, 10]), "3-6, 9, 10");
    }
}
