//! Random inputs that a kernel accepts: step tables of running sequences, indices in range, sane floats.

use super::recipe::Recipe;
use crate::weights::random::Rng;
use dsc_ir::dtype::DType;
use dsc_ir::expr::Env;
use dsc_ir::graph::{Def, Graph, TensorType, ValueId};
use dsc_ir::interp::{Array, Data, Values};
use dsc_ir::manifest::Weight;
use dsc_ir::op::{Op, step};

/// Sequences with state; not all of them are in a step.
const N_SEQS: u64 = 3;
/// Smallest context, a multiple of every compression ratio in use so that its last row completes an entry.
const CONTEXT: u64 = 256;
/// Largest context.
const MAX_CONTEXT: u64 = 4096;
/// Integers without a closer meaning are below this.
const SMALL: u64 = 64;

/// A step to try.
pub(crate) struct Step {
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))] // only GPU cases are named after it
    pub name: &'static str,
    pub env: Env,
    runs: Vec<Run>,
}

struct Run {
    seq: u64,
    start: u64,
    rows: u64,
}

/// The steps to try on a kernel.
pub(crate) fn steps(graph: &Graph) -> Vec<Step> {
    let wanted = graph.nodes.iter().map(|n| wanted_context(&n.op)).max().unwrap_or(0);
    let context = wanted.next_multiple_of(CONTEXT).clamp(CONTEXT, MAX_CONTEXT);
    let middle = vec![Run { seq: 2, start: context - 3, rows: 3 }, Run { seq: 0, start: context / 3, rows: 2 }];
    let beginning = vec![Run { seq: 1, start: 0, rows: 12 }, Run { seq: 0, start: 0, rows: 1 }];
    let step = |name, runs: Vec<Run>, n_context, n_out_rows| Step {
        name,
        env: env(runs.iter().map(|r| r.rows).sum(), n_context, n_out_rows),
        runs,
    };
    vec![step("middle", middle, context, 2), step("beginning", beginning, CONTEXT, 3)]
}

/// A kernel has rows of the step or of its tail: as many of either.
fn env(n_rows: u64, n_context: u64, n_out_rows: u64) -> Env {
    Env { n_tokens: n_rows, n_seqs: N_SEQS, n_context, n_out_rows, n_tail_rows: n_rows }
}

/// Positions after which an op has more to choose from than it takes.
fn wanted_context(op: &Op) -> u64 {
    match op {
        Op::TopK(o) => o.k.saturating_mul(o.ratio.into()).saturating_mul(3) / 2,
        Op::CandidateBlocks(o) => o.keep.saturating_mul(o.block).saturating_mul(o.ratio.into()).saturating_mul(3) / 2,
        Op::SparseAttention(o) => o.window.saturating_mul(2),
        Op::Pool(o) => u64::from(o.ratio) * 4,
        _ => 0,
    }
}

/// Rows of the step table, as kernels and indices need them.
struct Rows(Vec<[i32; step::COLUMNS as usize]>);

impl Rows {
    fn new(runs: &[Run], vocab: u64, rng: &mut Rng) -> Rows {
        let mut rows = Vec::new();
        for run in runs {
            let row0 = rows.len() as i32;
            for i in 0..run.rows {
                let mut row = [0i32; step::COLUMNS as usize];
                row[step::ID as usize] = rng.below(vocab) as i32;
                row[step::POS as usize] = (run.start + i) as i32;
                row[step::SEQ as usize] = run.seq as i32;
                row[step::START as usize] = run.start as i32;
                row[step::ROW0 as usize] = row0;
                row[step::END as usize] = (run.start + run.rows) as i32;
                row[step::IMAGE as usize] = i32::from(rng.below(5) == 0);
                // The windows of one sequence start with the step, as those of replayed rows do.
                row[step::FLOOR as usize] = if run.seq == 2 { run.start as i32 } else { 0 };
                rows.push(row);
            }
        }
        Rows(rows)
    }

    /// Entries that a row sees.
    fn visible(&self, row: usize, ratio: u32) -> u64 {
        let pos = self.0.get(row).map_or(0, |r| r[step::POS as usize]);
        (pos as u64 + 1) / u64::from(ratio.max(1))
    }
}

