//! Fusion: from one group per op to one group per kernel.
//!
//! Every rule below looks at accesses, shapes and the target; none knows a model or expects a count. In order:
//!
//! 1. `fuse-experts`: both products of the chosen experts and the shared expert, up to their sum.
//! 2. `fuse-rows`: chains of per-row ops, across sublayers and layers.
//! 3. `fuse-attention`: per-head work on queries before the attention, and on its result.
//! 4. `fuse-epilogues`: work inside a tile of columns after a product; a small finish.
//! 5. `fuse-selections`: selections over the same scores.
//! 6. `fuse-siblings`: independent row chains of a layer, state writes among them.
//!
//! Legality and costs are those of tiled plans, in which blocks meet through counters and a last block finishes. The
//! GPU plans of today do not: a kernel that is more than linears runs one block a row, which is right for every fusion
//! here.

mod clusters;

pub use clusters::{Clusters, Group};

use crate::remark::Remarks;
use dsc_ir::expr::Expr;
use dsc_ir::graph::NodeId;
use dsc_ir::kernel::Anchor;
use dsc_ir::op::Op;
use dsc_ir::target::Target;
use std::collections::BTreeMap;

/// Why both products of an expert may share a kernel.
const EXPERT_PRODUCTS: &str = "both products of an expert: the code of today has whole rows in a block; \
                               a tiled plan would count the tiles of the first product";

/// Widest tile of columns a product's epilogue can count on, on every target.
const TILE_COLUMNS: u64 = 256;

/// Names of the fusions, in order.
pub const FUSIONS: [(&str, Fusion); 6] = [
    ("fuse-experts", fuse_experts),
    ("fuse-rows", fuse_rows),
    ("fuse-attention", fuse_attention),
    ("fuse-epilogues", fuse_epilogues),
    ("fuse-selections", fuse_selections),
    ("fuse-siblings", fuse_siblings),
];

