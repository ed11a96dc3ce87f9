//! Parsing of graphs. Types are written out and checked against the ops' shape rules.

use crate::dtype::DType;
use crate::expr::Expr;
use crate::graph::{Def, Graph, Node, NodeId, Shard, StateKind, TensorType, TypeError, Value, ValueId, WeightSource};
use crate::op::{Attr, Op};
use crate::verify;
use pest::Parser;
use pest::iterators::{Pair, Pairs};
use std::collections::HashMap;

mod grammar {
    #![allow(missing_docs)] // generated
    #[derive(pest_derive::Parser)]
    #[grammar = "text.pest"]
    pub struct Grammar;
}
use grammar::{Grammar, Rule};

/// Longest text of a shape. Longer ones are no sizes of a model, and building them takes quadratic time.
const MAX_SHAPE: usize = 1024;

/// What is wrong in a text, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {message}")]
pub struct ParseError {
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// The finding.
    pub message: String,
}

fn error(at: &Pair<'_, Rule>, message: impl Into<String>) -> ParseError {
    let (line, column) = at.line_col();
    ParseError { line, column, message: message.into() }
}

fn syntax(e: pest::error::Error<Rule>) -> ParseError {
    let (line, column) = match e.line_col {
        pest::error::LineColLocation::Pos(at) | pest::error::LineColLocation::Span(at, _) => at,
    };
    let renamed = e.renamed_rules(|rule| match rule {
        Rule::open => "`(`".into(),
        Rule::close => "`)`".into(),
        Rule::bracket => "`]`".into(),
        Rule::end => "`}`".into(),
        Rule::word => "a name".into(),
        Rule::value => "a `%` value".into(),
        Rule::int => "an integer".into(),
        Rule::EOI => "the end".into(),
        rule => format!("{rule:?}"),
    });
    ParseError { line, column, message: renamed.variant.message().into_owned() }
}

/// Parses a text of one graph.
///
/// # Errors
/// The first finding.
pub fn parse(text: &str) -> Result<Graph, ParseError> {
    let mut graphs = parse_all(text)?;
    match (graphs.pop(), graphs.len()) {
        (Some(graph), 0) => Ok(graph),
        (_, n) => Err(ParseError { line: 1, column: 1, message: format!("expected one graph, found {}", n + 1) }),
    }
}

/// Parses a text of any number of graphs.
///
/// # Errors
/// The first finding.
pub fn parse_all(text: &str) -> Result<Vec<Graph>, ParseError> {
    let mut pairs = Grammar::parse(Rule::file, text).map_err(syntax)?;
    let file = pairs.next().map(Pair::into_inner);
    file.into_iter().flatten().filter(|p| p.as_rule() == Rule::graph).map(graph).collect()
}

fn graph(pair: Pair<'_, Rule>) -> Result<Graph, ParseError> {
    let mut inner = pair.clone().into_inner();
    let name = inner.next().map(|p| if p.as_rule() == Rule::string { unquoted(p) } else { Ok(p.as_str().into()) });
    let mut builder = Builder { graph: Graph::new(name.transpose()?.unwrap_or_default()), ..Builder::default() };
    builder.number(inner.clone())?;
    for statement in inner {
        match statement.as_rule() {
            Rule::leaf => builder.leaf(statement)?,
            Rule::node => builder.node(statement)?,
            Rule::end => {}
            _ => builder.graph.results = builder.operands(statement)?,
        }
    }
    if let Err(errors) = verify::verify(&builder.graph) {
        let message = errors.into_iter().map(|e| e.message).collect::<Vec<_>>().join("; ");
        return Err(error(&pair, message));
    }
    Ok(builder.graph)
}

#[derive(Default)]
struct Builder<'i> {
    graph: Graph,
    /// Number and place of each `%` word's definition.
    ids: HashMap<&'i str, ValueId>,
    defined: Vec<bool>,
}

