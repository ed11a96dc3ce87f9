//! The CPU device: kernels compiled from CLIF, run over their rows by a pool of threads.
//!
//! Kernels are code of a verified bundle and run unchecked; what they are given is checked here and in
//! [`StepInput::check`]: every pointer leads to memory of at least its parameter's size.

mod jit;
mod lent;
mod ranks;

use crate::bundle::Bundle;
use crate::executor::{self, Capacity, Device, DeviceError, ProbeValue, StepInput, StepOutput};
use crate::memory::Bytes;
use crate::weights::WeightStore;
use dsc_ir::expr::{Env, Expr};
use dsc_ir::manifest::{CpuCode, KernelEntry, LaunchEntry, Manifest, ProbeEntry, ScheduleEntry, tensor_type};
use dsc_ir::schedule::{Arg, Phase};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::sync::Mutex;

/// Pieces of work per thread: more even out unequal rows, fewer cost less.
const PIECES_PER_THREAD: u64 = 4;

/// A kernel that is ready to be called.
#[derive(Clone)]
struct Ready {
    entry: jit::Entry,
    rows: Expr,
    row_block: u64,
}

/// Kernels of a bundle compiled for this machine, with threads to run them.
pub struct Kernels {
    ready: Vec<Option<Ready>>,
    pool: ThreadPool,
    scratch: Vec<Mutex<Bytes>>,
    // Holds the machine code that `ready` points into.
    _code: jit::Code,
}

/// Addresses of a launch's parameters.
struct Pointers(Vec<*mut u8>);

// SAFETY: threads that share a launch write disjoint rows; what they read is complete before the launch.
#[allow(unsafe_code)] // sharing kernel memory between threads
unsafe impl Sync for Pointers {}

