//! The GPU device: a bundle's kernels on one GPU, with its weights, states and the slots between launches.
//!
//! A step copies its tables to fixed addresses and starts its launches in order on one stream; nothing on the host
//! depends on data. So a decode step of the same sizes is the same launches with the same parameters: the second time
//! it is recorded as a graph, from then on the graph is replayed.

use super::buffer::Buffer;
use super::device::{self, CudaError, Kernel, LaunchGraph, LaunchShape};
use super::fill::Filler;
use super::marks::Marks;
use super::target::{choose_target, named_target};
use crate::bundle::Bundle;
use crate::executor::{
    self, Capacity, Device, DeviceError, EngramMemory, GpuOptions, ProbeValue, StepInput, StepOutput,
};
use crate::memory::Bytes;
use crate::weights::{WeightStore, weight_bytes};
use dsc_ir::dtype::DType;
use dsc_ir::expr::{Env, Expr};
use dsc_ir::manifest::{GpuCode, LaunchEntry, Manifest, ProbeEntry, ScheduleEntry, Weight, tensor_type};
use dsc_ir::schedule::{Arg, Phase};
use std::collections::BTreeMap;

/// Most graphs that are kept: one for each number of rows of a decode step in use.
const MAX_GRAPHS: usize = 256;
/// Share of the free memory that tables may fill together with weights and states; slots come on top.
const FILLED: f64 = 0.9;

/// A model on a GPU.
pub struct CudaDevice {
    // Graphs go first: they refer to the memory below.
    graphs: BTreeMap<(u64, u64), Seen>,
    inputs: Inputs,
    slots: Vec<Buffer>,
    states: Vec<Buffer>,
    weights: Vec<Buffer>,
    kernels: Vec<Option<Ready>>,
    gpu: device::Device,
    manifest: Manifest,
    target: String,
    capacity: Capacity,
    options: GpuOptions,
    begun: Option<(Phase, Env)>,
    marks: Marks,
}

/// A decode step that ran before.
enum Seen {
    /// Launch by launch.
    Once,
    /// And was recorded.
    Recorded(LaunchGraph),
}

/// Tables of a step.
struct Inputs {
    step: Buffer,
    out_rows: Buffer,
    tail_rows: Buffer,
    tail_step: Buffer,
}

impl Inputs {
    fn get(&self, name: &str) -> &Buffer {
        match name {
            "out_rows" => &self.out_rows,
            "tail_rows" => &self.tail_rows,
            "tail_step" => &self.tail_step,
            _ => &self.step,
        }
    }
}

/// A loaded kernel and how it is launched.
struct Ready {
    kernel: Kernel,
    grid: [Expr; 3],
    threads: u32,
    smem_bytes: u32,
}

pub(super) fn failure(e: CudaError) -> DeviceError {
    match e {
        CudaError::Load { kernel, message } | CudaError::Kernel { kernel, message } => {
            DeviceError::Kernel { kernel, reason: message }
        }
        other => DeviceError::Machine(other.to_string()),
    }
}