impl<'i> Builder<'i> {
    /// Numbers all definitions: as written where the numbers are 0, 1, .. in some order, else as they come.
    fn number(&mut self, statements: Pairs<'i, Rule>) -> Result<(), ParseError> {
        let mut words = Vec::new();
        for typed in statements.flatten().filter(|p| p.as_rule() == Rule::typed) {
            let word = typed.as_str().split(':').next().unwrap_or("").trim();
            if self.ids.insert(word, ValueId(words.len() as u32)).is_some() {
                return Err(error(&typed, format!("{word} is defined twice")));
            }
            words.push(word);
        }
        let number = |w: &&str| w[1..].parse::<u32>().ok().filter(|n| w[1..] == n.to_string());
        let numbers: Option<Vec<u32>> = words.iter().map(number).collect();
        if let Some(numbers) = numbers.filter(|v| v.iter().all(|n| (*n as usize) < v.len())) {
            self.ids = words.iter().copied().zip(numbers.into_iter().map(ValueId)).collect();
        }
        self.defined = vec![false; words.len()];
        let ty = TensorType { dtype: DType::F32, shape: Vec::new() };
        let unset = Value { name: String::new(), layer: None, ty, def: Def::Input };
        self.graph.values = vec![unset; words.len()];
        Ok(())
    }

    fn define(&mut self, id: ValueId, value: Value) {
        self.graph.values[id.idx()] = value;
        self.defined[id.idx()] = true;
    }

    /// Id and type of a `typed`.
    fn typed(&self, pair: Pair<'i, Rule>) -> Result<(ValueId, TensorType), ParseError> {
        let mut inner = pair.clone().into_inner();
        let (Some(word), Some(dtype), Some(shape)) = (inner.next(), inner.next(), inner.next()) else {
            return Err(error(&pair, "expected a typed value"));
        };
        let id = self.ids.get(word.as_str()).copied().ok_or_else(|| error(&word, "is not defined"))?;
        let element = DType::parse(dtype.as_str());
        let element = element.ok_or_else(|| error(&dtype, format!("`{}` is no dtype", dtype.as_str())))?;
        Ok((id, TensorType { dtype: element, shape: sizes(&shape)? }))
    }

    fn operands(&self, pair: Pair<'i, Rule>) -> Result<Vec<ValueId>, ParseError> {
        let id = |p: Pair<'i, Rule>| match self.ids.get(p.as_str()) {
            Some(id) if self.defined[id.idx()] => Ok(*id),
            Some(_) => Err(error(&p, format!("{} is used before its definition", p.as_str()))),
            None => Err(error(&p, format!("{} is not defined", p.as_str()))),
        };
        pair.into_inner().map(id).collect()
    }

    fn leaf(&mut self, pair: Pair<'i, Rule>) -> Result<(), ParseError> {
        let mut inner = pair.clone().into_inner();
        let (Some(typed), Some(leaf)) = (inner.next(), inner.next()) else {
            return Err(error(&pair, "expected a definition"));
        };
        let (id, ty) = self.typed(typed)?;
        let rule = leaf.as_rule();
        let (mut strings, mut layer, mut shard, mut kind) = (Vec::new(), None, Shard::None, None);
        for part in leaf.into_inner() {
            match part.as_rule() {
                Rule::string => strings.push(unquoted(part)?),
                Rule::layer => layer = Some(int(part)?),
                Rule::shard => shard = shard_of(part)?,
                Rule::ring => kind = Some(StateKind::Ring { keep: int(part)? }),
                _ => kind = Some(StateKind::Pages { ratio: int(part)? }),
            }
        }
        let mut strings = strings.into_iter();
        let name = strings.next().unwrap_or_default();
        let def = match (rule, kind) {
            (Rule::weight, _) => Def::Weight(WeightSource { tensor: strings.next().unwrap_or_default(), shard }),
            (_, Some(kind)) => Def::State(kind),
            _ => Def::Input,
        };
        self.define(id, Value { name, layer, ty, def });
        Ok(())
    }

    fn node(&mut self, pair: Pair<'i, Rule>) -> Result<(), ParseError> {
        let (mut results, mut names, mut attributes) = (Vec::new(), Vec::new(), Vec::new());
        let (mut layer, mut inputs, mut word) = (None, Vec::new(), None);
        for part in pair.clone().into_inner() {
            match part.as_rule() {
                Rule::results => results = part.into_inner().collect(),
                Rule::word => word = Some(part),
                Rule::operands => inputs = self.operands(part)?,
                Rule::attrs => {
                    attributes =
                        part.into_inner().filter(|p| p.as_rule() == Rule::attr).map(attr).collect::<Result<_, _>>()?
                }
                Rule::layer => layer = Some(int(part)?),
                Rule::open | Rule::close => {}
                _ => names = part.into_inner().map(unquoted).collect::<Result<_, _>>()?,
            }
        }
        let word = word.ok_or_else(|| error(&pair, "expected an op"))?;
        let op = Op::from_attrs(word.as_str(), &attributes).map_err(|e: TypeError| error(&word, e.message))?;
        if !names.is_empty() && names.len() != results.len() {
            return Err(error(&pair, format!("{} names for {} results", names.len(), results.len())));
        }
        let node = NodeId(self.graph.nodes.len() as u32);
        let mut names = names.into_iter();
        let mut outputs = Vec::new();
        for (i, result) in results.into_iter().enumerate() {
            let own = result.as_str().split(':').next().unwrap_or("").trim().trim_start_matches('%').to_owned();
            let (id, ty) = self.typed(result)?;
            let def = Def::Node { node, output: i as u32 };
            self.define(id, Value { name: names.next().unwrap_or(own), layer, ty, def });
            outputs.push(id);
        }
        self.graph.nodes.push(Node { op, inputs, outputs, layer });
        verify::node(&self.graph, node).map_err(|e| error(&pair, e.message))
    }
}

