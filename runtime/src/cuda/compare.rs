//! Results against expectations.

use super::case::{Element, Rule};
use super::codes;
use crate::check;
use dsc_ir::dtype::DType;

/// How a result compares.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// Elements compared.
    pub elements: u64,
    /// Elements beyond the rule.
    pub outside: u64,
    /// Elements that differ at all.
    pub different: u64,
    /// Largest error over what the rule allows; 0 of equal elements, and of those that have no distance.
    pub worst: f64,
    /// The first element outside, in words.
    pub first: Option<String>,
    /// Whether the rule holds.
    pub holds: bool,
}

impl Comparison {
    fn new() -> Comparison {
        Comparison { elements: 0, outside: 0, different: 0, worst: 0.0, first: None, holds: true }
    }

    /// Counts an element outside.
    pub(super) fn miss(&mut self, words: impl FnOnce() -> String) {
        self.outside += 1;
        self.first.get_or_insert_with(words);
    }

    /// An element that no share excuses.
    pub(super) fn lose(&mut self, words: impl FnOnce() -> String) {
        self.holds = false;
        self.outside += 1;
        self.first = Some(words());
    }
}

/// Compares a parameter after a launch. `before` is what it held; all have the same length.
pub fn compare(before: &[u8], expected: &[u8], got: &[u8], element: Element, rule: Rule) -> Comparison {
    let mut c = Comparison::new();
    let share = match rule {
        Rule::Exact => {
            close(&mut c, expected, got, element, |_, _, _| false);
            0.0
        }
        Rule::Close { abs, rel, outside } => {
            close(&mut c, expected, got, element, |want, have, worst| is_near(want, have, abs, rel, worst));
            outside
        }
        Rule::Sum { products, row, outside } => {
            sums(&mut c, expected, got, element, products, row);
            outside
        }
        Rule::Codes { dtype: DType::Packed(format), channels, outside } => {
            codes::compare(&mut c, [before, expected, got], format, channels);
            outside
        }
        Rule::Codes { dtype, .. } => {
            c.lose(|| format!("{dtype} has no packed rows"));
            0.0
        }
    };
    let one = u64::from(share > 0.0 && !matches!(rule, Rule::Close { .. }));
    let allowed = one.max((share * c.elements as f64) as u64);
    c.holds &= c.outside <= allowed && expected.len() == got.len();
    c
}

fn close(c: &mut Comparison, expected: &[u8], got: &[u8], element: Element, near: impl Fn(f64, f64, &mut f64) -> bool) {
    let pairs = expected.chunks_exact(element.bytes()).zip(got.chunks_exact(element.bytes()));
    for (i, (e, g)) in pairs.enumerate() {
        c.elements += 1;
        if e == g {
            continue;
        }
        c.different += 1;
        let (want, have) = (value(e, element), value(g, element));
        if !near(want, have, &mut c.worst) {
            c.miss(|| format!("[{i}] is {have}, not {want}"));
        }
    }
}

fn is_near(want: f64, have: f64, abs: f64, rel: f64, worst: &mut f64) -> bool {
    if want.is_nan() || have.is_nan() {
        return want.is_nan() && have.is_nan();
    }
    if want == have {
        return true;
    }
    let over = (want - have).abs() / (abs + rel * want.abs());
    if over.is_finite() {
        *worst = worst.max(over);
    }
    over <= 1.0
}

/// [`Rule::Sum`], row by row.
fn sums(c: &mut Comparison, expected: &[u8], got: &[u8], element: Element, products: f64, row: u64) {
    let row = usize::try_from(row).unwrap_or(usize::MAX).saturating_mul(element.bytes()).max(element.bytes());
    for (r, (expected, got)) in expected.chunks(row).zip(got.chunks(row)).enumerate() {
        let all = || expected.chunks_exact(element.bytes()).map(|e| value(e, element)).filter(|x| x.is_finite());
        let size = (all().map(|x| x * x).sum::<f64>() / all().count().max(1) as f64).sqrt();
        let pairs = expected.chunks_exact(element.bytes()).zip(got.chunks_exact(element.bytes()));
        for (i, (e, g)) in pairs.enumerate() {
            c.elements += 1;
            if e == g {
                continue;
            }
            c.different += 1;
            let (want, have) = (value(e, element), value(g, element));
            let allowed = ulp(element, want) + products * 2f64.powi(-22) * size;
            if is_near(want, have, allowed, 0.0, &mut c.worst) {
                continue;
            }
            let words = || format!("[{r}, {i}] is {have:e}, not {want:e} within {allowed:.1e}");
            // Not `>`: NaN and infinities are lost.
            if (want - have).abs() <= size.max(want.abs()) { c.miss(words) } else { c.lose(words) }
        }
    }
}