impl CudaDevice {
    /// Loads a bundle's kernels, puts the weights on the device and makes room for states.
    ///
    /// # Errors
    /// No driver or GPU, no code for it, unsuitable weights, too little memory.
    pub fn new(
        bundle: &Bundle,
        store: &mut WeightStore,
        capacity: Capacity,
        ordinal: usize,
        options: &GpuOptions,
    ) -> Result<CudaDevice, DeviceError> {
        let gpu = device::Device::open(ordinal).map_err(failure)?;
        let manifest = bundle.manifest.clone();
        let capability = gpu.capability().map_err(failure)?;
        let target = match &options.target {
            Some(name) => named_target(&manifest, name, capability),
            None => choose_target(&manifest, capability),
        };
        let target = target.map_err(DeviceError::Unsupported)?.to_string();
        let mut kernels: Vec<Option<Ready>> = manifest.kernels.iter().map(|_| None).collect();
        for phase in Phase::ALL {
            for launch in &schedule(&manifest, phase, &target)?.launches {
                let k = launch.kernel as usize;
                if kernels[k].is_none() {
                    kernels[k] = Some(load(&gpu, bundle, k, &target)?);
                }
            }
        }
        let env =
            Env { n_tokens: 0, n_seqs: capacity.n_seqs, n_context: capacity.n_context, n_out_rows: 0, n_tail_rows: 0 };
        let states = manifest
            .states
            .iter()
            .map(|s| gpu.zeros(tensor_type(s.dtype, &s.shape).bytes().eval(&env) as usize).map_err(failure))
            .collect::<Result<_, _>>()?;
        let weights = load_weights(&gpu, &manifest, store, options.engram_memory)?;
        let empty = || gpu.zeros(0).map_err(failure);
        let inputs = Inputs { step: empty()?, out_rows: empty()?, tail_rows: empty()?, tail_step: empty()? };
        Ok(CudaDevice {
            graphs: BTreeMap::new(),
            inputs,
            slots: Vec::new(),
            states,
            weights,
            kernels,
            gpu,
            manifest,
            target,
            capacity,
            options: options.clone(),
            begun: None,
            marks: Marks::find(),
        })
    }

    /// Copies a step's tables to where its launches look for them, and makes room for its results. Where memory moves,
    /// graphs that lead to the old one are gone.
    fn prepare(&mut self, phase: Phase, input: &StepInput<'_>, env: &Env) -> Result<(), DeviceError> {
        let bytes = executor::slot_bytes(schedule(&self.manifest, phase, &self.target)?, env);
        let mut moved = false;
        for (i, need) in bytes.into_iter().enumerate() {
            if i == self.slots.len() {
                self.slots.push(self.gpu.zeros(0).map_err(failure)?);
            }
            moved |= grow(&self.gpu, &mut self.slots[i], need as usize)?;
        }
        let tail_step = input.tail_step();
        let tables = [
            (&mut self.inputs.step, input.step),
            (&mut self.inputs.out_rows, input.out_rows),
            (&mut self.inputs.tail_rows, input.tail_rows),
            (&mut self.inputs.tail_step, &tail_step),
        ];
        for (buffer, table) in tables {
            let contents: &[u8] = bytemuck::cast_slice(table);
            moved |= grow(&self.gpu, buffer, contents.len())?;
            self.gpu.write(buffer, contents).map_err(failure)?;
        }
        if moved {
            self.graphs.clear();
        }
        Ok(())
    }

    fn buffer(&self, schedule: &ScheduleEntry, arg: &Arg) -> &Buffer {
        match arg {
            Arg::Buffer(b) => &self.slots[schedule.buffers[*b as usize].slot as usize],
            Arg::Weight(w) => &self.weights[*w as usize],
            Arg::State(s) => &self.states[*s as usize],
            Arg::Input(name) => self.inputs.get(name),
        }
    }

    /// Starts one launch. What goes wrong carries the kernel's name.
    fn launch(&self, schedule: &ScheduleEntry, launch: &LaunchEntry, env: &Env) -> Result<(), DeviceError> {
        let index = launch.kernel as usize;
        let name = &self.manifest.kernels[index].name;
        let Some(ready) = &self.kernels[index] else {
            return Err(DeviceError::Kernel { kernel: name.clone(), reason: "it was not loaded".into() });
        };
        let buffers: Vec<&Buffer> = launch.args.iter().map(|a| self.buffer(schedule, a)).collect();
        let grid = [0, 1, 2].map(|d: usize| u32::try_from(ready.grid[d].eval(env)).unwrap_or(u32::MAX));
        let shape = LaunchShape { grid, threads: ready.threads, smem_bytes: ready.smem_bytes };
        let _range = self.marks.range(|| match launch.layer {
            Some(layer) => format!("{} layer {layer} {name}", schedule.phase.name()),
            None => format!("{} {name}", schedule.phase.name()),
        });
        let mut started = self.gpu.launch(&ready.kernel, shape, &buffers, env);
        if self.options.check_launches {
            started = started.and_then(|()| self.gpu.finish(&ready.kernel));
        }
        started.map_err(|e| match failure(e) {
            DeviceError::Kernel { reason, .. } => DeviceError::Kernel { kernel: name.clone(), reason },
            other => other,
        })
    }

