//! Symbolic sizes: exact non-negative integer expressions over the launch-time dimensions.
//!
//! Shapes, grid sizes, flops and bytes are all [`Expr`]s. Building one folds constants and merges equal
//! terms, so equal sizes print equally.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Add, Mul};

/// Dimensions known only at launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Sym {
    /// Rows of the step: tokens of all sequences together.
    Tokens,
    /// Sequences that have state.
    Seqs,
    /// Positions a sequence's cache can hold.
    Context,
    /// Rows of logits asked for.
    OutRows,
    /// Rows that go through the layers after the last source, where a prefill replays only the end of each prompt.
    TailRows,
}

impl Sym {
    /// All symbols.
    pub const ALL: [Sym; 5] = [Sym::Tokens, Sym::Seqs, Sym::Context, Sym::OutRows, Sym::TailRows];

    /// Name in the textual IR.
    pub fn name(self) -> &'static str {
        match self {
            Sym::Tokens => "n_tokens",
            Sym::Seqs => "n_seqs",
            Sym::Context => "n_context",
            Sym::OutRows => "n_out_rows",
            Sym::TailRows => "n_tail_rows",
        }
    }

    /// The symbol of this name.
    pub fn parse(name: &str) -> Option<Sym> {
        Sym::ALL.into_iter().find(|s| s.name() == name)
    }
}

/// Values of the symbols at a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Env {
    /// [`Sym::Tokens`].
    pub n_tokens: u64,
    /// [`Sym::Seqs`].
    pub n_seqs: u64,
    /// [`Sym::Context`].
    pub n_context: u64,
    /// [`Sym::OutRows`].
    pub n_out_rows: u64,
    /// [`Sym::TailRows`].
    pub n_tail_rows: u64,
}

impl Env {
    /// Value of one symbol.
    pub fn get(&self, sym: Sym) -> u64 {
        match sym {
            Sym::Tokens => self.n_tokens,
            Sym::Seqs => self.n_seqs,
            Sym::Context => self.n_context,
            Sym::OutRows => self.n_out_rows,
            Sym::TailRows => self.n_tail_rows,
        }
    }

    /// All values in the order of [`Sym::ALL`], which is the order kernels take them in.
    pub fn dims(&self) -> [u64; 5] {
        Sym::ALL.map(|s| self.get(s))
    }
}

/// An exact non-negative integer expression.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Expr {
    /// A constant.
    Const(u64),
    /// A launch-time dimension.
    Sym(Sym),
    /// Sum of two or more terms, constants last.
    Add(Vec<Expr>),
    /// Product of two or more factors, constant first.
    Mul(Vec<Expr>),
    /// `ceil(a / b)`.
    CeilDiv(Box<Expr>, u64),
    /// `min(a, b)`.
    Min(Box<Expr>, Box<Expr>),
}

impl Expr {
    /// Number of rows of a step.
    pub fn tokens() -> Expr {
        Expr::Sym(Sym::Tokens)
    }

    /// The constant, if it is one.
    pub fn as_const(&self) -> Option<u64> {
        match self {
            Expr::Const(c) => Some(*c),
            _ => None,
        }
    }

    /// `ceil(self / d)`; `d` of 0 counts as 1.
    pub fn ceil_div(self, d: u64) -> Expr {
        match (self, d) {
            (e, 0 | 1) => e,
            (Expr::Const(c), d) => Expr::Const(c.div_ceil(d)),
            (e, d) => Expr::CeilDiv(Box::new(e), d),
        }
    }

    /// The smaller of both.
    pub fn min(self, other: Expr) -> Expr {
        match (self, other) {
            (Expr::Const(a), Expr::Const(b)) => Expr::Const(a.min(b)),
            (a, b) if a == b => a,
            (a, b) if a <= b => Expr::Min(Box::new(a), Box::new(b)),
            (a, b) => Expr::Min(Box::new(b), Box::new(a)),
        }
    }

    /// Value in an environment; saturates at `u64::MAX`.
    pub fn eval(&self, env: &Env) -> u64 {
        match self {
            Expr::Const(c) => *c,
            Expr::Sym(s) => env.get(*s),
            Expr::Add(v) => v.iter().fold(0u64, |a, e| a.saturating_add(e.eval(env))),
            Expr::Mul(v) => v.iter().fold(1u64, |a, e| a.saturating_mul(e.eval(env))),
            Expr::CeilDiv(e, d) => e.eval(env).div_ceil((*d).max(1)),
            Expr::Min(a, b) => a.eval(env).min(b.eval(env)),
        }
    }