/// The sizes of a shape, separated by commas outside of parentheses.
fn sizes(shape: &Pair<'_, Rule>) -> Result<Vec<Expr>, ParseError> {
    let text = shape.clone().into_inner().next().map_or("", |sizes| sizes.as_str());
    if text.len() > MAX_SHAPE {
        return Err(error(shape, format!("a shape has more than {MAX_SHAPE} characters")));
    }
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let mut depth = 0usize;
    let separates = |c: char| {
        depth = match c {
            '(' => depth + 1,
            ')' => depth.saturating_sub(1),
            _ => depth,
        };
        c == ',' && depth == 0
    };
    text.split(separates).map(|t| Expr::parse(t.trim()).map_err(|m| error(shape, m))).collect()
}

fn shard_of(pair: Pair<'_, Rule>) -> Result<Shard, ParseError> {
    let outer = pair.clone().into_inner().any(|p| p.as_rule() == Rule::outer);
    Ok(if outer { Shard::Outer(int(pair)?) } else { Shard::Inner(int(pair)?) })
}

/// The integer in a rule.
fn int<T: std::str::FromStr>(pair: Pair<'_, Rule>) -> Result<T, ParseError> {
    let digits = pair.clone().into_inner().find(|p| p.as_rule() == Rule::int).unwrap_or(pair);
    digits.as_str().parse().map_err(|_| error(&digits, format!("{} is too large", digits.as_str())))
}

fn attr(pair: Pair<'_, Rule>) -> Result<(String, Attr), ParseError> {
    let mut inner = pair.clone().into_inner();
    let (Some(name), Some(value)) = (inner.next(), inner.next()) else {
        return Err(error(&pair, "expected an attribute"));
    };
    let text = value.as_str();
    let attr = match value.as_rule() {
        Rule::list => Attr::List(value.into_inner().map(int).collect::<Result<_, _>>()?),
        Rule::float => Attr::Float(text.parse().map_err(|_| error(&value, format!("{text} is no number")))?),
        Rule::int => Attr::Int(int(value)?),
        _ => match text {
            "true" => Attr::Bool(true),
            "false" => Attr::Bool(false),
            _ => Attr::Word(text.to_owned()),
        },
    };
    Ok((name.as_str().to_owned(), attr))
}

/// The text of a string in quotes.
fn unquoted(pair: Pair<'_, Rule>) -> Result<String, ParseError> {
    let inner = pair.as_str().get(1..pair.as_str().len().saturating_sub(1)).unwrap_or("");
    let mut out = String::with_capacity(inner.len());
    let mut rest = inner.chars();
    while let Some(c) = rest.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match rest.next() {
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('t') => out.push('\t'),
            Some('u') => {
                let digits: String = rest.by_ref().skip(1).take_while(|c| *c != '}').collect();
                let code = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
                out.push(code.ok_or_else(|| error(&pair, format!("`{digits}` is no character")))?);
            }
            Some(c) => out.push(c),
            None => {}
        }
    }
    Ok(out)
}
