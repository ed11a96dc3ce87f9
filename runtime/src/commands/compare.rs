//! `compare`: two dumps of the same run on different devices.
//!
//! A device sums in another order than the other, so a value near a rounding boundary of a packed cache, a near-tie of
//! a router or of a selection may go the other way, and all later rows of its sequence move with it. Bounds are
//! therefore stated for shares of rows; what a single kernel does to equal inputs is `run --step`'s matter.

use super::{CommandError, Outcome, Streams};
use clap::Args;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use std::fs;
use std::path::{Path, PathBuf};

/// Arguments of `compare`.
#[derive(Debug, Clone, Args)]
pub struct CompareArgs {
    /// Dump that is taken for right
    pub expected: PathBuf,
    /// Dump to be compared
    pub found: PathBuf,
    /// A row of logits is near when none of them is further off than this, relative to the row's largest logit
    #[arg(long, default_value_t = 2e-3)]
    pub near: f32,
    /// Share of rows that must be near
    #[arg(long, default_value_t = 0.8)]
    pub rows: f64,
    /// Smallest cosine of any row of logits
    #[arg(long, default_value_t = 0.999)]
    pub cosine: f64,
    /// Share of selected rows, experts and n-gram rows that must be equal
    #[arg(long, default_value_t = 0.99)]
    pub selections: f64,
}

/// Compares them.
///
/// # Errors
/// A file that is no dump.
pub fn compare(args: &CompareArgs, io: &mut Streams<'_>) -> Result<Outcome, CommandError> {
    let (a, b) = (read(&args.expected)?, read(&args.found)?);
    let (a, b) = (parse(&args.expected, &a)?, parse(&args.found, &b)?);
    let mut names = a.names();
    names.sort_unstable();
    let mut failed = 0;
    for name in names {
        let expected = a.tensor(name).map_err(|e| CommandError::Usage(e.to_string()))?;
        let verdict = match b.tensor(name) {
            Ok(found) if found.shape() != expected.shape() || found.dtype() != expected.dtype() => {
                Err(format!("its shape is {:?}, not {:?}", found.shape(), expected.shape()))
            }
            Ok(found) => one(args, &expected, &found),
            Err(_) => Err("it is missing".into()),
        };
        let (word, text) = match verdict {
            Ok(text) => ("ok  ", text),
            Err(text) => ("FAIL", text),
        };
        failed += usize::from(word == "FAIL");
        writeln!(io.out, "{word}  {name}: {text}")?;
    }
    Ok(if failed > 0 { Outcome::Failed } else { Outcome::Done })
}

fn read(path: &Path) -> Result<Vec<u8>, CommandError> {
    fs::read(path).map_err(|e| CommandError::Usage(format!("cannot read `{}`: {e}", path.display())))
}

fn parse<'a>(path: &Path, bytes: &'a [u8]) -> Result<SafeTensors<'a>, CommandError> {
    SafeTensors::deserialize(bytes).map_err(|e| CommandError::Usage(format!("`{}`: {e}", path.display())))
}

fn one(args: &CompareArgs, expected: &TensorView<'_>, found: &TensorView<'_>) -> Result<String, String> {
    if expected.dtype() == Dtype::F32 {
        let width = expected.shape().last().copied().unwrap_or(1).max(1);
        return logits(args, &floats(expected), &floats(found), width);
    }
    let cells = |t: &TensorView<'_>| t.data().as_chunks::<4>().0.to_vec();
    let (a, b) = (cells(expected), cells(found));
    let equal = a.iter().zip(&b).filter(|(a, b)| a == b).count();
    let share = equal as f64 / a.len().max(1) as f64;
    let text = format!("{equal} of {} equal", a.len());
    if a.is_empty() || share >= args.selections { Ok(text) } else { Err(text) }
}

fn floats(t: &TensorView<'_>) -> Vec<f32> {
    t.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn logits(args: &CompareArgs, a: &[f32], b: &[f32], width: usize) -> Result<String, String> {
    let (mut rows, mut near, mut worst, mut cosine) = (0usize, 0usize, 0f32, 1f64);
    for (row, (a, b)) in a.chunks(width).zip(b.chunks(width)).enumerate() {
        // Positions without logits are NaN in both.
        if a.iter().all(|x| x.is_nan()) && b.iter().all(|x| x.is_nan()) {
            continue;
        }
        if a.iter().chain(b).any(|x| !x.is_finite()) {
            return Err(format!("row {row} is not finite"));
        }
        let size = a.iter().fold(0f32, |m, x| m.max(x.abs())).max(f32::MIN_POSITIVE);
        let off = a.iter().zip(b).fold(0f32, |m, (a, b)| m.max((a - b).abs())) / size;
        let dot = |x: &[f32], y: &[f32]| -> f64 { x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum() };
        let norm = (dot(a, a) * dot(b, b)).sqrt();
        cosine = cosine.min(if norm > 0.0 { dot(a, b) / norm } else { f64::from(u8::from(a == b)) });
        rows += 1;
        near += usize::from(off <= args.near);
        worst = worst.max(off);
    }
    let text =
        format!("{near} of {rows} rows within {:.0e}, worst {worst:.1e}, smallest cosine {cosine:.6}", args.near);
    let holds = near as f64 >= args.rows * rows as f64 && cosine >= args.cosine;
    if holds { Ok(text) } else { Err(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> CompareArgs {
        let path = PathBuf::new;
        CompareArgs { expected: path(), found: path(), near: 1e-3, rows: 0.5, cosine: 0.99, selections: 0.9 }
    }

    #[test]
    fn bounds_hold_for_shares_of_rows() {
        let a = [1.0, 2.0, 3.0, 4.0];
        assert!(logits(&args(), &a, &a, 2).is_ok());
        assert!(logits(&args(), &a, &[1.0, 2.0, 3.0, 4.01], 2).is_ok(), "one of two rows is near");
        assert!(logits(&args(), &a, &[1.01, 2.0, 3.0, 4.01], 2).is_err());
        assert!(logits(&args(), &a, &[1.0, 2.0, 4.0, -3.0], 2).is_err(), "the cosine is 0");
        assert!(logits(&args(), &a, &[1.0, 2.0, 3.0, f32::NAN], 2).is_err());
        let tail = [f32::NAN, f32::NAN, 3.0, 4.0];
        assert!(logits(&args(), &tail, &tail, 2).unwrap().starts_with("1 of 1 rows"));
    }
}