impl Kernels {
    /// Compiles the kernels that `wanted` says.
    ///
    /// # Errors
    /// Code that does not parse, verify or keep to the calling convention; no threads; no memory.
    pub fn compile(bundle: &Bundle, threads: usize, wanted: impl Fn(usize) -> bool) -> Result<Kernels, DeviceError> {
        let kernels = &bundle.manifest.kernels;
        let code_of = |(i, k): (usize, &'_ KernelEntry)| k.cpu.clone().filter(|_| wanted(i));
        let codes: Vec<Option<CpuCode>> = kernels.iter().enumerate().map(code_of).collect();
        let pool = ThreadPoolBuilder::new().num_threads(threads).build();
        let pool = pool.map_err(|e| DeviceError::Machine(format!("cannot start {threads} threads: {e}")))?;
        let present: Vec<&CpuCode> = codes.iter().flatten().collect();
        let code = pool.install(|| jit::compile(bundle, &present)).map_err(|e| {
            let named = kernels.iter().find(|k| k.cpu.as_ref().is_some_and(|c| c.symbol == e.symbol));
            DeviceError::Kernel { kernel: named.map_or(e.symbol, |k| k.name.clone()), reason: e.reason }
        })?;
        let scratch_bytes = present.iter().map(|c| c.scratch_bytes).max().unwrap_or(0).max(64);
        let scratch = (0..pool.current_num_threads().max(1))
            .map(|_| Bytes::zeroed(scratch_bytes).map(Mutex::new))
            .collect::<Result<_, _>>()?;
        let ready = |(k, c): (&KernelEntry, &Option<CpuCode>)| {
            let c = c.as_ref()?;
            Some(Ready { entry: code.entry(&c.symbol)?, rows: k.rows.clone(), row_block: c.row_block.max(1) })
        };
        let ready = kernels.iter().zip(&codes).map(ready).collect();
        Ok(Kernels { ready, pool, scratch, _code: code })
    }

    /// Whether a kernel was compiled.
    pub fn has(&self, kernel: usize) -> bool {
        self.ready.get(kernel).is_some_and(Option::is_some)
    }

    /// Runs all rows of a kernel.
    ///
    /// Every pointer must lead to memory of its parameter's size in this environment, with no other users.
    fn launch(&self, kernel: usize, pointers: &Pointers, env: &Env) -> Result<(), DeviceError> {
        let Some(Some(ready)) = self.ready.get(kernel) else {
            return Err(DeviceError::Unsupported(format!("kernel {kernel} has no CPU code")));
        };
        let dims = env.dims().map(|d| i64::try_from(d).unwrap_or(0));
        let rows = ready.rows.eval(env);
        let call = |begin: u64, end: u64| {
            let thread = rayon::current_thread_index().unwrap_or(0).min(self.scratch.len() - 1);
            // A lock is only ever contended when the caller is no thread of the pool.
            let mut scratch = self.scratch[thread].lock().unwrap_or_else(|e| e.into_inner());
            let params = &pointers.0;
            (ready.entry)(params.as_ptr(), dims.as_ptr(), begin as i64, end as i64, scratch.as_mut_ptr());
        };
        let pieces = self.pool.current_num_threads() as u64 * PIECES_PER_THREAD;
        let piece = rows.div_ceil(pieces.max(1)).next_multiple_of(ready.row_block);
        if rows == 0 {
            return Ok(());
        }
        if piece >= rows || self.pool.current_num_threads() == 1 {
            call(0, rows);
        } else {
            let n = rows.div_ceil(piece);
            (0..n).into_par_iter().for_each(|i| call(i * piece, (i * piece + piece).min(rows)));
        }
        Ok(())
    }

    /// Runs a kernel on memory of its own, one block per parameter.
    ///
    /// # Errors
    /// No CPU code, or a block that is smaller than its parameter.
    pub fn call(&self, entry: &KernelEntry, kernel: usize, blocks: &mut [Bytes], env: &Env) -> Result<(), DeviceError> {
        if blocks.len() != entry.params.len() {
            return Err(DeviceError::Unsupported(format!("`{}` has {} parameters", entry.name, entry.params.len())));
        }
        for (p, b) in entry.params.iter().zip(&*blocks) {
            let need = tensor_type(p.dtype, &p.shape).bytes().eval(env);
            if (b.len() as u64) < need {
                return Err(DeviceError::Unsupported(format!("`{}` needs {need} bytes for `{}`", entry.name, p.name)));
            }
        }
        let pointers = Pointers(blocks.iter_mut().map(Bytes::as_mut_ptr).collect());
        self.pool.install(|| self.launch(kernel, &pointers, env))
    }
}

/// A model on the CPU: all of its ranks, which run in turn.
pub struct CpuDevice {
    kernels: Kernels,
    manifest: Manifest,
    capacity: Capacity,
    /// By kernel: ranks that a sum between ranks adds up.
    sums: Vec<Option<usize>>,
    ranks: Vec<Rank>,
    begun: Option<Begun>,
}

/// What one rank of the model holds.
struct Rank {
    weights: Vec<Bytes>,
    states: Vec<Bytes>,
    slots: Vec<Bytes>,
}

impl CpuDevice {
    /// Compiles a bundle's kernels, packs the weights and makes room for states.
    ///
    /// # Errors
    /// A kernel without CPU code, unsuitable weights, too little memory.
    pub fn new(
        bundle: &Bundle,
        store: &mut WeightStore,
        capacity: Capacity,
        threads: usize,
    ) -> Result<CpuDevice, DeviceError> {
        let manifest = bundle.manifest.clone();
        let used = used_kernels(&manifest);
        let sums = ranks::groups(bundle)?;
        let lacks_code = |(i, k): &(usize, &KernelEntry)| used[*i] && k.cpu.is_none() && sums[*i].is_none();
        if let Some((_, k)) = manifest.kernels.iter().enumerate().find(lacks_code) {
            return Err(DeviceError::Unsupported(format!("kernel `{}` has no CPU code in this bundle", k.name)));
        }
        let kernels = Kernels::compile(bundle, threads, |i| used[i])?;
        let env =
            Env { n_tokens: 0, n_seqs: capacity.n_seqs, n_context: capacity.n_context, n_out_rows: 0, n_tail_rows: 0 };
        let state = |s: &dsc_ir::manifest::State| Bytes::zeroed(tensor_type(s.dtype, &s.shape).bytes().eval(&env));
        let n_ranks = manifest.model.tp.max(manifest.model.ep).max(1);
        let mut all = Vec::new();
        for rank in 0..n_ranks {
            let weights = manifest.weights.iter().map(|w| store.load_rank(w, rank)).collect::<Result<_, _>>()?;
            let states = manifest.states.iter().map(state).collect::<Result<_, _>>()?;
            all.push(Rank { weights, states, slots: Vec::new() });
        }
        Ok(CpuDevice { kernels, manifest, capacity, sums, ranks: all, begun: None })
    }