    fn run_launches(
        &self,
        schedule: &ScheduleEntry,
        env: &Env,
        mut after: impl FnMut(usize) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let _range = self.marks.range(|| format!("{} {} rows", schedule.phase.name(), env.n_tokens));
        for (i, launch) in schedule.launches.iter().enumerate() {
            self.launch(schedule, launch, env)?;
            after(i)?;
        }
        Ok(())
    }

    /// Runs a step whose logits alone are wanted, as a graph from the second time on.
    fn run_recorded(&mut self, phase: Phase, env: &Env) -> Result<(), DeviceError> {
        let key = (env.n_tokens, env.n_out_rows);
        if matches!(self.graphs.get(&key), Some(Seen::Once)) {
            let schedule = schedule(&self.manifest, phase, &self.target)?;
            let mut failed = None;
            let recorded = self.gpu.capture(|| {
                self.run_launches(schedule, env, |_| Ok(())).map_err(|e| {
                    let message = e.to_string();
                    failed = Some(e);
                    CudaError::Driver { doing: "record a step".into(), message }
                })
            });
            let graph = recorded.map_err(|e| failed.unwrap_or_else(|| failure(e)))?;
            self.graphs.insert(key, Seen::Recorded(graph));
        }
        if let Some(Seen::Recorded(graph)) = self.graphs.get(&key) {
            let _range = self.marks.range(|| format!("{} {} rows, a graph", phase.name(), env.n_tokens));
            return self.gpu.replay(graph).map_err(failure);
        }
        if self.graphs.len() >= MAX_GRAPHS {
            self.graphs.clear();
        }
        self.graphs.insert(key, Seen::Once);
        self.run_launches(schedule(&self.manifest, phase, &self.target)?, env, |_| Ok(()))
    }

    fn read_probe(&self, schedule: &ScheduleEntry, probe: &ProbeEntry, env: &Env) -> Result<ProbeValue, DeviceError> {
        let buffer = &schedule.buffers[probe.buffer as usize];
        let n = tensor_type(buffer.dtype, &buffer.shape).bytes().eval(env) as usize;
        let bytes = self.gpu.read_first(&self.slots[buffer.slot as usize], n).map_err(|e| self.late(schedule, e))?;
        let shape = buffer.shape.iter().map(|e| e.eval(env) as usize).collect();
        Ok(ProbeValue { name: probe.name.clone(), layer: probe.layer, dtype: buffer.dtype, shape, bytes })
    }

    /// A failure that the driver tells after the launches, of one of them.
    fn late(&self, schedule: &ScheduleEntry, e: CudaError) -> DeviceError {
        let phase = schedule.phase.name();
        match e {
            CudaError::Driver { message, .. } if !self.options.check_launches => DeviceError::Machine(format!(
                "a kernel of the {phase} step failed: {message}; --check-launches tells which"
            )),
            e => failure(e),
        }
    }
}

/// Makes a buffer at least this large, and says whether it moved. Contents are lost then.
fn grow(gpu: &device::Device, buffer: &mut Buffer, bytes: usize) -> Result<bool, DeviceError> {
    if buffer.len() >= bytes {
        return Ok(false);
    }
    *buffer = gpu.zeros(bytes).map_err(failure)?;
    Ok(true)
}

