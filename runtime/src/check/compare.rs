//! Comparing a kernel's results with the interpreter's.
//!
//! Tolerance of a float: one ulp of its dtype at the reference, and `sqrt(K) 2^-22 sum |a b|` for a sum of `K`
//! products. With random operands `sum |a b|` is about `sqrt(K)` times the size of the results, so the second
//! part is taken as `K 2^-22` times the root mean square of the row; `K` adds up over the ops of a kernel.
//!
//! A quantiser or a selection inside a kernel turns a difference below tolerance into a step to the next code or
//! a neighbour. Such values are counted as boundary cases and must be few.

use super::is_rounded;
use dsc_ir::dtype::DType;
use dsc_ir::graph::{Graph, TensorType};
use dsc_ir::interp::{Array, Data};
use dsc_ir::op::Op;

/// Largest share of values that may lie the other side of a boundary.
const BOUNDARY_SHARE: f64 = 0.005;

/// What holds for all results of a kernel.
pub(crate) struct Rule {
    /// Products that are added up for one result.
    pub contraction: f64,
    /// Whether rounding or a choice happens between its operations.
    pub discontinuous: bool,
}

impl Rule {
    pub fn of(graph: &Graph) -> Rule {
        let contraction = graph.nodes.iter().map(|n| {
            let input = |i: usize| n.inputs.get(i).map(|v| graph.ty(*v));
            contraction(&n.op, &input)
        });
        let made = graph.nodes.iter().flat_map(|n| &n.outputs);
        let rounded = made.clone().any(|v| is_rounded(graph.ty(*v).dtype));
        let chooses = made.clone().any(|v| graph.ty(*v).dtype == DType::I32);
        let nodes = graph.nodes.len() > 1;
        Rule { contraction: contraction.sum::<u64>() as f64, discontinuous: rounded || (chooses && nodes) }
    }
}

/// Products that an op adds up for one result; elementwise chains count a few.
fn contraction<'a>(op: &Op, input: &dyn Fn(usize) -> Option<&'a TensorType>) -> u64 {
    let channels = |i: usize| input(i).map_or(1, TensorType::channels);
    match op {
        Op::Linear(_) | Op::GroupLinear(_) | Op::MhcStats(_) => channels(1),
        Op::ExpertLinear(_) => channels(2),
        Op::IndexScores(_) => input(0).map_or(1, TensorType::row_elements),
        Op::SparseAttention(o) => {
            let listed = input(5 + usize::from(o.sink)).map_or(256, TensorType::channels);
            channels(0) + o.window + listed
        }
        Op::EngramInject(_) => channels(0),
        Op::Pool(o) => 8 * u64::from(o.ratio),
        _ => 8,
    }
}

/// How a comparison went.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Tally {
    pub values: u64,
    pub boundary: u64,
    /// Largest difference of two floats.
    pub worst: f64,
    /// The first boundary case, in words.
    pub first: Option<String>,
}

impl Tally {
    pub fn add(&mut self, other: &Tally) {
        self.values += other.values;
        self.boundary += other.boundary;
        self.worst = self.worst.max(other.worst);
        self.first = self.first.take().or_else(|| other.first.clone());
    }

    fn miss(&mut self, words: impl FnOnce() -> String) {
        self.boundary += 1;
        if self.first.is_none() {
            self.first = Some(words());
        }
    }

    /// Whether boundary cases are few: at most a share, and one in any case.
    pub fn verdict(&self) -> Result<(), String> {
        if self.boundary <= 1.max((self.values as f64 * BOUNDARY_SHARE) as u64) {
            return Ok(());
        }
        let first = self.first.as_deref().unwrap_or("");
        Err(format!("{} of {} values differ, first {first}", self.boundary, self.values))
    }
}

/// One ulp of a dtype at `x`.
pub(crate) fn ulp(dtype: DType, x: f32) -> f64 {
    let bits = if dtype == DType::Bf16 { 7 } else { 23 };
    let exponent = if x == 0.0 { f32::MIN_POSITIVE } else { x.abs() }.log2().floor();
    2f64.powi(exponent as i32 - bits)
}

