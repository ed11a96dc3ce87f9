//! Printing of graphs: inputs, weights and states by number, then nodes in program order.

use crate::graph::{Def, Graph, Node, Shard, StateKind, Value, ValueId};
use std::fmt::{self, Write};

/// The text of a graph.
pub fn print(graph: &Graph) -> String {
    graph.to_string()
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "graph {} {{", quoted(&self.name))?;
        for (i, value) in self.values.iter().enumerate() {
            leaf(f, i, value)?;
        }
        for node in &self.nodes {
            line(f, self, node)?;
        }
        write!(f, "  return")?;
        list(f, &self.results, " ")?;
        f.write_str("\n}\n")
    }
}

/// A string in quotes.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{{{:x}}}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn layer(f: &mut fmt::Formatter<'_>, layer: Option<u32>) -> fmt::Result {
    layer.map_or(Ok(()), |l| write!(f, " layer {l}"))
}

fn list(f: &mut fmt::Formatter<'_>, values: &[ValueId], before: &str) -> fmt::Result {
    for (i, v) in values.iter().enumerate() {
        write!(f, "{}%{}", if i == 0 { before } else { ", " }, v.0)?;
    }
    Ok(())
}

fn leaf(f: &mut fmt::Formatter<'_>, i: usize, value: &Value) -> fmt::Result {
    let word = match &value.def {
        Def::Input => "input",
        Def::Weight(_) => "weight",
        Def::State(_) => "state",
        Def::Node { .. } => return Ok(()),
    };
    write!(f, "  %{i}: {} = {word} {}", value.ty, quoted(&value.name))?;
    layer(f, value.layer)?;
    match &value.def {
        Def::Weight(source) => {
            write!(f, " from {}", quoted(&source.tensor))?;
            match source.shard {
                Shard::None => {}
                Shard::Outer(n) => write!(f, " outer {n}")?,
                Shard::Inner(n) => write!(f, " inner {n}")?,
            }
        }
        Def::State(StateKind::Ring { keep }) => write!(f, " ring keep {keep}")?,
        Def::State(StateKind::Pages { ratio }) => write!(f, " pages ratio {ratio}")?,
        Def::Input | Def::Node { .. } => {}
    }
    f.write_str("\n")
}

fn line(f: &mut fmt::Formatter<'_>, graph: &Graph, node: &Node) -> fmt::Result {
    let value = |v: &ValueId| graph.values.get(v.idx());
    f.write_str("  ")?;
    for (i, v) in node.outputs.iter().enumerate() {
        write!(f, "{}%{}", if i == 0 { "" } else { ", " }, v.0)?;
        value(v).map_or(Ok(()), |value| write!(f, ": {}", value.ty))?;
    }
    write!(f, "{}{}(", if node.outputs.is_empty() { "" } else { " = " }, node.op.name())?;
    list(f, &node.inputs, "")?;
    f.write_str(")")?;
    let attrs = node.op.attrs();
    for (i, (name, attr)) in attrs.iter().enumerate() {
        write!(f, "{}{name} = {attr}", if i == 0 { " {" } else { ", " })?;
    }
    f.write_str(if attrs.is_empty() { "" } else { "}" })?;
    layer(f, node.layer)?;
    for (i, v) in node.outputs.iter().enumerate() {
        let name = quoted(value(v).map_or("", |value| &value.name));
        write!(f, "{}{name}", if i == 0 { " name " } else { ", " })?;
    }
    f.write_str("\n")
}