    /// Makes every slot at least as large as this step needs.
    fn reserve(&mut self, phase: Phase, env: &Env) -> Result<(), DeviceError> {
        let bytes = executor::slot_bytes(executor::schedule(&self.manifest, phase)?, env);
        for slots in self.ranks.iter_mut().map(|r| &mut r.slots) {
            for (i, need) in bytes.iter().enumerate() {
                match slots.get_mut(i) {
                    Some(slot) if slot.len() as u64 >= *need => {}
                    Some(slot) => *slot = Bytes::zeroed(*need)?,
                    None => slots.push(Bytes::zeroed(*need)?),
                }
            }
        }
        Ok(())
    }
}

impl Rank {
    /// Where the launches of this rank find their operands.
    fn bind(&mut self, schedule: &ScheduleEntry, inputs: &mut Inputs) -> Bindings {
        let slots: Vec<*mut u8> = self.slots.iter_mut().map(Bytes::as_mut_ptr).collect();
        Bindings {
            buffers: schedule.buffers.iter().map(|b| slots[b.slot as usize]).collect(),
            weights: self.weights.iter_mut().map(Bytes::as_mut_ptr).collect(),
            states: self.states.iter_mut().map(Bytes::as_mut_ptr).collect(),
            step: inputs.step.as_mut_ptr(),
            out_rows: inputs.out_rows.as_mut_ptr(),
            tail_rows: inputs.tail_rows.as_mut_ptr(),
            tail_step: inputs.tail_step.as_mut_ptr(),
        }
    }
}

/// Inputs of a step, which all ranks read.
struct Inputs {
    step: Bytes,
    out_rows: Bytes,
    tail_rows: Bytes,
    tail_step: Bytes,
}

impl Inputs {
    fn new(input: &StepInput<'_>) -> Result<Inputs, DeviceError> {
        let copy = |cells: &[i32]| Bytes::copy_of(bytemuck::cast_slice(cells));
        Ok(Inputs {
            step: copy(input.step)?,
            out_rows: copy(input.out_rows)?,
            tail_rows: copy(input.tail_rows)?,
            tail_step: copy(&input.tail_step())?,
        })
    }

    fn get_mut(&mut self, name: &str) -> &mut Bytes {
        match name {
            "out_rows" => &mut self.out_rows,
            "tail_rows" => &mut self.tail_rows,
            "tail_step" => &mut self.tail_step,
            _ => &mut self.step,
        }
    }
}

/// A step that is run launch by launch.
struct Begun {
    phase: Phase,
    env: Env,
    inputs: Inputs,
}

/// Which kernels the schedules that would run have launches of.
fn used_kernels(manifest: &Manifest) -> Vec<bool> {
    let mut used = vec![false; manifest.kernels.len()];
    for schedule in Phase::ALL.iter().filter_map(|p| executor::schedule(manifest, *p).ok()) {
        for launch in &schedule.launches {
            used[launch.kernel as usize] = true;
        }
    }
    used
}

/// Addresses of everything that launches are bound to.
struct Bindings {
    buffers: Vec<*mut u8>,
    weights: Vec<*mut u8>,
    states: Vec<*mut u8>,
    step: *mut u8,
    out_rows: *mut u8,
    tail_rows: *mut u8,
    tail_step: *mut u8,
}

impl Bindings {
    fn pointers(&self, args: &[Arg]) -> Pointers {
        let of = |a: &Arg| match a {
            Arg::Buffer(i) => self.buffers[*i as usize],
            Arg::Weight(i) => self.weights[*i as usize],
            Arg::State(i) => self.states[*i as usize],
            Arg::Input(name) => match name.as_str() {
                "out_rows" => self.out_rows,
                "tail_rows" => self.tail_rows,
                "tail_step" => self.tail_step,
                _ => self.step,
            },
        };
        Pointers(args.iter().map(of).collect())
    }
}

// SAFETY: as for `Pointers`: the addresses lead to memory that one step at a time uses.
#[allow(unsafe_code)] // sharing kernel memory between threads
unsafe impl Sync for Bindings {}
#[allow(unsafe_code)] // as above
unsafe impl Send for Bindings {}

impl CpuDevice {
    fn launch_of(&self, launch: usize) -> Result<(&ScheduleEntry, &LaunchEntry), DeviceError> {
        let phase = self.begun.as_ref().map(|b| b.phase);
        executor::begun(phase, launch, |phase| executor::schedule(&self.manifest, phase))
    }

