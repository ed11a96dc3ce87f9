//! The GPU device: a bundle's kernels on one GPU, with its weights, states and the slots between launches.
//!
//! A step uploads the step table and starts its launches in order on one stream; nothing on the host depends on data.

use super::device::{self, Buffer, CudaError, Kernel, LaunchShape};
use crate::bundle::Bundle;
use crate::executor::{self, Capacity, Device, DeviceError, ProbeValue, StepInput, StepOutput};
use crate::weights::WeightStore;
use dsc_ir::expr::{Env, Expr};
use dsc_ir::manifest::{GpuCode, Manifest, ProbeEntry, ScheduleEntry, tensor_type};
use dsc_ir::schedule::{Arg, Phase};

/// A model on a GPU.
pub struct CudaDevice {
    gpu: device::Device,
    manifest: Manifest,
    target: String,
    capacity: Capacity,
    kernels: Vec<Option<Ready>>,
    weights: Vec<Buffer>,
    states: Vec<Buffer>,
    slots: Vec<Buffer>,
}

/// A loaded kernel and how it is launched.
struct Ready {
    kernel: Kernel,
    grid: [Expr; 3],
    threads: u32,
    smem_bytes: u32,
}

fn failure(e: CudaError) -> DeviceError {
    match e {
        CudaError::Load { kernel, message } | CudaError::Kernel { kernel, message } => {
            DeviceError::Kernel { kernel, reason: message }
        }
        other => DeviceError::Machine(other.to_string()),
    }
}

/// The best of the bundle's targets that a device of this compute capability runs: an exact match first, then the
/// newest that is not newer than the device.
pub fn choose_target(manifest: &Manifest, (major, minor): (i32, i32)) -> Result<&str, String> {
    let device = i64::from(major) * 10 + i64::from(minor);
    let mut best: Option<(bool, i64, &str)> = None;
    let mut refused = Vec::new();
    for (name, entry) in &manifest.targets {
        let digits: String = name.chars().filter(char::is_ascii_digit).collect();
        let Some(arch) = digits.parse::<i64>().ok().filter(|_| name.starts_with("sm_")) else { continue };
        if arch == device || (!entry.exact_arch && arch < device) {
            let rank = (entry.exact_arch, arch, name.as_str());
            best = Some(best.map_or(rank, |b| b.max(rank)));
        } else {
            let why = if entry.exact_arch { "runs on that architecture alone" } else { "needs a newer GPU" };
            refused.push(format!("{name} {why}"));
        }
    }
    best.map(|(_, _, name)| name).ok_or_else(|| match refused.is_empty() {
        true => "this bundle has no code for GPUs; build it with --target".to_string(),
        false => {
            format!("none of the bundle's targets runs on compute capability {major}.{minor}: {}", refused.join(", "))
        }
    })
}

impl CudaDevice {
    /// Loads a bundle's kernels, uploads the weights and makes room for states.
    ///
    /// # Errors
    /// No driver or GPU, no code for it, unsuitable weights, too little memory.
    pub fn new(
        bundle: &Bundle,
        store: &mut WeightStore,
        capacity: Capacity,
        ordinal: usize,
    ) -> Result<CudaDevice, DeviceError> {
        let gpu = device::Device::open(ordinal).map_err(failure)?;
        let manifest = bundle.manifest.clone();
        let capability = gpu.capability().map_err(failure)?;
        let target = choose_target(&manifest, capability).map_err(DeviceError::Unsupported)?.to_string();
        let mut kernels: Vec<Option<Ready>> = manifest.kernels.iter().map(|_| None).collect();
        for phase in Phase::ALL {
            for launch in &schedule(&manifest, phase, &target)?.launches {
                let k = launch.kernel as usize;
                if kernels[k].is_none() {
                    kernels[k] = Some(load(&gpu, bundle, k, &target)?);
                }
            }
        }
        let mut weights = Vec::with_capacity(manifest.weights.len());
        for w in &manifest.weights {
            weights.push(gpu.upload(store.load(w)?.as_ref()).map_err(failure)?);
        }
        let env =
            Env { n_tokens: 0, n_seqs: capacity.n_seqs, n_context: capacity.n_context, n_out_rows: 0, n_tail_rows: 0 };
        let states = manifest
            .states
            .iter()
            .map(|s| gpu.zeros(tensor_type(s.dtype, &s.shape).bytes().eval(&env) as usize).map_err(failure))
            .collect::<Result<_, _>>()?;
        Ok(CudaDevice { gpu, manifest, target, capacity, kernels, weights, states, slots: Vec::new() })
    }

    /// Makes every slot at least as large as this step needs.
    fn reserve(&mut self, phase: Phase, env: &Env) -> Result<(), DeviceError> {
        let bytes = executor::slot_bytes(schedule(&self.manifest, phase, &self.target)?, env);
        for (i, need) in bytes.into_iter().enumerate() {
            let need = need as usize;
            match self.slots.get_mut(i) {
                Some(slot) if slot.len() >= need => {}
                Some(slot) => *slot = self.gpu.zeros(need).map_err(failure)?,
                None => self.slots.push(self.gpu.zeros(need).map_err(failure)?),
            }
        }
        Ok(())
    }