    /// Whether the symbol occurs.
    pub fn mentions(&self, sym: Sym) -> bool {
        match self {
            Expr::Const(_) => false,
            Expr::Sym(s) => *s == sym,
            Expr::Add(v) | Expr::Mul(v) => v.iter().any(|e| e.mentions(sym)),
            Expr::CeilDiv(e, _) => e.mentions(sym),
            Expr::Min(a, b) => a.mentions(sym) || b.mentions(sym),
        }
    }

    /// Product of a list.
    pub fn product<'a>(items: impl IntoIterator<Item = &'a Expr>) -> Expr {
        items.into_iter().fold(Expr::Const(1), |a, e| a * e.clone())
    }

    /// Sum of a list.
    pub fn sum(items: impl IntoIterator<Item = Expr>) -> Expr {
        items.into_iter().fold(Expr::Const(0), |a, e| a + e)
    }

    fn term(self) -> (u64, Expr) {
        match self {
            Expr::Const(c) => (c, Expr::Const(1)),
            Expr::Mul(mut v) => match v.first() {
                Some(Expr::Const(c)) => {
                    let c = *c;
                    v.remove(0);
                    let rest = if v.len() == 1 { v.remove(0) } else { Expr::Mul(v) };
                    (c, rest)
                }
                _ => (1, Expr::Mul(v)),
            },
            e => (1, e),
        }
    }

    fn scaled(coefficient: u64, rest: Expr) -> Expr {
        match (coefficient, rest) {
            (0, _) => Expr::Const(0),
            (c, Expr::Const(d)) => Expr::Const(c.saturating_mul(d)),
            (1, e) => e,
            (c, Expr::Mul(mut v)) => {
                v.insert(0, Expr::Const(c));
                Expr::Mul(v)
            }
            (c, e) => Expr::Mul(vec![Expr::Const(c), e]),
        }
    }
}

impl From<u64> for Expr {
    fn from(c: u64) -> Expr {
        Expr::Const(c)
    }
}

impl Add for Expr {
    type Output = Expr;
    fn add(self, other: Expr) -> Expr {
        let mut terms: Vec<(u64, Expr)> = Vec::new();
        for e in [self, other] {
            let items = match e {
                Expr::Add(v) => v,
                e => vec![e],
            };
            for item in items {
                let (c, rest) = item.term();
                match terms.iter_mut().find(|(_, r)| *r == rest) {
                    Some((d, _)) => *d = d.saturating_add(c),
                    None => terms.push((c, rest)),
                }
            }
        }
        terms.retain(|(c, _)| *c != 0);
        terms.sort_by(|(_, a), (_, b)| match (a, b) {
            (Expr::Const(_), Expr::Const(_)) => std::cmp::Ordering::Equal,
            (Expr::Const(_), _) => std::cmp::Ordering::Greater,
            (_, Expr::Const(_)) => std::cmp::Ordering::Less,
            _ => a.cmp(b),
        });
        let mut out: Vec<Expr> = terms.into_iter().map(|(c, r)| Expr::scaled(c, r)).collect();
        match out.len() {
            0 => Expr::Const(0),
            1 => out.remove(0),
            _ => Expr::Add(out),
        }
    }
}

impl Mul for Expr {
    type Output = Expr;
    fn mul(self, other: Expr) -> Expr {
        let (this, other) = if self.as_const().is_some() { (other, self) } else { (self, other) };
        if let (Expr::Add(v), Some(c)) = (&this, other.as_const()) {
            return Expr::sum(v.iter().map(|e| e.clone() * Expr::Const(c)));
        }
        let (a, x) = this.term();
        let (b, y) = other.term();
        let mut factors = Vec::new();
        for e in [x, y] {
            match e {
                Expr::Const(1) => {}
                Expr::Mul(v) => factors.extend(v),
                e => factors.push(e),
            }
        }
        factors.sort();
        let rest = match factors.len() {
            0 => Expr::Const(1),
            1 => factors.remove(0),
            _ => Expr::Mul(factors),
        };
        Expr::scaled(a.saturating_mul(b), rest)
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expr::Const(c) => write!(f, "{c}"),
            Expr::Sym(s) => f.write_str(s.name()),
            Expr::Add(v) => {
                for (i, e) in v.iter().enumerate() {
                    if i > 0 {
                        f.write_str(" + ")?;
                    }
                    write!(f, "{e}")?;
                }
                Ok(())
            }
            Expr::Mul(v) => {
                for (i, e) in v.iter().enumerate() {
                    if i > 0 {
                        f.write_str("*")?;
                    }
                    match e {
                        Expr::Add(_) => write!(f, "({e})")?,
                        e => write!(f, "{e}")?,
                    }
                }
                Ok(())
            }
            Expr::CeilDiv(e, d) => write!(f, "ceil({e}, {d})"),
            Expr::Min(a, b) => write!(f, "min({a}, {b})"),
        }
    }
}

