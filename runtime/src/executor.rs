//! What a device does for a model: run the launches of a step on the states it keeps.
//!
//! Both devices share this door and the checks behind it; how a launch runs is each device's own.

use crate::bundle::Bundle;
use crate::memory::{Bytes, OutOfMemory};
use crate::weights::{WeightError, WeightStore};
use dsc_ir::dtype::DType;
use dsc_ir::expr::Env;
use dsc_ir::manifest::{LaunchEntry, Manifest, Model, ScheduleEntry, tensor_type};
use dsc_ir::op::step;
use dsc_ir::schedule::Phase;

/// Why a device could not be set up or could not run.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The bundle does not suit the device or the request.
    #[error("{0}")]
    Unsupported(String),
    /// A step that does not suit the model.
    #[error("{0}")]
    Step(String),
    /// A kernel's code cannot be used.
    #[error("kernel `{kernel}`: {reason}")]
    Kernel {
        /// Name.
        kernel: String,
        /// What is wrong with its code.
        reason: String,
    },
    /// A weight.
    #[error(transparent)]
    Weight(#[from] WeightError),
    /// The machine: driver, memory, threads.
    #[error("{0}")]
    Machine(String),
    /// Memory.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
}

impl DeviceError {
    /// Exit code of a command that fails with it.
    pub fn exit_code(&self) -> u8 {
        match self {
            DeviceError::Unsupported(_) | DeviceError::Step(_) | DeviceError::Kernel { .. } => 2,
            DeviceError::Weight(e) => e.exit_code(),
            DeviceError::Machine(_) | DeviceError::Memory(_) => 3,
        }
    }
}

/// Sizes that hold for a device's lifetime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Sequences with state.
    pub n_seqs: u64,
    /// Positions of each.
    pub n_context: u64,
}

/// How a GPU is used. The CPU has no use for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuOptions {
    /// Whether a decode step that comes again is recorded as a graph and replayed.
    pub graphs: bool,
    /// Wait after every launch, so that a failure is put down to the right kernel.
    pub check_launches: bool,
    /// Take the code for this target, not the best that the device runs.
    pub target: Option<String>,
    /// Where tables of packed rows (the n-gram memory) live.
    pub engram_memory: EngramMemory,
}

impl Default for GpuOptions {
    fn default() -> GpuOptions {
        GpuOptions { graphs: true, check_launches: false, target: None, engram_memory: EngramMemory::Auto }
    }
}

/// Where tables of packed rows live that a step reads few rows of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngramMemory {
    /// On the device where they fit beside everything else, on the host otherwise.
    Auto,
    /// In the GPU's memory.
    Device,
    /// In page-locked memory of the host, which kernels read over the bus.
    Host,
}

/// One step: rows of tokens and which of them need logits.
#[derive(Debug, Clone, Copy)]
pub struct StepInput<'a> {
    /// Step table `[n_tokens, 8]`, columns as in [`dsc_ir::op::step`].
    pub step: &'a [i32],
    /// Rows that go through the layers after the last source, ascending, where prefill replays only the end of each
    /// prompt: the last rows of some sequences of the step. Empty otherwise.
    pub tail_rows: &'a [i32],
    /// Rows whose logits are wanted, ascending: of the step, or of `tail_rows` where prefill replays those alone.
    pub out_rows: &'a [i32],
    /// Whether probes other than the logits are read as well.
    pub probes: bool,
}

