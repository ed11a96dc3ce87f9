//! The list of passes, and running it.

use crate::fuse::{self, Clusters};
use crate::remark::{Remark, Remarks};
use crate::{Numerics, Probed, extract, merge_linears, place_quantisation};
use dsc_ir::graph::{Graph, TypeError};
use dsc_ir::schedule::{Phase, Schedule};
use dsc_ir::target::Target;

/// Name and summary of every pass, in order.
pub const PASSES: [(&str, &str); 11] = [
    ("place-quantisation", "pack the operands of quantised linears, by `numerics`"),
    ("merge-linears", "one product for all linears over one operand"),
    ("specialise-phase", "in decode, let rings be written before they are read"),
    ("fuse-experts", "join both products of the chosen experts"),
    ("fuse-rows", "join chains of per-row ops across sublayers"),
    ("fuse-attention", "join per-head work with the attention"),
    ("fuse-epilogues", "join work inside a tile with its product"),
    ("fuse-selections", "join selections over the same scores"),
    ("fuse-siblings", "join independent row chains of a layer"),
    ("extract-kernels", "order the kernels and tell equal ones"),
    ("plan-buffers", "let buffers that are never alive together share memory"),
];

/// Which optional passes run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Select {
    /// All.
    #[default]
    All,
    /// No fusion and no merging: one kernel per op.
    NoFusion,
    /// This fusion or merging alone.
    Only(String),
}

impl Select {
    fn runs(&self, name: &str) -> bool {
        match self {
            Select::All => true,
            Select::NoFusion => false,
            Select::Only(only) => only == name,
        }
    }
}

/// What the pipeline works for.
#[derive(Debug, Clone)]
pub struct Config<'a> {
    /// Phase.
    pub phase: Phase,
    /// Target.
    pub target: &'a Target,
    /// Rounding.
    pub numerics: Numerics,
    /// Optional passes.
    pub select: Select,
}

/// A dump after a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dump {
    /// Pass.
    pub pass: &'static str,
    /// Text: the graph, or the groups of nodes.
    pub text: String,
}

/// What the pipeline makes.
#[derive(Debug, Clone, PartialEq)]
pub struct Compiled {
    /// The schedule.
    pub schedule: Schedule,
    /// All decisions.
    pub remarks: Vec<Remark>,
}

/// Runs all passes for one phase and target.
///
/// # Errors
/// An ill-typed graph, which is a defect of an earlier stage.
pub fn run(
    graph: &Graph,
    probes: &[Probed],
    config: &Config<'_>,
    mut dump: Option<&mut dyn FnMut(Dump)>,
) -> Result<Compiled, TypeError> {
    let mut remarks = Remarks::default();
    let mut probes = probes.to_vec();
    check(graph)?;
    let mut graph = place_quantisation::run(graph, &mut probes, &config.numerics, &mut remarks)?;
    check(&graph)?;
    let mut show = |pass, text: &dyn Fn() -> String| {
        if let Some(d) = dump.as_mut() {
            d(Dump { pass, text: text() });
        }
    };
    show("place-quantisation", &|| dsc_ir::text::print(&graph));
    if config.select.runs("merge-linears") {
        graph = merge_linears::run(&graph, &mut probes, &mut remarks)?;
        check(&graph)?;
        show("merge-linears", &|| dsc_ir::text::print(&graph));
    }
    let mut clusters = Clusters::new(&graph, config.phase, config.target);
    show("specialise-phase", &|| groups_text(&clusters));
    for (name, fusion) in fuse::FUSIONS {
        if config.select.runs(name) {
            fusion(&mut clusters, config.target, &mut remarks);
            show(name, &|| groups_text(&clusters));
        }
    }
    if config.select == Select::All {
        fuse::explain_refusals(&clusters, &mut remarks);
    }
    let schedule = extract::schedule(&clusters, config.phase, &config.target.name, &probes);
    schedule.kernels.iter().try_for_each(|k| check(&k.graph))?;
    Ok(Compiled { schedule, remarks: remarks.list })
}

/// The verifier, after every pass.
fn check(graph: &Graph) -> Result<(), TypeError> {
    dsc_ir::verify::verify(graph).map(|_| ()).map_err(|errors| {
        errors.into_iter().next().unwrap_or_else(|| TypeError::new(format!("`{}` is not valid", graph.name)))
    })
}

fn groups_text(c: &Clusters<'_>) -> String {
    let mut text = String::new();
    for g in c.groups() {
        let layer = c.layer(g).map_or(String::from("-"), |l| l.to_string());
        text.push_str(&format!("{layer:>3} {:<16} {}\n", c.anchor(g).name(), c.describe(g)));
    }
    text
}
