//! A step of a whole model, launch by launch: what each kernel makes of the very inputs that it has there, against
//! another execution of the same kernel.
//!
//! The reference starts from the device's own inputs, so differences do not add up from kernel to kernel: the first
//! launch that differs is at fault. Tolerances are those of [`super::check`].

use super::compare::{self, Tally};
use super::{graph_of, outputs};
use crate::bundle::Bundle;
use crate::cpu::Kernels;
use crate::executor::{Device, DeviceError, StepInput};
use crate::memory::Bytes;
use dsc_ir::expr::Env;
use dsc_ir::graph::{Graph, ValueId};
use dsc_ir::interp::{self, Array, Values};
use dsc_ir::manifest::{KernelEntry, LaunchEntry};
use dsc_ir::schedule::Phase;

/// What a device is compared with.
pub enum Reference {
    /// The CPU's kernels.
    Cpu(Box<Kernels>),
    /// The interpreter.
    Interpreter,
}

/// How one launch compares.
#[derive(Debug, Clone, PartialEq)]
pub struct LaunchFinding {
    /// Number of the launch in its step, from 0.
    pub launch: usize,
    /// Kernel.
    pub kernel: String,
    /// Layer.
    pub layer: Option<u32>,
    /// Values compared.
    pub values: u64,
    /// Values beyond the tolerance of rounding, allowed where a kernel rounds or chooses.
    pub boundary: u64,
    /// Largest difference of two floats.
    pub worst: f64,
    /// The first value beyond the tolerance.
    pub first: Option<String>,
    /// Why it differs, if it does.
    pub differs: Option<String>,
}

/// The walk's parameters.
pub struct Walk<'a> {
    /// Bundle that the device runs.
    pub bundle: &'a Bundle,
    /// What it is compared with.
    pub reference: &'a Reference,
    /// The launch to stop after and to compare; all are compared without one.
    pub only: Option<usize>,
    /// Ends with the first launch that differs.
    pub stop_at_difference: bool,
}

/// Walks through a step of a device; `progress` sees each comparison as it comes.
///
/// # Errors
/// A step that does not fit, a device or a reference that fails, or a launch that the step does not have.
pub fn walk(
    walk: &Walk<'_>,
    device: &mut dyn Device,
    phase: Phase,
    input: &StepInput<'_>,
    mut progress: impl FnMut(&LaunchFinding),
) -> Result<Vec<LaunchFinding>, DeviceError> {
    let (env, launches) = device.begin_step(phase, input)?;
    if let Some(n) = walk.only.filter(|n| *n >= launches.len()) {
        let count = launches.len();
        return Err(DeviceError::Step(format!("there is no launch {n}: the {} step has {count}", phase.name())));
    }
    let mut findings = Vec::new();
    for (i, launch) in launches.iter().enumerate().take(walk.only.map_or(launches.len(), |n| n + 1)) {
        if walk.only.is_some_and(|n| n != i) {
            device.run_launch(i)?;
            continue;
        }
        let finding = walk.launch(device, i, launch, &env)?;
        progress(&finding);
        let differs = finding.differs.is_some();
        findings.push(finding);
        if differs && walk.stop_at_difference {
            break;
        }
    }
    Ok(findings)
}

impl Walk<'_> {
    fn launch(
        &self,
        device: &mut dyn Device,
        index: usize,
        launch: &LaunchEntry,
        env: &Env,
    ) -> Result<LaunchFinding, DeviceError> {
        let kernel = launch.kernel as usize;
        let entry = &self.bundle.manifest.kernels[kernel];
        let defect = |reason: String| DeviceError::Kernel { kernel: entry.name.clone(), reason };
        let (graph, params) = graph_of(self.bundle, entry).map_err(defect)?;
        let before: Vec<Bytes> =
            (0..entry.params.len()).map(|a| device.read_arg(index, a)).collect::<Result<_, _>>()?;
        device.run_launch(index)?;
        let expected = self.reference(entry, kernel, &graph, &params, before, env)?;
        let rule = compare::Rule::of(&graph);
        let (mut total, mut differs) = (Tally::default(), None);
        for (arg, v) in outputs(entry, &params) {
            let Some(want) = expected.get(&v) else { continue };
            let got = device.read_arg(index, arg)?;
            let name = &entry.params[arg].name;
            let compared = Array::from_storage(want.ty_dtype, &want.shape, got.as_ref())
                .map_err(|e| e.to_string())
                .and_then(|got| compare::arrays(&rule, name, want, &got));
            match compared {
                Ok(tally) => total.add(&tally),
                Err(reason) => differs = differs.or(Some(reason)),
            }
        }
        Ok(LaunchFinding {
            launch: index,
            kernel: entry.name.clone(),
            layer: launch.layer,
            values: total.values,
            boundary: total.boundary,
            worst: total.worst,
            first: total.first.clone(),
            differs: differs.or_else(|| total.verdict().err()),
        })
    }

    /// What the reference makes of a launch's arguments: its results by value.
    fn reference(
        &self,
        entry: &KernelEntry,
        kernel: usize,
        graph: &Graph,
        params: &[ValueId],
        mut before: Vec<Bytes>,
        env: &Env,
    ) -> Result<Values, DeviceError> {
        let defect = |reason: String| DeviceError::Kernel { kernel: entry.name.clone(), reason };
        let array = |v: ValueId, bytes: &Bytes| -> Result<Array, DeviceError> {
            let ty = graph.ty(v);
            let shape: Vec<usize> = ty.shape.iter().map(|e| e.eval(env) as usize).collect();
            Array::from_storage(ty.dtype, &shape, bytes.as_ref()).map_err(|e| defect(e.to_string()))
        };
        if let Reference::Cpu(kernels) = self.reference {
            kernels.call(entry, kernel, &mut before, env)?;
            let results = outputs(entry, params).map(|(arg, v)| Ok((v, array(v, &before[arg])?)));
            return results.collect();
        }
        let mut values = Values::new();
        for ((v, p), bytes) in params.iter().zip(&entry.params).zip(&before) {
            if p.role != "output" {
                values.insert(*v, array(*v, bytes)?);
            }
        }
        interp::run(graph, env, &mut values).map_err(|e| defect(format!("the interpreter refuses it: {e}")))?;
        Ok(values)
    }
}
