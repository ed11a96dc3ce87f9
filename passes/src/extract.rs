//! From groups to a schedule: kernels in order, told apart by content, with buffers planned.

use crate::Probed;
use crate::fuse::{Clusters, Group};
use dsc_ir::expr::Expr;
use dsc_ir::graph::{Def, Graph, NodeId, ValueId};
use dsc_ir::kernel::{Kernel, Param, Role};
use dsc_ir::schedule::{Arg, Buffer, Launch, Phase, Probe, Schedule, StateDecl, WeightDecl};
use indexmap::IndexMap;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Groups in an order that respects their dependencies, otherwise that of the program.
fn order(c: &Clusters<'_>) -> Vec<Group> {
    let groups = c.groups();
    let mut waiting: HashMap<Group, usize> = groups.iter().map(|g| (*g, c.predecessors(*g).len())).collect();
    let key = |g: Group| (c.nodes(g).last().copied(), g);
    let mut ready: BTreeSet<_> = groups.iter().filter(|g| waiting[*g] == 0).map(|g| key(*g)).collect();
    let mut out = Vec::with_capacity(groups.len());
    while let Some(first) = ready.pop_first() {
        let g = first.1;
        out.push(g);
        for s in c.successors(g) {
            if let Some(n) = waiting.get_mut(&s) {
                *n -= 1;
                if *n == 0 {
                    ready.insert(key(s));
                }
            }
        }
    }
    out
}

/// A group as a kernel of its own, and what each parameter is in the model's graph.
fn kernel_of(c: &Clusters<'_>, g: Group, kept: &BTreeSet<ValueId>) -> (Kernel, Vec<ValueId>) {
    let graph = c.graph;
    let nodes = c.nodes(g);
    let inside: BTreeSet<NodeId> = nodes.iter().copied().collect();
    let written: BTreeSet<ValueId> =
        nodes.iter().filter(|n| graph.node(**n).op.writes_state()).map(|n| graph.node(*n).inputs[0]).collect();
    let mut outer: IndexMap<ValueId, Role> = IndexMap::new();
    for v in nodes.iter().flat_map(|n| &graph.node(*n).inputs) {
        match &graph.value(*v).def {
            Def::Node { node, .. } if inside.contains(node) => {}
            Def::Node { .. } | Def::Input => {
                outer.insert(*v, Role::Input);
            }
            Def::Weight(_) => {
                outer.insert(*v, Role::Weight);
            }
            Def::State(_) => {
                outer.insert(*v, if written.contains(v) { Role::StateOut } else { Role::State });
            }
        }
    }
    let rank = |r: &Role| match r {
        Role::Input => 0,
        Role::Weight => 1,
        Role::State => 2,
        Role::StateOut => 3,
        Role::Output => 4,
    };
    outer.sort_by(|_, a, _, b| rank(a).cmp(&rank(b)));

    let mut k = Graph::new("kernel");
    let mut names = BTreeMap::new();
    let mut unique = |name: &str| {
        let n = names.entry(name.to_string()).or_insert(0u32);
        *n += 1;
        if *n > 1 { format!("{name}.{n}") } else { name.to_string() }
    };
    let mut map: HashMap<ValueId, ValueId> = HashMap::new();
    let mut params = Vec::new();
    let mut actual = Vec::new();
    for (v, role) in &outer {
        let value = graph.value(*v);
        let def = match &value.def {
            Def::Node { .. } | Def::Input => Def::Input,
            Def::Weight(w) => Def::Weight(dsc_ir::graph::WeightSource { tensor: value.name.clone(), shard: w.shard }),
            Def::State(s) => Def::State(*s),
        };
        let new = k.add_value(unique(&value.name), None, value.ty.clone(), def);
        map.insert(*v, new);
        params.push(Param { value: new, role: *role });
        actual.push(*v);
    }
    for n in nodes {
        let node = graph.node(*n);
        let id = NodeId(k.nodes.len() as u32);
        let outputs = node
            .outputs
            .iter()
            .enumerate()
            .map(|(i, v)| {
                let value = graph.value(*v);
                let def = Def::Node { node: id, output: i as u32 };
                let new = k.add_value(unique(&value.name), None, value.ty.clone(), def);
                map.insert(*v, new);
                new
            })
            .collect();
        let inputs = node.inputs.iter().filter_map(|v| map.get(v).copied()).collect();
        k.nodes.push(dsc_ir::graph::Node { op: node.op.clone(), inputs, outputs, layer: None });
    }
    for v in nodes.iter().flat_map(|n| &graph.node(*n).outputs) {
        let outside = c.users(*v).iter().any(|u| !inside.contains(u)) || kept.contains(v);
        if outside && let Some(new) = map.get(v) {
            k.results.push(*new);
            params.push(Param { value: *new, role: Role::Output });
            actual.push(*v);
        }
    }
    let rows = rows_of(&k);
    let name = name_of(&k);
    (Kernel { name, anchor: c.anchor(g), rows, graph: k, params }, actual)
}

