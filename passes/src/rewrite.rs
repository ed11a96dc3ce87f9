//! Rebuilding a graph with some nodes replaced, in program order.

use dsc_ir::graph::{Def, Graph, Node, NodeId, TypeError, ValueId};

/// A graph under reconstruction: values keep their meaning under new ids.
pub struct Rewriter<'a> {
    old: &'a Graph,
    /// The new graph.
    pub new: Graph,
    map: Vec<Option<ValueId>>,
}

impl<'a> Rewriter<'a> {
    /// Starts with all values that no node defines.
    pub fn new(old: &'a Graph) -> Rewriter<'a> {
        let mut r = Rewriter { old, new: Graph::new(&old.name), map: vec![None; old.values.len()] };
        for v in old.value_ids() {
            let value = old.value(v);
            if !matches!(value.def, Def::Node { .. }) {
                r.map[v.idx()] = Some(r.new.add_value(&value.name, value.layer, value.ty.clone(), value.def.clone()));
            }
        }
        r
    }

    /// The new id of an old value.
    ///
    /// # Errors
    /// The value is not defined yet: the old graph is out of order.
    pub fn get(&self, v: ValueId) -> Result<ValueId, TypeError> {
        self.map[v.idx()].ok_or_else(|| TypeError::new(format!("value %{} is used before its node", v.0)))
    }

    /// Declares that `new` takes the place of an old value.
    pub fn set(&mut self, old: ValueId, new: ValueId) {
        self.map[old.idx()] = Some(new);
    }

    /// Copies a node with other operands (already new ids).
    ///
    /// # Errors
    /// The op's shape rule.
    pub fn copy_with(&mut self, n: NodeId, inputs: &[ValueId]) -> Result<(), TypeError> {
        let node: &Node = self.old.node(n);
        let names: Vec<(String, _)> =
            node.outputs.iter().map(|v| (self.old.value(*v).name.clone(), self.old.ty(*v).dtype)).collect();
        let outputs: Vec<(&str, _)> = names.iter().map(|(n, d)| (n.as_str(), *d)).collect();
        let made = self.new.add(node.op.clone(), node.layer, inputs, &outputs)?;
        for (old, new) in node.outputs.iter().zip(made) {
            self.set(*old, new);
        }
        Ok(())
    }

    /// Copies a node as it is.
    ///
    /// # Errors
    /// The op's shape rule.
    pub fn copy(&mut self, n: NodeId) -> Result<(), TypeError> {
        let inputs = self.old.node(n).inputs.iter().map(|v| self.get(*v)).collect::<Result<Vec<_>, _>>()?;
        self.copy_with(n, &inputs)
    }

    /// The finished graph, with results and probes under their new ids.
    ///
    /// # Errors
    /// A result is not defined.
    pub fn finish(mut self, probes: &mut [crate::Probed]) -> Result<Graph, TypeError> {
        self.new.results = self.old.results.iter().map(|v| self.get(*v)).collect::<Result<_, _>>()?;
        for p in probes {
            p.value = self.get(p.value)?;
        }
        Ok(self.new)
    }
}