impl From<Expr> for String {
    fn from(e: Expr) -> String {
        e.to_string()
    }
}

impl TryFrom<String> for Expr {
    type Error = String;
    fn try_from(s: String) -> Result<Expr, String> {
        Expr::parse(&s)
    }
}

impl Expr {
    /// Parses the printed form.
    pub fn parse(text: &str) -> Result<Expr, String> {
        let mut p = Parser { s: text.as_bytes(), i: 0, depth: 0 };
        let e = p.sum()?;
        p.space();
        if p.i == p.s.len() { Ok(e) } else { Err(format!("unexpected text at byte {} of size `{text}`", p.i)) }
    }
}

struct Parser<'a> {
    s: &'a [u8],
    i: usize,
    depth: u32,
}

impl Parser<'_> {
    fn space(&mut self) {
        while self.s.get(self.i).is_some_and(|b| b.is_ascii_whitespace()) {
            self.i += 1;
        }
    }

    fn eat(&mut self, c: u8) -> bool {
        self.space();
        let hit = self.s.get(self.i) == Some(&c);
        self.i += usize::from(hit);
        hit
    }

    fn need(&mut self, c: u8) -> Result<(), String> {
        if self.eat(c) { Ok(()) } else { Err(format!("expected `{}` at byte {} of a size", c as char, self.i)) }
    }

    fn sum(&mut self) -> Result<Expr, String> {
        self.depth += 1;
        if self.depth > 64 {
            return Err("a size is nested too deeply".into());
        }
        let mut e = self.product()?;
        while self.eat(b'+') {
            e = e + self.product()?;
        }
        self.depth -= 1;
        Ok(e)
    }

    fn product(&mut self) -> Result<Expr, String> {
        let mut e = self.atom()?;
        while self.eat(b'*') {
            e = e * self.atom()?;
        }
        Ok(e)
    }

    fn atom(&mut self) -> Result<Expr, String> {
        if self.eat(b'(') {
            let e = self.sum()?;
            self.need(b')')?;
            return Ok(e);
        }
        self.space();
        let start = self.i;
        while self.s.get(self.i).is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_') {
            self.i += 1;
        }
        let word = std::str::from_utf8(&self.s[start..self.i]).unwrap_or("");
        if let Ok(c) = word.parse::<u64>() {
            return Ok(Expr::Const(c));
        }
        match word {
            "ceil" | "min" => {
                self.need(b'(')?;
                let a = self.sum()?;
                self.need(b',')?;
                let b = self.sum()?;
                self.need(b')')?;
                match (word, b.as_const()) {
                    ("min", _) => Ok(a.min(b)),
                    (_, Some(d)) if d > 0 => Ok(a.ceil_div(d)),
                    _ => Err("`ceil` divides by a positive constant".into()),
                }
            }
            _ => Sym::parse(word).map(Expr::Sym).ok_or_else(|| format!("`{word}` is no dimension")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folds_and_prints() {
        let t = Expr::tokens();
        let e = (t.clone() * 3.into() + 4.into()) * 2.into() + t.clone();
        assert_eq!(e.to_string(), "7*n_tokens + 8");
        assert_eq!(Expr::parse("7*n_tokens + 8"), Ok(e));
        let c = Expr::Sym(Sym::Context).ceil_div(2).min(512.into()) * t;
        assert_eq!(c.to_string(), "n_tokens*min(512, ceil(n_context, 2))");
        assert_eq!(Expr::parse(&c.to_string()), Ok(c.clone()));
        let env = Env { n_tokens: 3, n_seqs: 1, n_context: 101, n_out_rows: 1, n_tail_rows: 0 };
        assert_eq!(c.eval(&env), 153);
    }

    #[test]
    fn refuses_bad_text() {
        for bad in ["", "3 +", "foo", "ceil(n_tokens, 0)", "ceil(n_tokens, n_seqs)", "(1", "1 2", "min(1)"] {
            assert!(Expr::parse(bad).is_err(), "{bad}");
        }
        assert!(Expr::parse(&"(".repeat(100_000)).is_err());
    }
}