    /// The one rank of a step that is run launch by launch.
    fn only_rank(&mut self) -> Result<&mut Rank, DeviceError> {
        match &mut self.ranks[..] {
            [rank] => Ok(rank),
            ranks => Err(DeviceError::Unsupported(format!(
                "a step runs launch by launch on a single rank, this bundle has {}; build it without tp and ep",
                ranks.len()
            ))),
        }
    }
}

impl Device for CpuDevice {
    fn run_step(&mut self, phase: Phase, input: &StepInput<'_>) -> Result<StepOutput, DeviceError> {
        input.check(phase, &self.manifest.model, self.capacity)?;
        let env = input.env(self.capacity);
        self.reserve(phase, &env)?;
        self.begun = None;
        let mut inputs = Inputs::new(input)?;
        let schedule = executor::schedule(&self.manifest, phase)?;
        let ranks: Vec<Bindings> = self.ranks.iter_mut().map(|r| r.bind(schedule, &mut inputs)).collect();
        let run = Run { kernels: &self.kernels, sums: &self.sums, schedule, ranks: &ranks, env: &env };
        self.kernels.pool.install(|| run.launches(input.probes))
    }

    fn begin_step(&mut self, phase: Phase, input: &StepInput<'_>) -> Result<(Env, Vec<LaunchEntry>), DeviceError> {
        self.only_rank()?;
        input.check(phase, &self.manifest.model, self.capacity)?;
        let env = input.env(self.capacity);
        self.reserve(phase, &env)?;
        self.begun = Some(Begun { phase, env, inputs: Inputs::new(input)? });
        Ok((env, executor::schedule(&self.manifest, phase)?.launches.clone()))
    }

    fn read_arg(&mut self, launch: usize, arg: usize) -> Result<Bytes, DeviceError> {
        let (schedule, launch) = self.launch_of(launch)?;
        let env = self.begun.as_ref().map(|b| b.env).ok_or_else(no_step)?;
        let bytes = executor::arg_bytes(&self.manifest, launch, arg, &env)? as usize;
        let arg = match launch.args[arg].clone() {
            Arg::Buffer(b) => Arg::Buffer(schedule.buffers[b as usize].slot),
            other => other,
        };
        let block = match arg {
            Arg::Buffer(slot) => &mut self.only_rank()?.slots[slot as usize],
            Arg::Weight(w) => &mut self.only_rank()?.weights[w as usize],
            Arg::State(s) => &mut self.only_rank()?.states[s as usize],
            Arg::Input(name) => self.begun.as_mut().ok_or_else(no_step)?.inputs.get_mut(&name),
        };
        Ok(Bytes::copy_of(&block.as_ref()[..bytes])?)
    }

    fn run_launch(&mut self, launch: usize) -> Result<(), DeviceError> {
        let entry = self.launch_of(launch)?.1.clone();
        let mut begun = self.begun.take().ok_or_else(no_step)?;
        let schedule = executor::schedule(&self.manifest, begun.phase)?.clone();
        let bindings = self.only_rank()?.bind(&schedule, &mut begun.inputs);
        let kernels = &self.kernels;
        let pointers = bindings.pointers(&entry.args);
        let ran = kernels.pool.install(|| kernels.launch(entry.kernel as usize, &pointers, &begun.env));
        self.begun = Some(begun);
        ran
    }
}

fn no_step() -> DeviceError {
    DeviceError::Step("no step was begun".into())
}

/// One step under way.
struct Run<'a> {
    kernels: &'a Kernels,
    sums: &'a [Option<usize>],
    schedule: &'a ScheduleEntry,
    ranks: &'a [Bindings],
    env: &'a Env,
}

