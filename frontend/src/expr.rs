//! Integer arithmetic in values (`window + topk`, `ceil(n / ratio)`) and layer patterns (`2..20 step 6`).
//!
//! Values are exact rationals while they are worked out; the result has to be whole. Names stand for
//! other integer keys and are looked up by the caller.

use grammar::{Grammar, Rule};
use pest::Parser;
use pest::iterators::Pair;

/// The derived parser; its rules are described in `expr.pest`.
#[allow(missing_docs)]
mod grammar {
    #[derive(pest_derive::Parser)]
    #[grammar = "expr.pest"]
    pub struct Grammar;
}

/// Longest expression, in bytes: it also bounds the nesting.
const MAX_BYTES: usize = 200;

/// What is wrong with an expression, and where in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExprError {
    /// Byte offset in the expression.
    pub start: usize,
    /// Length in bytes.
    pub len: usize,
    /// Whether the text does not parse, rather than having no value.
    pub syntax: bool,
    /// What is wrong.
    pub message: String,
    /// A way out.
    pub help: Option<String>,
    /// Whether the reason has been reported elsewhere (a name whose own value is wrong).
    pub silent: bool,
}

/// Why a name has no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameError {
    /// What is wrong.
    pub message: String,
    /// A way out.
    pub help: Option<String>,
    /// Whether the reason has been reported elsewhere.
    pub silent: bool,
}

/// Values of names.
pub type Lookup<'a> = &'a mut dyn FnMut(&str) -> Result<i128, NameError>;

/// The value of an expression.
pub fn evaluate(text: &str, lookup: Lookup<'_>) -> Result<i128, ExprError> {
    let pair = parse(Rule::value, text)?;
    let whole = pair.clone();
    let sum = pair.into_inner().next().ok_or_else(|| error_at(&whole, "nothing to work out"))?;
    whole_value(sum, lookup)
}

/// The layers of a pattern, in its order; `n_layers` ends an open range.
///
/// `7` is one layer, `2..20` is 2 to 19, `2..=19` the same, `2..` reaches to the last layer, and
/// `2..20 step 6` is 2, 8, 14.
pub fn layers(text: &str, n_layers: u32, lookup: Lookup<'_>) -> Result<Vec<u32>, ExprError> {
    let pair = parse(Rule::layers, text)?;
    let whole = pair.clone();
    let inner = pair.into_inner().next().ok_or_else(|| error_at(&whole, "no layers"))?;
    if inner.as_rule() == Rule::one {
        let sum = inner.clone().into_inner().next().ok_or_else(|| error_at(&inner, "no layer"))?;
        return Ok(vec![layer(whole_value(sum, lookup)?, &inner)?]);
    }
    let (mut first, mut last, mut inclusive, mut step) = (0, i128::from(n_layers), false, 1);
    for part in inner.clone().into_inner() {
        match part.as_rule() {
            Rule::sum => first = whole_value(part, lookup)?,
            Rule::dots => inclusive = part.as_str() == "..=",
            Rule::end => last = child_value(part, lookup)? + i128::from(inclusive),
            Rule::step => step = child_value(part, lookup)?,
            _ => {}
        }
    }
    if step < 1 {
        return Err(error_at(&inner, "the step has to be at least 1"));
    }
    if first >= last {
        let message = format!("the range is empty: it starts at {first} and ends before {last}");
        return Err(error_at(&inner, &message));
    }
    let (first, last) = (layer(first, &inner)?, layer(last - 1, &inner)?);
    let step = usize::try_from(step).unwrap_or(usize::MAX);
    Ok((first..=last).step_by(step).collect())
}

/// Most layers a model may have.
pub const MAX_LAYERS: u32 = 1024;

fn layer(value: i128, at: &Pair<'_, Rule>) -> Result<u32, ExprError> {
    let layer = u32::try_from(value).ok().filter(|layer| *layer < MAX_LAYERS);
    layer.ok_or_else(|| error_at(at, &format!("layer numbers go from 0 to {}", MAX_LAYERS - 1)))
}