/// A fusion over the groups.
pub type Fusion = fn(&mut Clusters<'_>, &Target, &mut Remarks);

/// Merges if legal, with a remark.
fn try_merge(c: &mut Clusters<'_>, r: &mut Remarks, pass: &'static str, a: Group, b: Group, why: &str) -> bool {
    if c.mergeable(a, b).is_err() {
        return false;
    }
    let what = format!("[{}] with [{}]", c.describe(a), c.describe(b));
    let layer = c.layer(a).max(c.layer(b));
    let saved = c.saved(a, b);
    let saved = if saved == Expr::Const(0) { String::new() } else { saved.to_string() };
    r.taken(pass, layer, what, why.to_string(), saved);
    c.merge(a, b);
    true
}

fn is_product(op: &Op) -> bool {
    matches!(Anchor::of(op), Anchor::Gemm | Anchor::GroupedGemm)
}

fn fuse_experts(c: &mut Clusters<'_>, _: &Target, r: &mut Remarks) {
    let sums: Vec<NodeId> = c.graph.node_ids().filter(|n| matches!(c.graph.node(*n).op, Op::ExpertSum(_))).collect();
    for sum in sums {
        let chain = expert_chain(c, sum);
        for n in chain {
            let (a, b) = (c.of(sum), c.of(n));
            if a == b {
                continue;
            }
            // Taken from the sum backwards, so that each step joins neighbours.
            if let Err(reason) = c.mergeable(a, b) {
                let what = format!("[{}] with [{}]", c.describe(b), c.describe(a));
                r.refused("fuse-experts", c.layer(a), what, reason);
            } else {
                try_merge(c, r, "fuse-experts", a, b, EXPERT_PRODUCTS);
            }
        }
    }
}

/// The nodes between an expert sum and the first products of its experts, nearest first.
fn expert_chain(c: &Clusters<'_>, sum: NodeId) -> Vec<NodeId> {
    let mut chain: Vec<NodeId> = Vec::new();
    let mut first_products: Vec<NodeId> = Vec::new();
    let mut stack: Vec<(NodeId, u32)> = vec![(sum, 0)];
    while let Some((n, products)) = stack.pop() {
        for p in c.node_predecessors(n) {
            let passed = products + u32::from(is_product(&c.graph.node(*p).op));
            if chain.contains(p) {
                continue;
            }
            chain.push(*p);
            if passed < 2 {
                stack.push((*p, passed));
            } else {
                first_products.push(*p);
            }
        }
    }
    // What a first product needs itself (routing, its packed operand) stays outside.
    let needed = |n: &NodeId| first_products.iter().any(|f| c.node_predecessors(*f).contains(n));
    let mut outside: Vec<NodeId> = chain.iter().copied().filter(needed).collect();
    let mut i = 0;
    while i < outside.len() {
        for p in c.node_predecessors(outside[i]) {
            if chain.contains(p) && !outside.contains(p) {
                outside.push(*p);
            }
        }
        i += 1;
    }
    chain.retain(|n| !outside.contains(n));
    chain.sort_by(|a, b| b.cmp(a));
    chain
}

fn fuse_rows(c: &mut Clusters<'_>, _: &Target, r: &mut Remarks) {
    for n in c.graph.node_ids() {
        if !c.is_row(c.of(n)) {
            continue;
        }
        let preds: Vec<NodeId> = c.node_predecessors(n).to_vec();
        for p in preds.into_iter().rev() {
            let (a, b) = (c.of(p), c.of(n));
            if a != b && c.is_row(a) && c.is_row(b) {
                try_merge(c, r, "fuse-rows", a, b, "row t of one needs row t of the other alone");
            }
        }
    }
}

fn fuse_attention(c: &mut Clusters<'_>, _: &Target, r: &mut Remarks) {
    let cores: Vec<NodeId> =
        c.graph.node_ids().filter(|n| matches!(c.graph.node(*n).op, Op::SparseAttention(_))).collect();
    for n in cores {
        let q = c.graph.node(n).inputs[0];
        if let Some(def) = c.graph.def_node(q) {
            let before = c.of(def);
            if c.is_row(before) && c.successors(before) == vec![c.of(n)] && per_head(c, before) {
                try_merge(c, r, "fuse-attention", c.of(n), before, "each query is read once");
            }
        }
        let after: Vec<Group> = c.graph.node(n).outputs.iter().flat_map(|v| c.users(*v)).map(|u| c.of(*u)).collect();
        for g in after {
            if g != c.of(n) && c.is_row(g) && per_head(c, g) && c.predecessors(g) == vec![c.of(n)] {
                try_merge(c, r, "fuse-attention", c.of(n), g, "works inside one head of the result");
            }
        }
    }
}

/// Whether every op of a group works inside one head.
fn per_head(c: &Clusters<'_>, g: Group) -> bool {
    c.nodes(g).iter().all(|n| {
        let node = c.graph.node(*n);
        matches!(node.op, Op::Rope(_) | Op::Quantize(_) | Op::RmsNorm(_) | Op::Hadamard(_))
            && node.outputs.iter().all(|v| c.graph.ty(*v).shape.len() == 3)
    })
}

fn fuse_epilogues(c: &mut Clusters<'_>, target: &Target, r: &mut Remarks) {
    for product in c.groups() {
        if !matches!(c.anchor(product), Anchor::Gemm) || c.nodes(product).is_empty() {
            continue;
        }
        for after in c.successors(product) {
            if !c.is_row(after) || c.predecessors(after) != vec![product] {
                continue;
            }
            if c.nodes(after).iter().all(|n| c.is_tile_local(*n, TILE_COLUMNS)) {
                try_merge(c, r, "fuse-epilogues", product, after, "works inside a tile of columns");
            } else if let Some(reason) = small_finish(c, after, target) {
                try_merge(c, r, "fuse-epilogues", product, after, &reason);
            }
        }
    }
}

/// Whether a routing is cheaper as a finish than as a launch of its own. The cost is that of a tiled product whose
/// last block to arrive does it; one block a row, which is what is emitted today, has the row at hand anyway.
fn small_finish(c: &Clusters<'_>, g: Group, target: &Target) -> Option<String> {
    let nodes = c.nodes(g);
    if !nodes.iter().all(|n| matches!(c.graph.node(*n).op, Op::RouterTopK(_) | Op::RouterHash(_) | Op::LocalExperts(_)))
    {
        return None;
    }
    let machine = &target.machine;
    let row: u64 = nodes.iter().map(|n| c.graph.ty(c.graph.node(*n).inputs[0]).row_elements() * 4).sum();
    let per_block = machine.bandwidth_bytes_per_s / f64::from(machine.n_sms.max(1));
    let finish_us = row as f64 / per_block * 1e6;
    (finish_us < machine.launch_us).then(|| {
        format!(
            "a finish of {row} B a row costs less than a launch: the code of today has whole rows in a block; \
             a tiled plan would leave it to the last block"
        )
    })
}

fn fuse_selections(c: &mut Clusters<'_>, _: &Target, r: &mut Remarks) {
    for scores in c.groups() {
        if c.nodes(scores).is_empty() || c.anchor(scores) != Anchor::IndexLogits {
            continue;
        }
        let selections: Vec<Group> =
            c.successors(scores).into_iter().filter(|g| c.anchor(*g) == Anchor::TopK).collect();
        for pair in selections.windows(2) {
            try_merge(c, r, "fuse-selections", pair[0], pair[1], "one pass over the scores");
        }
    }
}

fn fuse_siblings(c: &mut Clusters<'_>, _: &Target, r: &mut Remarks) {
    let mut by_layer: BTreeMap<Option<u32>, Vec<Group>> = BTreeMap::new();
    for g in c.groups().into_iter().filter(|g| c.is_row(*g)) {
        by_layer.entry(c.layer(g)).or_default().push(g);
    }
    for rows in by_layer.values() {
        for (i, b) in rows.iter().enumerate() {
            // The first earlier chain that takes it; chains merged into others are empty.
            let why = "independent row chains of one layer: one launch less";
            let _ = rows[..i]
                .iter()
                .filter(|a| !c.nodes(**a).is_empty())
                .copied()
                .collect::<Vec<_>>()
                .into_iter()
                .find(|a| try_merge(c, r, "fuse-siblings", *a, *b, why));
        }
    }
}

/// Remarks for neighbours that stayed apart though both are fusable in principle.
pub fn explain_refusals(c: &Clusters<'_>, r: &mut Remarks) {
    for b in c.groups() {
        for a in c.predecessors(b) {
            let candidates = c.is_row(a) || c.is_row(b);
            if candidates && let Err(reason) = c.mergeable(a, b) {
                let what = format!("[{}] with [{}]", c.describe(a), c.describe(b));
                r.refused("fuse-rows", c.layer(b), what, reason);
            } else if candidates {
                let what = format!("[{}] with [{}]", c.describe(a), c.describe(b));
                let reason = "it needs whole rows that no tile of the product has".to_string();
                r.refused("fuse-epilogues", c.layer(b), what, reason);
            }
        }
    }
}