/// Arrays of all inputs, weights and states.
pub(crate) fn values(graph: &Graph, s: &Step, vocab: u64, seed: u64) -> Result<Values, String> {
    let mut rng = Rng::new(seed, "step");
    let rows = Rows::new(&s.runs, vocab, &mut rng);
    let mut values = Values::new();
    for v in graph.value_ids() {
        let value = graph.value(v);
        let mut rng = Rng::new(seed, &stream(graph, v));
        let shape = shape(&value.ty, &s.env);
        let array = match (&value.def, recipe(graph, v, seed)) {
            (Def::Node { .. }, _) => continue,
            (_, Some(recipe)) => {
                let bytes = recipe.make(value.ty.bytes().eval(&s.env))?;
                Array::from_storage(value.ty.dtype, &shape, bytes.as_ref()).map_err(|e| e.to_string())?
            }
            (Def::Weight(_), None) => Array::i32(&shape, weight_integers(graph, v, seed)),
            (_, None) => Array::i32(&shape, integers(graph, v, &s.env, &rows, &mut rng)),
        };
        values.insert(v, array);
    }
    for node in &graph.nodes {
        hide_scores(&node.op, &node.inputs, &rows, &mut values);
    }
    Ok(values)
}

/// Scores that a selection takes are -inf where there is no visible entry, as index scores are.
fn hide_scores(op: &Op, inputs: &[ValueId], rows: &Rows, values: &mut Values) {
    let (ratio, block) = match op {
        Op::TopK(o) => (o.ratio, o.block),
        Op::CandidateBlocks(o) => (o.ratio, 0),
        _ => return,
    };
    let blocks = inputs.get(2).and_then(|v| values.get(v)).and_then(|b| Some(b.ints().ok()?.to_vec()));
    let Some(scores) = inputs.first().and_then(|v| values.get_mut(v)) else { return };
    let width = scores.shape.last().copied().unwrap_or(1).max(1);
    let Data::F32(x) = &mut scores.data else { return };
    for (row, x) in x.chunks_mut(width).enumerate() {
        let per_row = width as u64 / block.max(1);
        for (column, score) in (0u64..).zip(x) {
            let entry = match (&blocks, block) {
                (Some(ids), 1..) => {
                    let id = ids.get(row * per_row as usize + (column / block) as usize).copied().unwrap_or(-1);
                    u64::try_from(id).ok().map(|id| id * block + column % block)
                }
                _ => Some(column),
            };
            if entry.is_none_or(|e| e >= rows.visible(row, ratio)) {
                *score = f32::NEG_INFINITY;
            }
        }
    }
}

fn shape(ty: &TensorType, env: &Env) -> Vec<usize> {
    ty.shape.iter().map(|e| e.eval(env) as usize).collect()
}

/// Name of a value's random numbers.
fn stream(graph: &Graph, v: ValueId) -> String {
    format!("{}/{}", v.0, graph.value(v).name)
}

/// How the contents of a weight, input or state are made; integers have a meaning and no recipe. Scores that a
/// selection reads are changed afterwards.
pub(crate) fn recipe(graph: &Graph, v: ValueId, seed: u64) -> Option<Recipe> {
    let value = graph.value(v);
    match (&value.def, value.ty.dtype) {
        (Def::Node { .. }, _) | (_, DType::I32) => None,
        (Def::Weight(_), dtype) => {
            let shape = value.ty.shape.iter().map(|e| e.as_const().unwrap_or(1)).collect();
            let (name, tensor, shard) = (value.name.clone(), value.name.clone(), "none".into());
            let weight = Weight { name, layer: Some(v.0), tensor, dtype, shape, shard };
            Some(Recipe::Weight { seed, weight })
        }
        (Def::Input | Def::State(_), dtype) => {
            Some(Recipe::Rows { seed, stream: stream(graph, v), dtype, channels: value.ty.channels() })
        }
    }
}

fn weight_integers(graph: &Graph, v: ValueId, seed: u64) -> Vec<i32> {
    let value = graph.value(v);
    let limit = index_limit(graph, v);
    let mut rng = Rng::new(seed, &value.name);
    let n = value.ty.elements().as_const().unwrap_or(1);
    (0..n).map(|_| rng.below(limit) as i32).collect()
}

/// Below which an integer weight's values must lie.
fn index_limit(graph: &Graph, v: ValueId) -> u64 {
    let limit = |node: &dsc_ir::graph::Node| match &node.op {
        Op::RouterHash(_) if node.inputs.get(1) == Some(&v) => Some(graph.ty(*node.inputs.first()?).channels()),
        _ => None,
    };
    graph.nodes.iter().find_map(limit).unwrap_or(SMALL)
}

