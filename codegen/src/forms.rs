//! The code of a bundle's kernels as text for people, by schedule and kernel.
//!
//! Symbols and plans are those of the bundle that holds the same schedules, so its code is this code.

use crate::bundle::{self, BuildError, Distinct};
use dsc_ir::schedule::Schedule;
#[cfg(feature = "nvptx")]
use dsc_ir::target::Target;
use rayon::prelude::*;

/// A kernel of a schedule, both by number, and a text of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Form {
    /// Among the schedules.
    pub schedule: usize,
    /// Among the schedule's kernels.
    pub kernel: usize,
    /// The text.
    pub text: String,
}

/// Loop programs of all kernels that are code.
///
/// # Errors
/// A defect of dsc: a kernel that cannot be lowered.
pub fn loops(schedules: &[Schedule]) -> Result<Vec<Form>, BuildError> {
    of_kernels(schedules, |_, d| Ok(Some(bundle::loop_program(d)?.to_string())))
}

/// CLIF of all kernels that are code.
///
/// # Errors
/// A defect of dsc, as [`loops`].
pub fn clif(schedules: &[Schedule]) -> Result<Vec<Form>, BuildError> {
    of_kernels(schedules, |_, d| {
        let func = bundle::loop_program(d)?;
        crate::cpu::emit(&func).map(Some).map_err(|e| bundle::internal(&func.name, e))
    })
}

/// PTX of all kernels that have some for the target of their schedule, which is among `targets`.
///
/// # Errors
/// None: a kernel without PTX is left out, and the report of the build names it.
#[cfg(feature = "nvptx")]
pub fn ptx(schedules: &[Schedule], targets: &[Target]) -> Result<Vec<Form>, BuildError> {
    of_kernels(schedules, |s, d| Ok(gpu(s, d, targets).map(|made| made.ptx)))
}

/// The optimised LLVM IR that [`ptx`] is made from.
///
/// # Errors
/// As [`ptx`].
#[cfg(feature = "nvptx")]
pub fn llvm(schedules: &[Schedule], targets: &[Target]) -> Result<Vec<Form>, BuildError> {
    of_kernels(schedules, |s, d| Ok(gpu(s, d, targets).map(|made| made.llvm)))
}

#[cfg(feature = "nvptx")]
fn gpu(s: &Schedule, d: &Distinct<'_>, targets: &[Target]) -> Option<crate::nvptx::GpuKernel> {
    let target = targets.iter().find(|t| t.name == s.target)?;
    crate::gpu::emit_for(d.kernel, &bundle::symbol(d), target, bundle::hint(d)).ok()
}

/// One text for each kernel of each schedule that has one. A sum over several ranks is no code.
fn of_kernels(
    schedules: &[Schedule],
    text: impl Fn(&Schedule, &Distinct<'_>) -> Result<Option<String>, BuildError> + Sync,
) -> Result<Vec<Form>, BuildError> {
    let (distinct, index) = bundle::distinct_kernels(schedules);
    let number = |(i, kernels): (usize, &Vec<u32>)| -> Vec<(usize, usize, u32)> {
        kernels.iter().enumerate().map(|(k, d)| (i, k, *d)).collect()
    };
    let all: Vec<(usize, usize, u32)> = index.iter().enumerate().flat_map(number).collect();
    let one = |(schedule, kernel, d): &(usize, usize, u32)| {
        let d = &distinct[*d as usize];
        let text = if d.runs_alone() { text(&schedules[*schedule], d)? } else { None };
        Ok(text.map(|text| Form { schedule: *schedule, kernel: *kernel, text }))
    };
    let forms: Vec<Option<Form>> = all.par_iter().map(one).collect::<Result<_, BuildError>>()?;
    Ok(forms.into_iter().flatten().collect())
}