    fn read_probe(&self, schedule: &ScheduleEntry, probe: &ProbeEntry, env: &Env) -> Result<ProbeValue, DeviceError> {
        let buffer = &schedule.buffers[probe.buffer as usize];
        let n = tensor_type(buffer.dtype, &buffer.shape).bytes().eval(env) as usize;
        let bytes = self.gpu.read_first(&self.slots[buffer.slot as usize], n).map_err(failure)?;
        let shape = buffer.shape.iter().map(|e| e.eval(env) as usize).collect();
        Ok(ProbeValue { name: probe.name.clone(), layer: probe.layer, dtype: buffer.dtype, shape, bytes })
    }
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
        input.check(phase, &self.manifest.model, self.capacity)?;
        let env = input.env(self.capacity);
        self.reserve(phase, &env)?;
        let step = self.gpu.upload(bytemuck::cast_slice(input.step)).map_err(failure)?;
        let out_rows = self.gpu.upload(bytemuck::cast_slice(input.out_rows)).map_err(failure)?;
        let tail_rows = self.gpu.upload(bytemuck::cast_slice(input.tail_rows)).map_err(failure)?;
        let tail_step = self.gpu.upload(bytemuck::cast_slice(&input.tail_step())).map_err(failure)?;
        let schedule = schedule(&self.manifest, phase, &self.target)?;
        let mut output = StepOutput::default();
        for (i, launch) in schedule.launches.iter().enumerate() {
            let index = launch.kernel as usize;
            let Some(ready) = &self.kernels[index] else { continue };
            let buffers: Vec<&Buffer> = launch
                .args
                .iter()
                .map(|a| match a {
                    Arg::Buffer(b) => &self.slots[schedule.buffers[*b as usize].slot as usize],
                    Arg::Weight(w) => &self.weights[*w as usize],
                    Arg::State(s) => &self.states[*s as usize],
                    Arg::Input(name) => match name.as_str() {
                        "out_rows" => &out_rows,
                        "tail_rows" => &tail_rows,
                        "tail_step" => &tail_step,
                        _ => &step,
                    },
                })
                .collect();
            let grid = [0, 1, 2].map(|d: usize| u32::try_from(ready.grid[d].eval(&env)).unwrap_or(u32::MAX));
            let shape = LaunchShape { grid, threads: ready.threads, smem_bytes: ready.smem_bytes };
            self.gpu.launch(&ready.kernel, shape, &buffers, &env).map_err(failure)?;
            for probe in schedule.probes.iter().filter(|p| p.after as usize == i) {
                if input.probes || probe.name == executor::LOGITS {
                    output.push(self.read_probe(schedule, probe, &env)?);
                }
            }
        }
        if let Some(last) = self.kernels.iter().flatten().next() {
            self.gpu.finish(&last.kernel).map_err(failure)?;
        }
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dsc_ir::manifest::{FORMAT, Model, TargetEntry};

    fn bundle_for(targets: &[(&str, bool)]) -> Manifest {
        let model = Model {
            name: "m".into(),
            vocab_size: 1,
            num_hidden_layers: 1,
            max_position_embeddings: 1,
            tp: 1,
            ep: 1,
            prefill_tail: None,
            engram: None,
        };
        let entry = |exact_arch| TargetEntry { exact_arch, ptx_isa: 80, min_driver: String::new() };
        Manifest {
            format: FORMAT,
            dsc_version: String::new(),
            llvm_version: None,
            model,
            spec_hash: String::new(),
            targets: targets.iter().map(|(n, e)| (n.to_string(), entry(*e))).collect(),
            weights: vec![],
            states: vec![],
            kernels: vec![],
            schedules: vec![],
            files: Default::default(),
        }
    }

    #[test]
    fn targets_are_chosen_by_order() {
        let all =
            bundle_for(&[("cpu", false), ("sm_75", false), ("sm_80", false), ("sm_90a", true), ("sm_100a", true)]);
        assert_eq!(choose_target(&all, (9, 0)), Ok("sm_90a"));
        assert_eq!(choose_target(&all, (8, 9)), Ok("sm_80"));
        assert_eq!(choose_target(&all, (7, 5)), Ok("sm_75"));
        assert_eq!(choose_target(&all, (12, 0)), Ok("sm_80"));
        let hopper = bundle_for(&[("sm_90a", true), ("sm_100a", true)]);
        assert_eq!(
            choose_target(&hopper, (8, 0)),
            Err(
                "none of the bundle's targets runs on compute capability 8.0: sm_90a runs on that architecture alone, \
                 sm_100a runs on that architecture alone"
                    .into()
            )
        );
        assert!(choose_target(&bundle_for(&[("cpu", false)]), (9, 0)).is_err());
    }
}