impl StepInput<'_> {
    /// Rows of the step.
    pub fn n_tokens(&self) -> usize {
        self.step.len() / step::COLUMNS as usize
    }

    /// Sizes of the step's launches.
    pub fn env(&self, capacity: Capacity) -> Env {
        Env {
            n_tokens: self.n_tokens() as u64,
            n_seqs: capacity.n_seqs,
            n_context: capacity.n_context,
            n_out_rows: self.out_rows.len() as u64,
            n_tail_rows: self.tail_rows.len() as u64,
        }
    }

    /// The step table of the tail's rows: each sequence's rows start with the first of them, the floor of its window.
    pub fn tail_step(&self) -> Vec<i32> {
        let columns = step::COLUMNS as usize;
        let mut table: Vec<i32> = Vec::with_capacity(self.tail_rows.len() * columns);
        for t in self.tail_rows {
            let Some(row) = self.step.chunks_exact(columns).nth(usize::try_from(*t).unwrap_or(usize::MAX)) else {
                continue;
            };
            let before = table.len().checked_sub(columns).and_then(|at| table.get(at..));
            let same = before.filter(|b| b[step::SEQ as usize] == row[step::SEQ as usize]);
            let (start, row0) = match same {
                Some(b) => (b[step::START as usize], b[step::ROW0 as usize]),
                None => (row[step::POS as usize], (table.len() / columns) as i32),
            };
            let mut row = row.to_vec();
            row[step::START as usize] = start;
            row[step::ROW0 as usize] = row0;
            row[step::FLOOR as usize] = start;
            table.extend(row);
        }
        table
    }

    /// Refuses a step that would read or write outside of states or tables.
    ///
    /// # Errors
    /// Names the row and what is wrong with it.
    pub fn check(&self, phase: Phase, model: &Model, capacity: Capacity) -> Result<(), DeviceError> {
        let columns = step::COLUMNS as usize;
        let n = self.n_tokens();
        let fail = |message: String| Err(DeviceError::Step(message));
        if n == 0 || !self.step.len().is_multiple_of(columns) {
            return fail(format!("a step table of {} cells has no whole rows", self.step.len()));
        }
        for (t, row) in self.step.chunks_exact(columns).enumerate() {
            let at = |c: u64| u64::try_from(row[c as usize]).unwrap_or(u64::MAX);
            let (pos, start, end, row0) = (at(step::POS), at(step::START), at(step::END), at(step::ROW0));
            if at(step::ID) >= model.vocab_size {
                let (id, all) = (row[step::ID as usize], model.vocab_size);
                return fail(format!("token id {id} is outside the vocabulary of {all}"));
            }
            if at(step::SEQ) >= capacity.n_seqs {
                return fail(format!("row {t} is of sequence {}, there are {}", at(step::SEQ), capacity.n_seqs));
            }
            if end > capacity.n_context {
                return fail(format!("row {t} needs {end} positions, there are {}", capacity.n_context));
            }
            let in_run = start <= pos && pos < end && row0.checked_add(pos.wrapping_sub(start)) == Some(t as u64);
            if !in_run || row0 + (end - start) > n as u64 {
                return fail(format!("row {t} is not in its sequence's run of positions"));
            }
            if at(step::FLOOR) > start {
                return fail(format!("the window of row {t} starts inside of its step"));
            }
            if phase == Phase::Decode && end - start > dsc_ir::schedule::MAX_DECODE_ROWS {
                return fail(format!("a decode step has {} rows of one sequence", end - start));
            }
        }
        let replays = phase == Phase::Prefill && model.prefill_tail.is_some();
        let n = if replays { self.check_tail()? } else { n };
        if !replays && !self.tail_rows.is_empty() {
            return fail("this phase has no rows of its own for the layers after the last source".into());
        }
        match self.out_rows.iter().find(|r| usize::try_from(**r).map_or(true, |r| r >= n)) {
            Some(r) => fail(format!("logits of row {r} are asked for, there are {n}")),
            None => Ok(()),
        }
    }

    /// Refuses a tail whose rows are not the last of their sequences; the number of its rows.
    fn check_tail(&self) -> Result<usize, DeviceError> {
        let cells: Vec<&[i32]> = self.step.chunks_exact(step::COLUMNS as usize).collect();
        for (i, t) in self.tail_rows.iter().enumerate() {
            let row = usize::try_from(*t).ok().and_then(|t| cells.get(t));
            let Some(row) = row else {
                return Err(DeviceError::Step(format!("row {t} is to be replayed, the step has {}", cells.len())));
            };
            if i > 0 && self.tail_rows[i - 1] >= *t {
                return Err(DeviceError::Step(format!(
                    "row {t} is to be replayed after row {}",
                    self.tail_rows[i - 1]
                )));
            }
            let ends = row[step::POS as usize] + 1 == row[step::END as usize];
            if !ends && self.tail_rows.get(i + 1) != Some(&(t + 1)) {
                return Err(DeviceError::Step(format!("row {t} is to be replayed, but not the next of its sequence")));
            }
        }
        Ok(self.tail_rows.len())
    }
}