fn parse(rule: Rule, text: &str) -> Result<Pair<'_, Rule>, ExprError> {
    let syntax = |start: usize, message: String| {
        let len = usize::from(start < text.len());
        let help = "expressions have + - * / %, parentheses, ceil, floor, min, max and names of integer keys";
        ExprError { start, len, syntax: true, message, help: Some(help.into()), silent: false }
    };
    if text.len() > MAX_BYTES {
        return Err(syntax(0, format!("the expression is longer than {MAX_BYTES} characters")));
    }
    let mut pairs = Grammar::parse(rule, text).map_err(|error| {
        let start = match error.location {
            pest::error::InputLocation::Pos(at) | pest::error::InputLocation::Span((at, _)) => at,
        };
        let expected = match &error.variant {
            pest::error::ErrorVariant::ParsingError { positives, .. } => expectation(positives),
            pest::error::ErrorVariant::CustomError { message } => message.clone(),
        };
        let found = text.get(start..).and_then(|rest| rest.chars().next());
        let found = found.map_or("the end".to_owned(), |c| format!("`{c}`"));
        syntax(start, format!("expected {expected}, found {found}"))
    })?;
    pairs.next().ok_or_else(|| syntax(0, "nothing to work out".into()))
}

fn expectation(rules: &[Rule]) -> String {
    let operator = rules.iter().any(|r| matches!(r, Rule::add_op | Rule::mul_op | Rule::dots));
    let operand = rules.iter().any(|r| matches!(r, Rule::number | Rule::name | Rule::sum | Rule::minus | Rule::call));
    match (operator, operand) {
        (true, false) => "an operator or the end".into(),
        _ => "a number or a name".into(),
    }
}

fn error_at(pair: &Pair<'_, Rule>, message: &str) -> ExprError {
    let (start, len) = (pair.as_span().start(), pair.as_str().trim_end().len());
    ExprError { start, len, syntax: false, message: message.into(), help: None, silent: false }
}

fn child_value(pair: Pair<'_, Rule>, lookup: Lookup<'_>) -> Result<i128, ExprError> {
    let sum = pair.clone().into_inner().find(|part| part.as_rule() == Rule::sum);
    whole_value(sum.ok_or_else(|| error_at(&pair, "nothing to work out"))?, lookup)
}

fn whole_value(sum: Pair<'_, Rule>, lookup: Lookup<'_>) -> Result<i128, ExprError> {
    let value = value(sum.clone(), lookup)?;
    value.whole().ok_or_else(|| {
        let message = format!("the value {}/{} is not whole", value.num, value.den);
        let help = format!("write `ceil({0})` or `floor({0})`", sum.as_str().trim());
        ExprError { help: Some(help), ..error_at(&sum, &message) }
    })
}

/// A reduced fraction with a positive denominator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rational {
    num: i128,
    den: i128,
}

impl Rational {
    fn new(num: i128, den: i128) -> Option<Rational> {
        let divisor = gcd(num.checked_abs()?, den.checked_abs()?).max(1);
        let sign = if den < 0 { -1 } else { 1 };
        let (num, den) = (num / divisor * sign, den / divisor * sign);
        // Products of two such numbers stay inside i128.
        let small = num.unsigned_abs() < 1 << 62 && den > 0 && den < 1 << 62;
        small.then_some(Rational { num, den })
    }

    fn whole(self) -> Option<i128> {
        (self.den == 1).then_some(self.num)
    }

    fn floor(self) -> i128 {
        self.num.div_euclid(self.den)
    }
}

fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn value(pair: Pair<'_, Rule>, lookup: Lookup<'_>) -> Result<Rational, ExprError> {
    match pair.as_rule() {
        Rule::sum | Rule::product => chain(pair, lookup),
        Rule::unary => {
            let minuses = pair.clone().into_inner().filter(|p| p.as_rule() == Rule::minus).count();
            let atom = pair.clone().into_inner().last().ok_or_else(|| error_at(&pair, "a value is missing"))?;
            let inner = value(atom, lookup)?;
            Ok(if minuses % 2 == 1 { Rational { num: -inner.num, den: inner.den } } else { inner })
        }
        Rule::call => call(pair, lookup),
        Rule::number => {
            let digits = pair.as_str().replace('_', "");
            let number = digits.parse().ok().and_then(|n| Rational::new(n, 1));
            number.ok_or_else(|| error_at(&pair, "the number is too large"))
        }
        _ => {
            let found = lookup(pair.as_str()).map_err(|error| ExprError {
                help: error.help,
                silent: error.silent,
                ..error_at(&pair, &error.message)
            })?;
            Rational::new(found, 1).ok_or_else(|| error_at(&pair, "the number is too large"))
        }
    }
}