fn ulp(element: Element, x: f64) -> f64 {
    let dtype = if element == Element::Bf16 { DType::Bf16 } else { DType::F32 };
    check::compare::ulp(dtype, x as f32)
}

fn value(bytes: &[u8], element: Element) -> f64 {
    match (element, bytes) {
        (Element::F32, &[a, b, c, d]) => f64::from(f32::from_le_bytes([a, b, c, d])),
        (Element::I32, &[a, b, c, d]) => f64::from(i32::from_le_bytes([a, b, c, d])),
        (Element::Bf16, &[a, b]) => f64::from(half::bf16::from_le_bytes([a, b]).to_f32()),
        (_, bytes) => bytes.first().copied().map_or(f64::NAN, f64::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(expected: &[u8], got: &[u8], element: Element, rule: Rule) -> Comparison {
        super::compare(expected, expected, got, element, rule)
    }

    fn floats(v: &[f32]) -> Vec<u8> {
        v.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    #[test]
    fn rules() {
        let want = floats(&[1.0, 2.0, f32::NAN, f32::NEG_INFINITY]);
        let close = |outside| Rule::Close { abs: 0.0, rel: 0.125, outside };
        assert!(compare(&want, &want, Element::F32, Rule::Exact).holds);
        let near = floats(&[1.0625, 2.0, -f32::NAN, f32::NEG_INFINITY]);
        let c = compare(&want, &near, Element::F32, close(0.0));
        assert_eq!((c.holds, c.different, c.outside, c.worst), (true, 2, 0, 0.5));
        assert!(!compare(&want, &near, Element::F32, Rule::Exact).holds);
        let far = floats(&[1.5, 2.0, f32::NAN, f32::NEG_INFINITY]);
        let c = compare(&want, &far, Element::F32, close(0.0));
        assert_eq!((c.holds, c.first.as_deref()), (false, Some("[0] is 1.5, not 1")));
        assert!(compare(&want, &far, Element::F32, close(0.25)).holds);
        let lost = floats(&[1.0, f32::NAN, f32::NAN, f32::NEG_INFINITY]);
        assert!(!compare(&want, &lost, Element::F32, close(0.0)).holds);
        assert!(!compare(&want, &want[..12], Element::F32, close(0.0)).holds);
    }

    #[test]
    fn sums() {
        let rule = |products, outside| Rule::Sum { products, row: 2, outside };
        let want = floats(&[1.0, 1.0, 100.0, 100.0]);
        // One ulp, then a share of the row's size.
        let ulp = floats(&[1.0, f32::from_bits(1f32.to_bits() + 1), 100.0, 100.0]);
        assert!(compare(&want, &ulp, Element::F32, rule(0.0, 0.0)).holds);
        let near = floats(&[1.0, 1.0, 100.0, 100.001]);
        assert!(!compare(&want, &near, Element::F32, rule(1.0, 0.0)).holds);
        assert!(compare(&want, &near, Element::F32, rule(64.0, 0.0)).holds);
        let c = compare(&want, &near, Element::F32, rule(1.0, 1e-6));
        assert_eq!((c.holds, c.outside), (true, 1));
        assert!(!compare(&want, &floats(&[1.0, 1.0, 100.0, 300.0]), Element::F32, rule(1.0, 0.5)).holds);
        assert!(!compare(&want, &floats(&[1.0, 1.0, 100.0, f32::NAN]), Element::F32, rule(1.0, 0.5)).holds);
    }

    #[test]
    fn other_elements() {
        assert!(compare(&[7, 8], &[7, 9], Element::U8, Rule::Close { abs: 1.0, rel: 0.0, outside: 0.0 }).holds);
        assert!(!compare(&[1, 0, 0, 0], &[2, 0, 0, 0], Element::I32, Rule::Exact).holds);
    }
}
