//! The CPU device: kernels compiled from CLIF, run over their rows by a pool of threads.
//!
//! Kernels are code of a verified bundle and run unchecked; what they are given is checked here and in
//! [`StepInput::check`]: every pointer leads to memory of at least its parameter's size.

mod jit;
mod lent;

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

/// A model on the CPU.
pub struct CpuDevice {
    kernels: Kernels,
    manifest: Manifest,
    capacity: Capacity,
    weights: Vec<Bytes>,
    states: Vec<Bytes>,
    slots: Vec<Bytes>,
    begun: Option<Begun>,
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
        if let Some((_, k)) = manifest.kernels.iter().enumerate().find(|(i, k)| used[*i] && k.cpu.is_none()) {
            return Err(DeviceError::Unsupported(format!("kernel `{}` has no CPU code in this bundle", k.name)));
        }
        let kernels = Kernels::compile(bundle, threads, |i| used[i])?;
        let weights = manifest.weights.iter().map(|w| store.load(w)).collect::<Result<_, _>>()?;
        let env =
            Env { n_tokens: 0, n_seqs: capacity.n_seqs, n_context: capacity.n_context, n_out_rows: 0, n_tail_rows: 0 };
        let state = |s: &dsc_ir::manifest::State| Bytes::zeroed(tensor_type(s.dtype, &s.shape).bytes().eval(&env));
        let states = manifest.states.iter().map(state).collect::<Result<_, _>>()?;
        Ok(CpuDevice { kernels, manifest, capacity, weights, states, slots: Vec::new(), begun: None })
    }

    /// Makes every slot at least as large as this step needs.
    fn reserve(&mut self, phase: Phase, env: &Env) -> Result<(), DeviceError> {
        let bytes = executor::slot_bytes(executor::schedule(&self.manifest, phase)?, env);
        for (i, need) in bytes.into_iter().enumerate() {
            match self.slots.get_mut(i) {
                Some(slot) if slot.len() as u64 >= need => {}
                Some(slot) => *slot = Bytes::zeroed(need)?,
                None => self.slots.push(Bytes::zeroed(need)?),
            }
        }
        Ok(())
    }
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

/// Tables of a step.
struct Inputs {
    step: Bytes,
    out_rows: Bytes,
    tail_rows: Bytes,
    tail_step: Bytes,
}

impl Inputs {
    fn of(input: &StepInput<'_>) -> Result<Inputs, DeviceError> {
        let copy = |table: &[i32]| Bytes::copy_of(bytemuck::cast_slice(table));
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
    fn bindings(&mut self, phase: Phase, inputs: &mut Inputs) -> Result<Bindings, DeviceError> {
        let schedule = executor::schedule(&self.manifest, phase)?;
        let slots: Vec<*mut u8> = self.slots.iter_mut().map(Bytes::as_mut_ptr).collect();
        Ok(Bindings {
            buffers: schedule.buffers.iter().map(|b| slots[b.slot as usize]).collect(),
            weights: self.weights.iter_mut().map(Bytes::as_mut_ptr).collect(),
            states: self.states.iter_mut().map(Bytes::as_mut_ptr).collect(),
            step: inputs.step.as_mut_ptr(),
            out_rows: inputs.out_rows.as_mut_ptr(),
            tail_rows: inputs.tail_rows.as_mut_ptr(),
            tail_step: inputs.tail_step.as_mut_ptr(),
        })
    }

    fn launch_of(&self, launch: usize) -> Result<(&ScheduleEntry, &LaunchEntry), DeviceError> {
        let phase = self.begun.as_ref().map(|b| b.phase);
        executor::begun(phase, launch, |phase| executor::schedule(&self.manifest, phase))
    }
}

/// A step that is run launch by launch.
struct Begun {
    phase: Phase,
    env: Env,
    inputs: Inputs,
}

impl Device for CpuDevice {
    fn run_step(&mut self, phase: Phase, input: &StepInput<'_>) -> Result<StepOutput, DeviceError> {
        input.check(phase, &self.manifest.model, self.capacity)?;
        let env = input.env(self.capacity);
        self.reserve(phase, &env)?;
        self.begun = None;
        let mut inputs = Inputs::of(input)?;
        let bindings = self.bindings(phase, &mut inputs)?;
        let schedule = executor::schedule(&self.manifest, phase)?;
        let kernels = &self.kernels;
        kernels.pool.install(|| run_launches(kernels, schedule, &bindings, &env, input.probes))
    }

    fn begin_step(&mut self, phase: Phase, input: &StepInput<'_>) -> Result<(Env, Vec<LaunchEntry>), DeviceError> {
        input.check(phase, &self.manifest.model, self.capacity)?;
        let env = input.env(self.capacity);
        self.reserve(phase, &env)?;
        self.begun = Some(Begun { phase, env, inputs: Inputs::of(input)? });
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
            Arg::Buffer(slot) => &mut self.slots[slot as usize],
            Arg::Weight(w) => &mut self.weights[w as usize],
            Arg::State(s) => &mut self.states[s as usize],
            Arg::Input(name) => self.begun.as_mut().ok_or_else(no_step)?.inputs.get_mut(&name),
        };
        Ok(Bytes::copy_of(&block.as_ref()[..bytes])?)
    }

    fn run_launch(&mut self, launch: usize) -> Result<(), DeviceError> {
        let entry = self.launch_of(launch)?.1.clone();
        let mut begun = self.begun.take().ok_or_else(no_step)?;
        let bindings = self.bindings(begun.phase, &mut begun.inputs)?;
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

fn run_launches(
    kernels: &Kernels,
    schedule: &ScheduleEntry,
    bindings: &Bindings,
    env: &Env,
    probes: bool,
) -> Result<StepOutput, DeviceError> {
    let mut output = StepOutput::default();
    for (i, launch) in schedule.launches.iter().enumerate() {
        kernels.launch(launch.kernel as usize, &bindings.pointers(&launch.args), env)?;
        for probe in schedule.probes.iter().filter(|p| p.after as usize == i) {
            if probes || probe.name == executor::LOGITS {
                output.push(read_probe(schedule, probe, bindings, env));
            }
        }
    }
    Ok(output)
}

fn read_probe(schedule: &ScheduleEntry, probe: &ProbeEntry, bindings: &Bindings, env: &Env) -> ProbeValue {
    let buffer = &schedule.buffers[probe.buffer as usize];
    let ty = tensor_type(buffer.dtype, &buffer.shape);
    let n = ty.bytes().eval(env) as usize;
    // SAFETY: the slot has room for each of its buffers in this environment (`reserve`), and no launch is running.
    #[allow(unsafe_code)] // reading kernel memory
    let bytes = unsafe { std::slice::from_raw_parts(bindings.buffers[probe.buffer as usize].cast_const(), n) }.to_vec();
    let shape = buffer.shape.iter().map(|e| e.eval(env) as usize).collect();
    ProbeValue { name: probe.name.clone(), layer: probe.layer, dtype: buffer.dtype, shape, bytes }
}