/// Whether a probe's buffer still holds it when the step is over: no later launch has the same slot.
fn survives(schedule: &ScheduleEntry, probe: &ProbeEntry) -> bool {
    let slot = |b: u32| schedule.buffers[b as usize].slot;
    let later = schedule.launches.iter().skip(probe.after as usize + 1);
    let mut buffers = later.flat_map(|l| &l.args).filter_map(|a| match a {
        Arg::Buffer(b) if *b != probe.buffer => Some(slot(*b)),
        _ => None,
    });
    !buffers.any(|s| s == slot(probe.buffer))
}

/// Whether a weight is a table of packed rows, of which a step reads few.
fn is_table(w: &Weight) -> bool {
    matches!(w.dtype, DType::Packed(_))
}

/// All weights: random ones are made where they live, others are packed one at a time and copied there.
fn load_weights(
    gpu: &device::Device,
    manifest: &Manifest,
    store: &mut WeightStore,
    memory: EngramMemory,
) -> Result<Vec<Buffer>, DeviceError> {
    let on_host = match memory {
        EngramMemory::Device => false,
        EngramMemory::Host => true,
        EngramMemory::Auto => {
            let (free, _) = gpu.memory().map_err(failure)?;
            let all: u64 = manifest.weights.iter().map(weight_bytes).fold(0, u64::saturating_add);
            all as f64 > free as f64 * FILLED
        }
    };
    let filler = Filler::new(gpu).map_err(failure)?;
    let mut weights = Vec::with_capacity(manifest.weights.len());
    for w in &manifest.weights {
        let bytes = weight_bytes(w) as usize;
        let table = on_host && is_table(w);
        let mut buffer = if table { gpu.host(bytes) } else { gpu.zeros(bytes) }.map_err(failure)?;
        match store.fill(w) {
            Some(fill) => filler.start(gpu, &fill, &buffer).map_err(failure)?,
            None => gpu.write(&mut buffer, store.load(w)?.as_ref()).map_err(failure)?,
        }
        weights.push(buffer);
    }
    gpu.wait("make the weights").map_err(failure)?;
    Ok(weights)
}

/// The schedule of a phase that was made for this target, or the first.
fn schedule<'m>(manifest: &'m Manifest, phase: Phase, target: &str) -> Result<&'m ScheduleEntry, DeviceError> {
    let own = manifest.schedules.iter().find(|s| s.phase == phase && s.target == target);
    own.map_or_else(|| executor::schedule(manifest, phase), Ok)
}

fn load(gpu: &device::Device, bundle: &Bundle, index: usize, target: &str) -> Result<Ready, DeviceError> {
    let entry = &bundle.manifest.kernels[index];
    let code: &GpuCode = entry.gpu.get(target).ok_or_else(|| {
        DeviceError::Unsupported(format!("kernel `{}` has no code for {target} in this bundle", entry.name))
    })?;
    let bytes = |file: &str| bundle.bytes(file).map_err(|e| DeviceError::Unsupported(e.to_string()));
    // Machine code where it is there and fits; the driver compiles the PTX otherwise.
    let loaded = match &code.cubin {
        Some(file) => gpu.load(bytes(file)?, &code.symbol).ok(),
        None => None,
    };
    let kernel = match loaded {
        Some(kernel) => kernel,
        None => gpu.load(bytes(&code.ptx)?, &code.symbol).map_err(|e| match failure(e) {
            DeviceError::Kernel { reason, .. } => DeviceError::Kernel { kernel: entry.name.clone(), reason },
            other => other,
        })?,
    };
    let smem_bytes = u32::try_from(code.smem_dynamic_bytes).unwrap_or(u32::MAX);
    Ok(Ready { kernel, grid: code.grid.clone(), threads: code.threads, smem_bytes })
}