/// An integer input or state, from what reads it.
fn integers(graph: &Graph, v: ValueId, env: &Env, rows: &Rows, rng: &mut Rng) -> Vec<i32> {
    let ty = graph.ty(v);
    let n = ty.elements().eval(env) as usize;
    let width = ty.shape.last().map_or(1, |e| e.eval(env) as usize).max(1);
    if graph.value(v).name == "step" || is_step_table(ty, env) {
        return rows.0.concat();
    }
    let users = graph.nodes.iter().flat_map(|node| {
        let at = node.inputs.iter().enumerate().filter(|(_, i)| **i == v);
        at.map(move |(operand, _)| (node, operand))
    });
    for (node, operand) in users {
        let input = |i: usize| node.inputs.get(i).map(|v| graph.ty(*v));
        match (&node.op, operand) {
            (Op::TakeRows(_), 1) => {
                let mut chosen = ascending(n, env.n_tokens, rng);
                chosen.iter_mut().for_each(|r| *r = (*r).max(0));
                return chosen;
            }
            (Op::SparseAttention(o), _) => return chosen(n, width, rng, |row| rows.visible(row, o.ratio)),
            (Op::IndexScores(o), 4) => {
                return chosen(n, width, rng, |row| rows.visible(row, o.ratio).div_ceil(o.block.max(1)));
            }
            (Op::TopK(o), 2) => {
                return chosen(n, width, rng, |row| rows.visible(row, o.ratio).div_ceil(o.block.max(1)));
            }
            (Op::ExpertLinear(_), 1) => {
                let experts = input(2).and_then(|t| t.shape.first().cloned()).map_or(1, |e| e.eval(env));
                return distinct(n, width, experts, rng);
            }
            (Op::ExpertSum(_), 1) => return distinct(n, width, 2 * width as u64, rng),
            (Op::EngramGather(_), 1) => {
                let table = input(0).and_then(|t| t.shape.first().cloned()).map_or(1, |e| e.eval(env));
                return (0..n).map(|_| rng.below(table) as i32).collect();
            }
            (Op::EngramHash(_), 2) => return (0..n).map(|_| rng.below(SMALL) as i32 - 1).collect(),
            _ => {}
        }
    }
    (0..n).map(|_| rng.below(SMALL) as i32).collect()
}

fn is_step_table(ty: &TensorType, env: &Env) -> bool {
    shape(ty, env) == [env.n_tokens as usize, step::COLUMNS as usize] && ty.channels() == step::COLUMNS
}

/// `n` of the numbers below `limit` in ascending order, -1 where there are too few.
fn ascending(n: usize, limit: u64, rng: &mut Rng) -> Vec<i32> {
    let mut out = Vec::with_capacity(n);
    for i in 0..limit {
        // Selection sampling: every subset is equally likely.
        let missing = (n - out.len()) as u64;
        if missing > 0 && rng.below(limit - i) < missing {
            out.push(i as i32);
        }
    }
    out.resize(n, -1);
    out
}

/// Rows of ascending choices among what each row sees, with some left empty.
fn chosen(n: usize, width: usize, rng: &mut Rng, visible: impl Fn(usize) -> u64) -> Vec<i32> {
    let mut out = Vec::with_capacity(n);
    for row in 0..n / width {
        let take = width - rng.below((width as u64).div_ceil(4)) as usize;
        let mut ids = ascending(take, visible(row), rng);
        ids.resize(width, -1);
        out.extend(ids);
    }
    out
}

/// Rows of distinct numbers below `limit`, in random order.
fn distinct(n: usize, width: usize, limit: u64, rng: &mut Rng) -> Vec<i32> {
    let mut out = Vec::with_capacity(n);
    for _ in 0..n / width {
        let mut ids = ascending(width, limit.max(width as u64), rng);
        for i in (1..ids.len()).rev() {
            ids.swap(i, rng.below(i as u64 + 1) as usize);
        }
        out.extend(ids);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_distinct_ascending_and_in_range() {
        let mut rng = Rng::new(3, "choices");
        for (n, limit) in [(4, 100), (4, 4), (5, 3), (0, 9)] {
            let ids = ascending(n, limit, &mut rng);
            assert_eq!(ids.len(), n);
            let real: Vec<i32> = ids.iter().copied().filter(|i| *i >= 0).collect();
            assert_eq!(real.len() as u64, limit.min(n as u64));
            assert!(real.windows(2).all(|w| w[0] < w[1]) && real.iter().all(|i| (*i as u64) < limit));
        }
    }
}