fn rows_of(k: &Graph) -> Expr {
    let first = k.nodes.first();
    let of = |v: &ValueId| k.ty(*v).shape.first().cloned();
    first
        .and_then(|n| n.outputs.first().and_then(of).or_else(|| n.inputs.get(1).and_then(of)))
        .unwrap_or(Expr::Const(1))
}

/// A name from what the kernel is about: its weights for products, its most telling ops otherwise.
fn name_of(k: &Graph) -> String {
    use dsc_ir::op::Op;
    let has = |f: fn(&Op) -> bool| k.nodes.iter().any(|n| f(&n.op));
    if has(|op| matches!(op, Op::ExpertLinear(_))) {
        return "experts".into();
    }
    let products = k.nodes.iter().filter(|n| matches!(n.op, Op::Linear(_) | Op::GroupLinear(_)));
    let weights: Vec<String> = products
        .flat_map(|n| &n.inputs[1..])
        .map(|v| k.value(*v).name.rsplit('.').next().unwrap_or_default().to_string())
        .collect();
    if !weights.is_empty() {
        return weights.join("_");
    }
    let telling = |op: &Op| match op {
        Op::SparseAttention(_) => 0,
        Op::IndexScores(_) | Op::TopK(_) | Op::CandidateBlocks(_) => 1,
        Op::EngramHash(_) | Op::EngramInject(_) | Op::Embed(_) => 2,
        Op::MhcStats(_) | Op::Pool(_) | Op::HeadCoeffs(_) => 3,
        Op::RouterTopK(_) | Op::RouterHash(_) | Op::Expand(_) => 4,
        Op::Collapse(_) | Op::RmsNorm(_) | Op::RingWrite(_) | Op::PageWrite(_) => 5,
        _ => 6,
    };
    let mut ops: Vec<(i32, usize, &str)> =
        k.nodes.iter().enumerate().map(|(i, n)| (telling(&n.op), i, n.op.name())).collect();
    ops.sort();
    let mut names: Vec<&str> = Vec::new();
    for (_, _, name) in ops {
        if !names.contains(&name) && names.len() < 2 {
            names.push(name);
        }
    }
    names.join("_")
}

