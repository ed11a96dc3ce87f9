//! Results against expectations.

use super::case::{Element, Rule};

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

/// Compares bytes of equal length.
pub fn compare(expected: &[u8], got: &[u8], element: Element, rule: Rule) -> Comparison {
    let mut c = Comparison { elements: 0, outside: 0, different: 0, worst: 0.0, first: None, holds: true };
    let pairs = expected.chunks_exact(element.bytes()).zip(got.chunks_exact(element.bytes()));
    for (i, (e, g)) in pairs.enumerate() {
        c.elements += 1;
        if e == g {
            continue;
        }
        c.different += 1;
        let (want, have) = (value(e, element), value(g, element));
        if !is_near(want, have, rule, &mut c.worst) {
            c.outside += 1;
            c.first.get_or_insert_with(|| format!("[{i}] is {have}, not {want}"));
        }
    }
    let share = match rule {
        Rule::Exact => 0.0,
        Rule::Close { outside, .. } => outside,
    };
    c.holds = c.outside as f64 <= share * c.elements as f64 && expected.len() == got.len();
    c
}

fn is_near(want: f64, have: f64, rule: Rule, worst: &mut f64) -> bool {
    let Rule::Close { abs, rel, .. } = rule else {
        return false;
    };
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
    fn other_elements() {
        assert!(compare(&[7, 8], &[7, 9], Element::U8, Rule::Close { abs: 1.0, rel: 0.0, outside: 0.0 }).holds);
        assert!(!compare(&[1, 0, 0, 0], &[2, 0, 0, 0], Element::I32, Rule::Exact).holds);
    }
}