/// A value that was read out of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeValue {
    /// Its name: `logits`, `topk`, `moe_experts`, `engram_rows`.
    pub name: String,
    /// Layer.
    pub layer: Option<u32>,
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub shape: Vec<usize>,
    /// Contents as stored.
    pub bytes: Vec<u8>,
}

impl ProbeValue {
    /// Contents as integers.
    pub fn ints(&self) -> Vec<i32> {
        self.bytes.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    /// Contents as floats.
    pub fn floats(&self) -> Vec<f32> {
        match self.dtype {
            DType::Bf16 => {
                self.bytes.chunks_exact(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
            }
            _ => self.bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        }
    }
}

/// What a step gives.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepOutput {
    /// Logits `[out_rows, vocab_size]`.
    pub logits: Vec<f32>,
    /// Other probes in the schedule's order, where they were asked for.
    pub probes: Vec<ProbeValue>,
}

impl StepOutput {
    /// Puts a probe where it belongs.
    pub fn push(&mut self, value: ProbeValue) {
        if value.name == LOGITS {
            self.logits = value.floats();
        } else {
            self.probes.push(value);
        }
    }
}

/// Name of the probe that every schedule has.
pub const LOGITS: &str = "logits";

/// A device with a model's weights and states on it.
///
/// [`Device::run_step`] is the ordinary way. The other three run a step launch by launch, so that a caller can look at
/// what each launch reads and writes.
pub trait Device: Send {
    /// Runs one step. States advance; everything else of a step is gone after it.
    ///
    /// # Errors
    /// A step that does not fit, or a device that fails.
    fn run_step(&mut self, phase: Phase, input: &StepInput<'_>) -> Result<StepOutput, DeviceError>;

    /// Makes a step ready to be run launch by launch, and says which launches it has.
    ///
    /// # Errors
    /// A step that does not fit, or a device that fails.
    fn begin_step(&mut self, phase: Phase, input: &StepInput<'_>) -> Result<(Env, Vec<LaunchEntry>), DeviceError>;

    /// Contents of one argument of a launch of the step that was begun, as they are now.
    ///
    /// # Errors
    /// No such argument, no step, or a device that fails.
    fn read_arg(&mut self, launch: usize, arg: usize) -> Result<Bytes, DeviceError>;

    /// Runs one launch of the step that was begun. States advance when the launches run that write them.
    ///
    /// # Errors
    /// No such launch, no step, or a device that fails.
    fn run_launch(&mut self, launch: usize) -> Result<(), DeviceError>;
}

/// The step that was begun, and the launch of it.
pub(crate) fn begun<'s>(
    begun: Option<Phase>,
    launch: usize,
    schedule: impl Fn(Phase) -> Result<&'s ScheduleEntry, DeviceError>,
) -> Result<(&'s ScheduleEntry, &'s LaunchEntry), DeviceError> {
    let phase = begun.ok_or_else(|| DeviceError::Step("no step was begun".into()))?;
    let schedule = schedule(phase)?;
    let launch = schedule.launches.get(launch);
    let launch = launch.ok_or_else(|| DeviceError::Step(format!("the step has {} launches", schedule.launches.len())));
    Ok((schedule, launch?))
}

/// Bytes of each parameter of a launch.
pub(crate) fn arg_bytes(manifest: &Manifest, launch: &LaunchEntry, arg: usize, env: &Env) -> Result<u64, DeviceError> {
    let entry = &manifest.kernels[launch.kernel as usize];
    let p = entry.params.get(arg);
    let p = p.ok_or_else(|| DeviceError::Step(format!("`{}` has {} parameters", entry.name, entry.params.len())))?;
    Ok(tensor_type(p.dtype, &p.shape).bytes().eval(env))
}

/// A device by name: `cpu`, `cuda:N`.
///
/// # Errors
/// An unknown name, a bundle that the device cannot run, weights that do not fit it.
pub fn open(
    name: &str,
    bundle: &Bundle,
    weights: &mut WeightStore,
    capacity: Capacity,
    threads: usize,
    options: &GpuOptions,
) -> Result<Box<dyn Device>, DeviceError> {
    match name {
        "cpu" => Ok(Box::new(crate::cpu::CpuDevice::new(bundle, weights, capacity, threads)?)),
        _ => match name.strip_prefix("cuda:").or((name == "cuda").then_some("0")).map(str::parse) {
            Some(Ok(ordinal)) => {
                one_rank(&bundle.manifest)?;
                gpu(bundle, weights, capacity, ordinal, options)
            }
            _ => Err(DeviceError::Unsupported(format!("there is no device `{name}`; there are `cpu` and `cuda:N`"))),
        },
    }
}

#[cfg(feature = "cuda")]
fn gpu(
    bundle: &Bundle,
    weights: &mut WeightStore,
    capacity: Capacity,
    ordinal: usize,
    options: &GpuOptions,
) -> Result<Box<dyn Device>, DeviceError> {
    Ok(Box::new(crate::cuda::model::CudaDevice::new(bundle, weights, capacity, ordinal, options)?))
}

#[cfg(not(feature = "cuda"))]
fn gpu(
    _: &Bundle,
    _: &mut WeightStore,
    _: Capacity,
    ordinal: usize,
    _: &GpuOptions,
) -> Result<Box<dyn Device>, DeviceError> {
    Err(DeviceError::Machine(format!("this program was built without the feature `cuda`, so not for cuda:{ordinal}")))
}

/// Refuses bundles whose shapes are for one of several ranks: a GPU runs a whole model.
///
/// # Errors
/// The bundle was built for more than one.
pub fn one_rank(manifest: &Manifest) -> Result<(), DeviceError> {
    match manifest.model.tp.max(manifest.model.ep) {
        0 | 1 => Ok(()),
        ranks => Err(DeviceError::Unsupported(format!(
            "this bundle needs {ranks} ranks (tp {}, ep {}), which only the CPU runs yet, one after another; for a GPU, build \
             it without them",
            manifest.model.tp, manifest.model.ep
        ))),
    }
}

/// The schedule of a phase: of the first target that has one.
///
/// # Errors
/// The bundle has none.
pub fn schedule(manifest: &Manifest, phase: Phase) -> Result<&ScheduleEntry, DeviceError> {
    let found = manifest.schedules.iter().find(|s| s.phase == phase);
    found.ok_or_else(|| DeviceError::Unsupported(format!("this bundle has no {} schedule", phase.name())))
}

/// Bytes of each slot of a schedule: of the largest buffer that lives in it.
pub fn slot_bytes(schedule: &ScheduleEntry, env: &Env) -> Vec<u64> {
    let n = schedule.buffers.iter().map(|b| b.slot as usize + 1).max().unwrap_or(0);
    let mut bytes = vec![0; n];
    for b in &schedule.buffers {
        let slot: &mut u64 = &mut bytes[b.slot as usize];
        *slot = (*slot).max(tensor_type(b.dtype, &b.shape).bytes().eval(env));
    }
    bytes
}