fn chain(pair: Pair<'_, Rule>, lookup: Lookup<'_>) -> Result<Rational, ExprError> {
    let mut parts = pair.clone().into_inner();
    let first = parts.next().ok_or_else(|| error_at(&pair, "a value is missing"))?;
    let mut total = value(first, lookup)?;
    while let (Some(op), Some(part)) = (parts.next(), parts.next()) {
        let right = value(part.clone(), lookup)?;
        let zero = right.num == 0 && matches!(op.as_str(), "/" | "%");
        if zero {
            return Err(error_at(&part, "division by zero"));
        }
        let result = match op.as_str() {
            "+" => Rational::new(total.num * right.den + right.num * total.den, total.den * right.den),
            "-" => Rational::new(total.num * right.den - right.num * total.den, total.den * right.den),
            "*" => Rational::new(total.num * right.num, total.den * right.den),
            "/" => Rational::new(total.num * right.den, total.den * right.num),
            _ => match (total.whole(), right.whole()) {
                (Some(a), Some(b)) => Rational::new(a.rem_euclid(b), 1),
                _ => return Err(error_at(&op, "`%` needs whole numbers")),
            },
        };
        total = result.ok_or_else(|| error_at(&pair, "the number is too large"))?;
    }
    Ok(total)
}

fn call(pair: Pair<'_, Rule>, lookup: Lookup<'_>) -> Result<Rational, ExprError> {
    let mut parts = pair.clone().into_inner();
    let function = parts.next().map(|p| p.as_str().trim().to_owned()).unwrap_or_default();
    let mut arguments = Vec::new();
    for part in parts {
        arguments.push(value(part, lookup)?);
    }
    let rounding = matches!(function.as_str(), "ceil" | "floor");
    let Some(&first) = arguments.first().filter(|_| !rounding || arguments.len() == 1) else {
        return Err(error_at(&pair, &format!("`{function}` takes one value, such as `{function}(a / b)`")));
    };
    let less = |a: &Rational, b: &Rational| a.num * b.den < b.num * a.den;
    let picked = match function.as_str() {
        "floor" => Rational { num: first.floor(), den: 1 },
        "ceil" => Rational { num: -Rational { num: -first.num, den: first.den }.floor(), den: 1 },
        "min" => arguments.iter().fold(first, |best, a| if less(a, &best) { *a } else { best }),
        _ => arguments.iter().fold(first, |best, a| if less(&best, a) { *a } else { best }),
    };
    Ok(picked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(name: &str) -> Result<i128, NameError> {
        match name {
            "window" => Ok(128),
            "topk" => Ok(512),
            _ => Err(NameError { message: format!("no `{name}`"), help: None, silent: false }),
        }
    }

    fn eval(text: &str) -> Result<i128, String> {
        evaluate(text, &mut |name| names(name)).map_err(|e| format!("{}+{} {}", e.start, e.len, e.message))
    }

    #[test]
    fn arithmetic() {
        assert_eq!(eval("window + topk"), Ok(640));
        assert_eq!(eval("ceil(topk / 3) * 2 - -1"), Ok(343));
        assert_eq!(eval("floor(7/2) + min(4, 9, 3) + max(1,2)"), Ok(8));
        assert_eq!(eval("16_000_000 % 7"), Ok(16_000_000 % 7));
        assert_eq!(eval("topk / 3 * 3"), Ok(512));
        assert_eq!(eval("(1 + 2) * -(3)"), Ok(-9));
    }

    #[test]
    fn findings_have_places() {
        assert_eq!(eval("1 + sqe"), Err("4+3 no `sqe`".into()));
        assert_eq!(eval("7 / 2"), Err("0+5 the value 7/2 is not whole".into()));
        assert_eq!(eval("1 / (topk - 512)"), Err("4+12 division by zero".into()));
        assert_eq!(eval("ceil(1, 2)"), Err("0+10 `ceil` takes one value, such as `ceil(a / b)`".into()));
        assert!(eval("1 +").unwrap_err().starts_with("3+0 expected a number"));
        assert!(eval("1 1").unwrap_err().starts_with("2+1 expected an operator"));
        for bad in ["", "(", "((((", "ceil(", "9999999999999999999999999", "1 << 2", "a..b", "%"] {
            assert!(eval(bad).is_err(), "{bad}");
        }
        assert!(eval(&"(".repeat(10_000)).is_err());
    }

    #[test]
    fn patterns() {
        let of = |text: &str| layers(text, 40, &mut |name| names(name)).map_err(|e| e.message);
        assert_eq!(of("7"), Ok(vec![7]));
        assert_eq!(of("2..20 step 6"), Ok(vec![2, 8, 14]));
        assert_eq!(of("2..=4"), Ok(vec![2, 3, 4]));
        assert_eq!(of("38.."), Ok(vec![38, 39]));
        assert_eq!(of("36.. step 2"), Ok(vec![36, 38]));
        assert_eq!(of("window - 126..4"), Ok(vec![2, 3]));
        for bad in ["5..2", "2..2", "..", "1..4 step 0", "-1", "0..5000", "1...4", "2 to 3"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