/// Builds the schedule.
pub fn schedule(c: &Clusters<'_>, phase: Phase, target: &str, probes: &[Probed]) -> Schedule {
    let graph = c.graph;
    let mut s = Schedule {
        phase,
        target: target.to_string(),
        weights: Vec::new(),
        states: Vec::new(),
        buffers: Vec::new(),
        kernels: Vec::new(),
        launches: Vec::new(),
        probes: Vec::new(),
    };
    let mut args: HashMap<ValueId, Arg> = HashMap::new();
    declare(graph, &mut s, &mut args);
    let mut kept: BTreeSet<ValueId> = graph.results.iter().copied().collect();
    kept.extend(probes.iter().map(|p| p.value));
    let mut known: HashMap<String, u32> = HashMap::new();
    let mut names: BTreeMap<String, u32> = BTreeMap::new();
    for g in order(c) {
        let (mut kernel, actual) = kernel_of(c, g, &kept);
        let content = format!("{:?}{:?}", kernel.graph.anonymous(), kernel.params);
        let launch_args = actual
            .iter()
            .map(|v| {
                let fresh = Arg::Buffer(s.buffers.len() as u32);
                args.entry(*v)
                    .or_insert_with(|| {
                        let value = graph.value(*v);
                        let ty = value.ty.clone();
                        s.buffers.push(Buffer { name: value.name.clone(), layer: value.layer, ty, slot: 0 });
                        fresh
                    })
                    .clone()
            })
            .collect();
        let id = *known.entry(content).or_insert_with(|| {
            let n = names.entry(kernel.name.clone()).or_insert(0);
            *n += 1;
            if *n > 1 {
                kernel.name = format!("{}_{n}", kernel.name);
            }
            s.kernels.push(kernel);
            s.kernels.len() as u32 - 1
        });
        let after = s.launches.len() as u32;
        s.launches.push(Launch { kernel: id, args: launch_args, layer: c.layer(g) });
        for p in probes {
            if graph.def_node(p.value).is_some_and(|n| c.of(n) == g)
                && let Some(Arg::Buffer(buffer)) = args.get(&p.value)
            {
                s.probes.push(Probe { name: p.name.clone(), layer: p.layer, buffer: *buffer, after });
            }
        }
    }
    s.probes.sort_by_key(|p| p.after);
    plan_buffers(&mut s, graph, &args);
    s
}

fn declare(graph: &Graph, s: &mut Schedule, args: &mut HashMap<ValueId, Arg>) {
    for v in graph.value_ids() {
        let value = graph.value(v);
        let (name, layer, ty) = (value.name.clone(), value.layer, value.ty.clone());
        match &value.def {
            Def::Input => {
                args.insert(v, Arg::Input(name));
            }
            Def::Weight(source) => {
                args.insert(v, Arg::Weight(s.weights.len() as u32));
                s.weights.push(WeightDecl { name, layer, source: source.clone(), ty });
            }
            Def::State(kind) => {
                args.insert(v, Arg::State(s.states.len() as u32));
                s.states.push(StateDecl { name, layer, kind: *kind, ty });
            }
            Def::Node { .. } => {}
        }
    }
}

/// `plan-buffers`: buffers that are never alive together share memory. Sizes are symbolic, so a slot serves buffers
/// of one size; results of the model keep theirs to the end.
fn plan_buffers(s: &mut Schedule, graph: &Graph, args: &HashMap<ValueId, Arg>) {
    let mut last_use = vec![0usize; s.buffers.len()];
    let mut first_use = vec![usize::MAX; s.buffers.len()];
    for (i, launch) in s.launches.iter().enumerate() {
        for a in &launch.args {
            if let Arg::Buffer(b) = a {
                last_use[*b as usize] = i;
                first_use[*b as usize] = first_use[*b as usize].min(i);
            }
        }
    }
    for v in &graph.results {
        if let Some(Arg::Buffer(b)) = args.get(v) {
            last_use[*b as usize] = usize::MAX;
        }
    }
    let mut born: Vec<Vec<usize>> = vec![Vec::new(); s.launches.len()];
    let mut dies: Vec<Vec<usize>> = vec![Vec::new(); s.launches.len()];
    for b in 0..s.buffers.len() {
        if let Some(list) = born.get_mut(first_use[b]) {
            list.push(b);
        }
        if let Some(list) = dies.get_mut(last_use[b]) {
            list.push(b);
        }
    }
    let mut free: BTreeMap<Expr, Vec<u32>> = BTreeMap::new();
    let mut slots = 0u32;
    for (born, dies) in born.iter().zip(&dies) {
        for b in born {
            let size = s.buffers[*b].ty.bytes();
            s.buffers[*b].slot = match free.get_mut(&size).and_then(Vec::pop) {
                Some(slot) => slot,
                None => {
                    slots += 1;
                    slots - 1
                }
            };
        }
        for b in dies {
            free.entry(s.buffers[*b].ty.bytes()).or_default().push(s.buffers[*b].slot);
        }
    }
}