/// Compares one result.
pub(crate) fn arrays(rule: &Rule, name: &str, expected: &Array, got: &Array) -> Result<Tally, String> {
    match (&expected.data, &got.data) {
        (Data::I32(a), Data::I32(b)) => equal(rule, name, a, b),
        (Data::Bytes(a), Data::Bytes(b)) => equal(rule, name, a, b),
        (Data::F32(a), Data::F32(b)) => floats(rule, name, expected, a, b),
        _ => Err(format!("`{name}` is of another kind")),
    }
}

fn equal<T: PartialEq + std::fmt::Display>(rule: &Rule, name: &str, a: &[T], b: &[T]) -> Result<Tally, String> {
    let mut tally = Tally { values: a.len() as u64, ..Tally::default() };
    for (i, (a, b)) in a.iter().zip(b).enumerate().filter(|(_, (a, b))| a != b) {
        tally.miss(|| format!("`{name}`[{i}] = {b}, not {a}"));
        if !rule.discontinuous {
            return Err(format!("`{name}`[{i}] = {b}, not {a}"));
        }
    }
    Ok(tally)
}

fn floats(rule: &Rule, name: &str, expected: &Array, a: &[f32], b: &[f32]) -> Result<Tally, String> {
    let mut tally = Tally { values: a.len() as u64, ..Tally::default() };
    let row = expected.shape.get(1..).map_or(1, |s| s.iter().product::<usize>()).max(1);
    for (r, (a, b)) in a.chunks(row).zip(b.chunks(row)).enumerate() {
        let finite = || a.iter().filter(|x| x.is_finite());
        let square: f64 = finite().map(|x| f64::from(*x) * f64::from(*x)).sum();
        let size = (square / finite().count().max(1) as f64).sqrt();
        for (i, (a, b)) in a.iter().zip(b).enumerate() {
            let at = |limit: f64| format!("`{name}`[{r}, {i}] = {b:e}, not {a:e} within {limit:.1e}");
            if a == b || (a.is_nan() && b.is_nan()) {
                continue;
            }
            let limit = ulp(expected.ty_dtype, *a) + rule.contraction * 2f64.powi(-22) * size;
            let d = (f64::from(*a) - f64::from(*b)).abs();
            tally.worst = tally.worst.max(d);
            // Not `d > limit`: NaN and infinities must not pass.
            if a.is_finite() && d <= limit {
                continue;
            }
            // A neighbouring code inside the kernel moves a result by a share of its size.
            let near = a.is_finite() && d <= size.max(f64::from(a.abs()));
            if !(rule.discontinuous && near) {
                return Err(at(limit));
            }
            tally.miss(|| at(limit));
        }
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(discontinuous: bool, a: &[f32], b: &[f32]) -> Result<Tally, String> {
        let rule = Rule { contraction: 1.0, discontinuous };
        let shape = [1, a.len()];
        arrays(&rule, "y", &Array::f32(&shape, a.to_vec()), &Array::f32(&shape, b.to_vec()))
    }

    #[test]
    fn tolerances() {
        assert!(compare(false, &[1.0, 2.0], &[1.0, f32::from_bits(2f32.to_bits() + 1)]).is_ok());
        assert!(compare(false, &[1.0, 2.0], &[1.0, 2.001]).is_err());
        assert!(compare(false, &[1.0, f32::NEG_INFINITY], &[1.0, f32::NEG_INFINITY]).is_ok());
        assert!(compare(true, &[1.0, f32::NEG_INFINITY], &[1.0, -1e9]).is_err());
        assert!(compare(true, &[1.0], &[f32::NAN]).is_err());
        let many = compare(true, &[1.0; 4], &[1.1; 4]).unwrap();
        assert!(many.boundary == 4 && many.verdict().is_err());
        assert!(compare(true, &[1.0; 4], &[1.0, 1.1, 1.0, 1.0]).unwrap().verdict().is_ok());
    }
}