impl Device for CudaDevice {
    fn run_step(&mut self, phase: Phase, input: &StepInput<'_>) -> Result<StepOutput, DeviceError> {
        let (env, _) = self.begin_step(phase, input)?;
        self.begun = None;
        let mut output = StepOutput::default();
        let entry = schedule(&self.manifest, phase, &self.target)?;
        let logits = entry.probes.iter().find(|p| p.name == executor::LOGITS);
        let plain = !input.probes && logits.is_none_or(|p| survives(entry, p));
        if plain && self.options.graphs && !self.options.check_launches && phase == Phase::Decode {
            self.run_recorded(phase, &env)?;
            let schedule = schedule(&self.manifest, phase, &self.target)?;
            if let Some(probe) = schedule.probes.iter().find(|p| p.name == executor::LOGITS) {
                output.push(self.read_probe(schedule, probe, &env)?);
            }
        } else {
            self.run_launches(entry, &env, |i| {
                for probe in entry.probes.iter().filter(|p| p.after as usize == i) {
                    if input.probes || probe.name == executor::LOGITS {
                        output.push(self.read_probe(entry, probe, &env)?);
                    }
                }
                Ok(())
            })?;
        }
        let schedule = schedule(&self.manifest, phase, &self.target)?;
        self.gpu.wait("run a step").map_err(|e| self.late(schedule, e))?;
        Ok(output)
    }

    fn begin_step(&mut self, phase: Phase, input: &StepInput<'_>) -> Result<(Env, Vec<LaunchEntry>), DeviceError> {
        input.check(phase, &self.manifest.model, self.capacity)?;
        let env = input.env(self.capacity);
        self.prepare(phase, input, &env)?;
        self.begun = Some((phase, env));
        Ok((env, schedule(&self.manifest, phase, &self.target)?.launches.clone()))
    }

    fn read_arg(&mut self, launch: usize, arg: usize) -> Result<Bytes, DeviceError> {
        let (schedule, launch, env) = self.launch_of(launch)?;
        let bytes = executor::arg_bytes(&self.manifest, launch, arg, &env)? as usize;
        let buffer = self.buffer(schedule, &launch.args[arg]);
        let contents = self.gpu.read_first(buffer, bytes).map_err(|e| self.late(schedule, e))?;
        Ok(Bytes::copy_of(&contents)?)
    }

    fn run_launch(&mut self, launch: usize) -> Result<(), DeviceError> {
        let (schedule, launch, env) = self.launch_of(launch)?;
        self.launch(schedule, launch, &env)?;
        self.gpu.wait("run a kernel").map_err(|e| DeviceError::Kernel {
            kernel: self.manifest.kernels[launch.kernel as usize].name.clone(),
            reason: e.to_string(),
        })
    }
}

impl CudaDevice {
    fn launch_of(&self, launch: usize) -> Result<(&ScheduleEntry, &LaunchEntry, Env), DeviceError> {
        let of = |phase| schedule(&self.manifest, phase, &self.target);
        let (schedule, launch) = executor::begun(self.begun.map(|b| b.0), launch, of)?;
        let env = self.begun.map(|b| b.1);
        Ok((schedule, launch, env.ok_or_else(|| DeviceError::Step("no step was begun".into()))?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dsc_ir::manifest::BufferEntry;

    #[test]
    fn a_probe_survives_until_its_slot_is_used_again() {
        let buffer = |slot| BufferEntry { name: "b".into(), layer: None, dtype: DType::F32, shape: vec![], slot };
        let launch = |b| LaunchEntry { kernel: 0, args: vec![Arg::Buffer(b)], layer: None };
        let probe = ProbeEntry { name: "logits".into(), layer: None, buffer: 1, after: 1 };
        let schedule = |last| ScheduleEntry {
            phase: Phase::Decode,
            target: "sm_80".into(),
            buffers: vec![buffer(0), buffer(1), buffer(1)],
            launches: vec![launch(2), launch(1), launch(last)],
            probes: vec![probe.clone()],
        };
        assert!(survives(&schedule(0), &probe) && survives(&schedule(1), &probe));
        assert!(!survives(&schedule(2), &probe));
    }
}