impl Run<'_> {
    fn launches(&self, probes: bool) -> Result<StepOutput, DeviceError> {
        let mut output = StepOutput::default();
        for (i, launch) in self.schedule.launches.iter().enumerate() {
            match self.sums[launch.kernel as usize] {
                Some(group) => self.sum(launch, group)?,
                None => self.ranks.iter().try_for_each(|rank| {
                    self.kernels.launch(launch.kernel as usize, &rank.pointers(&launch.args), self.env)
                })?,
            }
            for probe in self.schedule.probes.iter().filter(|p| p.after as usize == i) {
                // Values of interest are the same on every rank.
                if let Some(rank) = self.ranks.first().filter(|_| probes || probe.name == executor::LOGITS) {
                    output.push(read_probe(self.schedule, probe, rank, self.env));
                }
            }
        }
        Ok(output)
    }

    /// A sum between the ranks of each group.
    fn sum(&self, launch: &LaunchEntry, group: usize) -> Result<(), DeviceError> {
        let [Arg::Buffer(from), Arg::Buffer(to)] = launch.args[..] else {
            return Err(DeviceError::Unsupported("a sum between ranks takes a buffer to a buffer".into()));
        };
        if !self.ranks.len().is_multiple_of(group) {
            return Err(DeviceError::Unsupported(format!("{} ranks make no groups of {group}", self.ranks.len())));
        }
        let dtype = self.schedule.buffers[from as usize].dtype;
        for members in self.ranks.chunks(group) {
            let parts: Vec<&[u8]> = members.iter().map(|r| r.contents(self.schedule, from, self.env)).collect();
            let total = ranks::sum(&parts, dtype);
            for rank in members {
                rank.fill(self.schedule, to, self.env, &total)?;
            }
        }
        Ok(())
    }
}

impl Bindings {
    fn buffer_bytes(schedule: &ScheduleEntry, buffer: u32, env: &Env) -> usize {
        let b = &schedule.buffers[buffer as usize];
        tensor_type(b.dtype, &b.shape).bytes().eval(env) as usize
    }

    /// What a buffer holds.
    fn contents(&self, schedule: &ScheduleEntry, buffer: u32, env: &Env) -> &[u8] {
        let n = Bindings::buffer_bytes(schedule, buffer, env);
        // SAFETY: the slot has room for each of its buffers in this environment (`reserve`), and no launch is running.
        #[allow(unsafe_code)] // reading kernel memory
        unsafe {
            std::slice::from_raw_parts(self.buffers[buffer as usize].cast_const(), n)
        }
    }

    /// Replaces what a buffer holds.
    fn fill(&self, schedule: &ScheduleEntry, buffer: u32, env: &Env, bytes: &[u8]) -> Result<(), DeviceError> {
        let n = Bindings::buffer_bytes(schedule, buffer, env);
        if n != bytes.len() {
            return Err(DeviceError::Unsupported(format!("a sum of {} bytes for a buffer of {n}", bytes.len())));
        }
        // SAFETY: as for `contents`; nothing refers to the buffer while this runs, since `bytes` is memory of its own.
        #[allow(unsafe_code)] // writing kernel memory
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.buffers[buffer as usize], n);
        }
        Ok(())
    }
}

fn read_probe(schedule: &ScheduleEntry, probe: &ProbeEntry, bindings: &Bindings, env: &Env) -> ProbeValue {
    let buffer = &schedule.buffers[probe.buffer as usize];
    let bytes = bindings.contents(schedule, probe.buffer, env).to_vec();
    let shape = buffer.shape.iter().map(|e| e.eval(env) as usize).collect();
    ProbeValue { name: probe.name.clone(), layer: probe.layer, dtype: buffer.dtype, shape, bytes }
}
