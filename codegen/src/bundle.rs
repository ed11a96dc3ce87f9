//! Writes a bundle: kernels to code, the manifest, and every file with its hash, into a folder or an archive.
//!
//! A kernel's file names carry the hash of its content, so a kernel that did not change is the same file in every
//! build and comes from the cache. Equal inputs give equal bytes: nothing here reads the clock or depends on a path.

use crate::cache::{Cache, CachedCpu, CachedGpu};
#[cfg(feature = "nvptx")]
use crate::gpu::RowsHint;
use crate::loops::Func;
use dsc_ir::cost;
use dsc_ir::expr::Expr;
use dsc_ir::graph::TypeError;
use dsc_ir::kernel::Kernel;
use dsc_ir::manifest::{
    self, BufferEntry, CpuCode, FileEntry, KernelEntry, LaunchEntry, Manifest, Model, ParamEntry, ProbeEntry,
    ScheduleEntry, State, TargetEntry, Weight,
};
use dsc_ir::op::Op;
use dsc_ir::schedule::{Phase, Schedule};
use dsc_ir::target::Target;
use indexmap::IndexMap;
use rayon::prelude::*;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// What to build.
#[derive(Debug)]
pub struct Input<'a> {
    /// Facts for the manifest.
    pub model: Model,
    /// Text of the resolved spec.
    pub spec_text: String,
    /// Schedules, at least one.
    pub schedules: &'a [Schedule],
    /// Targets to emit code for.
    pub targets: &'a [Target],
    /// More files for the bundle, by path below `emit/`.
    pub emit: Vec<(String, String)>,
    /// Whether to write the manifest with an empty table of files to `emit/manifest.json`.
    pub emit_manifest: bool,
}

/// Why a bundle could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The file system refused.
    #[error("cannot write {path}: {source}")]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Something other than a bundle is in the way.
    #[error("{} exists and is not a bundle ({reason}); choose another name or remove it", path.display())]
    InTheWay {
        /// Where.
        path: PathBuf,
        /// Why it is none.
        reason: &'static str,
    },
    /// dsc is wrong: a kernel could not be generated.
    #[error("kernel `{kernel}`: {message}; this is a defect of dsc, please report it")]
    Internal {
        /// Kernel.
        kernel: String,
        /// What failed.
        message: String,
    },
}

impl BuildError {
    /// Whether the machine, not dsc, is at fault.
    pub fn is_machine(&self) -> bool {
        !matches!(self, BuildError::Internal { .. })
    }
}

/// What a build did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Kernels in the bundle.
    pub n_kernels: usize,
    /// Kernels that were taken from the cache.
    pub n_cached: usize,
    /// Bytes of the bundle's files.
    pub bytes: u64,
    /// Kernels that a GPU target has no code for: target, kernel, reason.
    pub missing: Vec<(String, String, String)>,
}

/// One distinct kernel of the bundle.
pub(crate) struct Distinct<'a> {
    pub(crate) kernel: &'a Kernel,
    name: String,
    hash: String,
    graph_text: String,
    /// Whether no other phase launches it.
    #[cfg_attr(not(feature = "nvptx"), allow(dead_code))] // only GPU plans depend on it
    decode_only: bool,
}

impl Distinct<'_> {
    /// Whether it is code: a sum over several ranks is the runtime's work.
    pub(crate) fn runs_alone(&self) -> bool {
        !self.kernel.graph.nodes.iter().any(|n| matches!(&n.op, Op::AllReduce(sum) if sum.ranks > 1))
    }
}

/// File beside the manifest with the manifest's BLAKE3 hash in hex and a newline. The manifest does not list it.
const MANIFEST_HASH: &str = "manifest.blake3";

/// Builds the bundle at `out` (a folder, or an archive if it ends in `.tar.zst`).
///
/// # Errors
/// See [`BuildError`].
pub fn build(input: &Input<'_>, out: &Path, cache: Option<&Cache>) -> Result<Report, BuildError> {
    let (distinct, index) = distinct_kernels(input.schedules);
    let mut files: IndexMap<String, Vec<u8>> = IndexMap::new();
    files.insert("spec.yaml".into(), input.spec_text.clone().into_bytes());
    let made: Vec<Option<(CachedCpu, bool)>> = distinct
        .par_iter()
        .map(|d| d.runs_alone().then(|| cpu_kernel(d, cache)).transpose())
        .collect::<Result<_, _>>()?;
    let mut gpu = gpu_kernels(input, &distinct, cache);
    let mut kernels = Vec::with_capacity(distinct.len());
    for (d, code) in distinct.iter().zip(&made) {
        let stem = format!("kernels/{}-{}", d.name, &d.hash[..12]);
        files.insert(format!("{stem}.dsir"), d.graph_text.clone().into_bytes());
        let mut entry = kernel_entry(d, &stem);
        if let Some((code, _)) = code {
            files.insert(format!("{stem}.clif"), code.clif.clone().into_bytes());
            entry.cpu = Some(CpuCode {
                file: format!("{stem}.clif"),
                symbol: symbol(d),
                scratch_bytes: code.scratch_bytes,
                row_block: code.row_block,
            });
        }
        for (target, CachedGpu { ptx, cubin, mut code }) in gpu.codes.remove(&d.hash).unwrap_or_default() {
            code.ptx = format!("{stem}.{target}.ptx");
            files.insert(code.ptx.clone(), ptx.into_bytes());
            if let Some(cubin) = cubin {
                let path = format!("{stem}.{target}.cubin");
                files.insert(path.clone(), cubin);
                code.cubin = Some(path);
            }
            entry.gpu.insert(target, code);
        }
        kernels.push(entry);
    }
    for (path, text) in &input.emit {
        files.insert(format!("emit/{path}"), text.clone().into_bytes());
    }
    files.insert(format!("include/{}.h", c_name(&input.model.name)), header(input, &kernels).into_bytes());
    let mut manifest = assemble(input, kernels, &index);
    if input.emit_manifest {
        // Its table of files is empty still: the whole table would have to hold this file's own hash.
        let json = manifest.to_json().map_err(|e| internal("manifest", e))?;
        files.insert(format!("emit/{}", manifest::FILE), json.into_bytes());
    }
    files.sort_keys();
    manifest.files = files.iter().map(|(path, data)| (path.clone(), file_entry(data))).collect();
    let json = manifest.to_json().map_err(|e| internal("manifest", e))?;
    let hash = format!("{}\n", blake3::hash(json.as_bytes()).to_hex());
    files.insert(manifest::FILE.into(), json.into_bytes());
    files.insert(MANIFEST_HASH.into(), hash.into_bytes());
    let report = Report {
        n_kernels: distinct.len(),
        n_cached: made.iter().flatten().filter(|m| m.1).count(),
        bytes: files.values().map(|f| f.len() as u64).sum(),
        missing: gpu.missing,
    };
    write(&files, out)?;
    Ok(report)
}

fn file_entry(data: &[u8]) -> FileEntry {
    FileEntry { bytes: data.len() as u64, blake3: blake3::hash(data).to_hex().to_string() }
}

pub(crate) fn internal(kernel: &str, e: impl std::fmt::Display) -> BuildError {
    BuildError::Internal { kernel: kernel.into(), message: e.to_string() }
}

/// Kernels of all schedules told apart by content, and each schedule's kernel numbers among them.
pub(crate) fn distinct_kernels(schedules: &[Schedule]) -> (Vec<Distinct<'_>>, Vec<Vec<u32>>) {
    let mut list: Vec<Distinct<'_>> = Vec::new();
    let mut by_hash: HashMap<String, u32> = HashMap::new();
    let mut names: HashMap<String, u32> = HashMap::new();
    let mut index = Vec::new();
    for s in schedules {
        let mut numbers = Vec::new();
        for k in &s.kernels {
            let graph_text = dsc_ir::text::print(&k.graph);
            let hash = content_hash(k);
            let number = *by_hash.entry(hash.clone()).or_insert_with(|| {
                let base: String = k.name.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('_').into();
                let n = names.entry(base.clone()).or_insert(0);
                *n += 1;
                let name = if *n > 1 { format!("{base}_{n}") } else { base };
                list.push(Distinct { kernel: k, name, hash: hash.clone(), graph_text, decode_only: true });
                list.len() as u32 - 1
            });
            list[number as usize].decode_only &= s.phase == Phase::Decode;
            numbers.push(number);
        }
        index.push(numbers);
    }
    (list, index)
}

/// Hash of a kernel's work: its graph without names, and the roles of its parameters.
fn content_hash(k: &Kernel) -> String {
    let graph = dsc_ir::text::print(&k.graph.anonymous());
    let roles: Vec<String> = k.params.iter().map(|p| format!("{}:{}", p.role.name(), p.value.0)).collect();
    blake3::hash(format!("{graph}\n{}", roles.join(" ")).as_bytes()).to_hex().to_string()
}

/// Symbol of a kernel in every backend: from its work and its content, so that it does not depend on the build.
pub(crate) fn symbol(d: &Distinct<'_>) -> String {
    format!("dsc_{}_{}", d.kernel.graph.nodes.first().map_or("empty", |n| n.op.name()), &d.hash[..12])
}

/// Rows a CPU kernel works on at a time: enough to share unpacked weights, few enough for the cache.
const CPU_ROW_BLOCK: u64 = 8;

fn cpu_kernel(d: &Distinct<'_>, cache: Option<&Cache>) -> Result<(CachedCpu, bool), BuildError> {
    if let Some(cache) = cache
        && let Some(hit) = cache.get("cpu", &d.hash)
    {
        return Ok((hit, true));
    }
    let func = loop_program(d)?;
    let clif = crate::cpu::emit(&func).map_err(|e| internal(&d.name, e))?;
    let made = CachedCpu { clif, scratch_bytes: func.scratch_bytes(), row_block: func.row_block };
    if let Some(cache) = cache {
        cache.put("cpu", &d.hash, &made);
    }
    Ok((made, false))
}

pub(crate) fn loop_program(d: &Distinct<'_>) -> Result<Func, BuildError> {
    let options = crate::lower::LowerOptions::cpu(CPU_ROW_BLOCK);
    let func = crate::lower::lower(d.kernel, &symbol(d), &options).map_err(|e| internal(&d.name, e))?;
    crate::loops::verify(&func).map_err(|e| internal(&d.name, e))?;
    Ok(func)
}

/// GPU code by kernel hash, with the target's name.
#[derive(Default)]
struct GpuKernels {
    codes: HashMap<String, Vec<(String, CachedGpu)>>,
    missing: Vec<(String, String, String)>,
}

#[cfg(not(feature = "nvptx"))]
fn gpu_kernels(input: &Input<'_>, distinct: &[Distinct<'_>], _: Option<&Cache>) -> GpuKernels {
    let mut out = GpuKernels::default();
    for t in input.targets.iter().filter(|t| !t.is_cpu()) {
        for d in distinct.iter().filter(|d| d.runs_alone()) {
            let reason = "this dsc was built without LLVM (feature `nvptx`)".to_string();
            out.missing.push((t.name.clone(), d.name.clone(), reason));
        }
    }
    out
}

#[cfg(feature = "nvptx")]
fn gpu_kernels(input: &Input<'_>, distinct: &[Distinct<'_>], cache: Option<&Cache>) -> GpuKernels {
    let mut out = GpuKernels::default();
    for t in input.targets.iter().filter(|t| !t.is_cpu()) {
        let alone: Vec<&Distinct<'_>> = distinct.iter().filter(|d| d.runs_alone()).collect();
        let made: Vec<_> = alone.par_iter().map(|d| gpu_kernel(d, t, cache)).collect();
        for (d, made) in alone.into_iter().zip(made) {
            match made {
                Ok(made) => out.codes.entry(d.hash.clone()).or_default().push((t.name.clone(), made)),
                Err(reason) => out.missing.push((t.name.clone(), d.name.clone(), reason)),
            }
        }
    }
    out
}

/// Rows that the plan of a GPU kernel is made for.
#[cfg(feature = "nvptx")]
pub(crate) fn hint(d: &Distinct<'_>) -> RowsHint {
    if d.decode_only { RowsHint::Few } else { RowsHint::Many }
}

#[cfg(feature = "nvptx")]
fn gpu_kernel(d: &Distinct<'_>, target: &Target, cache: Option<&Cache>) -> Result<CachedGpu, String> {
    let symbol = symbol(d);
    let hint = hint(d);
    // With an assembler there is machine code as well: an entry made without one does not serve.
    let kind = format!("{}.{}.{hint:?}", target.name, if crate::ptxas::find().is_ok() { "cubin" } else { "ptx" });
    if let Some(hit) = cache.and_then(|c| c.get(&kind, &d.hash)) {
        return Ok(hit);
    }
    let made = crate::gpu::emit_for(d.kernel, &symbol, target, hint)?;
    let assembled = crate::ptxas::assemble(&made.ptx, &target.name).ok();
    let code = manifest::GpuCode {
        ptx: String::new(),
        cubin: None,
        symbol,
        grid: made.grid,
        threads: made.threads,
        smem_dynamic_bytes: made.smem_dynamic_bytes,
        smem_static_bytes: made.smem_static_bytes,
        registers: assembled.as_ref().map(|a| a.registers),
        spill_bytes: assembled.as_ref().map(|a| a.spill_bytes),
    };
    let made = CachedGpu { ptx: made.ptx, cubin: assembled.map(|a| a.cubin), code };
    if let Some(cache) = cache {
        cache.put(&kind, &d.hash, &made);
    }
    Ok(made)
}

fn kernel_entry(d: &Distinct<'_>, stem: &str) -> KernelEntry {
    let k = d.kernel;
    let (flops, bytes) = cost::kernel(k);
    KernelEntry {
        name: d.name.clone(),
        anchor: k.anchor.name().into(),
        ops: k.graph.nodes.iter().map(|n| n.op.name().into()).collect(),
        rows: k.rows.clone(),
        params: k
            .params
            .iter()
            .map(|p| {
                let value = k.graph.value(p.value);
                ParamEntry {
                    name: value.name.clone(),
                    role: p.role.name().into(),
                    dtype: value.ty.dtype,
                    shape: value.ty.shape.clone(),
                }
            })
            .collect(),
        flops,
        bytes,
        graph: format!("{stem}.dsir"),
        cpu: None,
        gpu: IndexMap::new(),
    }
}

/// The manifest, its table of files still empty.
fn assemble(input: &Input<'_>, kernels: Vec<KernelEntry>, index: &[Vec<u32>]) -> Manifest {
    let targets = input
        .targets
        .iter()
        .map(|t| {
            let entry = TargetEntry {
                exact_arch: t.exact_arch,
                ptx_isa: t.ptx_isa,
                min_driver: t.min_driver.clone().unwrap_or_default(),
            };
            (t.name.clone(), entry)
        })
        .collect();
    let first = input.schedules.first();
    let weights = first.map_or(Vec::new(), weight_table);
    let states = first.map_or(Vec::new(), state_table);
    Manifest {
        format: manifest::FORMAT,
        dsc_version: env!("CARGO_PKG_VERSION").into(),
        llvm_version: crate::llvm_version().filter(|_| input.targets.iter().any(|t| !t.is_cpu())),
        model: input.model.clone(),
        spec_hash: blake3::hash(input.spec_text.as_bytes()).to_hex().to_string(),
        targets,
        weights,
        states,
        kernels,
        schedules: input.schedules.iter().zip(index).map(|(s, numbers)| schedule_entry(s, numbers)).collect(),
        files: IndexMap::new(),
    }
}

/// The manifest's weights of a schedule.
pub fn weight_table(s: &Schedule) -> Vec<Weight> {
    let entry = |w: &dsc_ir::schedule::WeightDecl| Weight {
        name: w.name.clone(),
        layer: w.layer,
        tensor: w.source.tensor.clone(),
        dtype: w.ty.dtype,
        shape: w.ty.shape.iter().map(|e| e.as_const().unwrap_or(0)).collect(),
        shard: manifest::shard_text(w.source.shard),
    };
    s.weights.iter().map(entry).collect()
}

/// The manifest's states of a schedule.
pub fn state_table(s: &Schedule) -> Vec<State> {
    let entry = |w: &dsc_ir::schedule::StateDecl| {
        let (keep, ratio) = manifest::state_fields(w.kind);
        State { name: w.name.clone(), layer: w.layer, keep, ratio, dtype: w.ty.dtype, shape: w.ty.shape.clone() }
    };
    s.states.iter().map(entry).collect()
}

fn schedule_entry(s: &Schedule, numbers: &[u32]) -> ScheduleEntry {
    ScheduleEntry {
        phase: s.phase,
        target: s.target.clone(),
        buffers: s
            .buffers
            .iter()
            .map(|b| BufferEntry {
                name: b.name.clone(),
                layer: b.layer,
                dtype: b.ty.dtype,
                shape: b.ty.shape.clone(),
                slot: b.slot,
            })
            .collect(),
        launches: s
            .launches
            .iter()
            .map(|l| LaunchEntry { kernel: numbers[l.kernel as usize], args: l.args.clone(), layer: l.layer })
            .collect(),
        probes: s
            .probes
            .iter()
            .map(|p| ProbeEntry { name: p.name.clone(), layer: p.layer, buffer: p.buffer, after: p.after })
            .collect(),
    }
}

fn c_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' }).collect()
}

/// A C header with the sizes and the symbols of the bundle, for runtimes that load it without this one.
fn header(input: &Input<'_>, kernels: &[KernelEntry]) -> String {
    let m = &input.model;
    let upper = c_name(&m.name).to_uppercase();
    let mut h = format!("/* {}: written by dsc {}. */\n#pragma once\n\n", m.name, env!("CARGO_PKG_VERSION"));
    for (key, value) in [
        ("VOCAB_SIZE", m.vocab_size),
        ("NUM_HIDDEN_LAYERS", u64::from(m.num_hidden_layers)),
        ("MAX_POSITION_EMBEDDINGS", m.max_position_embeddings),
        ("N_KERNELS", kernels.len() as u64),
    ] {
        let _ = writeln!(h, "#define {upper}_{key} {value}");
    }
    for (i, k) in kernels.iter().enumerate() {
        let symbol = k.cpu.as_ref().map_or("", |c| c.symbol.as_str());
        let _ = writeln!(h, "\n/* {} over {}: {} */", k.name, k.rows, k.ops.join(", "));
        for (j, p) in k.params.iter().enumerate() {
            let shape: Vec<String> = p.shape.iter().map(Expr::to_string).collect();
            let _ = writeln!(h, "/*   {j}: {} {} {}[{}] */", p.role, p.name, p.dtype, shape.join(", "));
        }
        let _ = writeln!(h, "#define {upper}_KERNEL_{i} \"{symbol}\"");
    }
    h
}

fn io(path: &Path) -> impl Fn(std::io::Error) -> BuildError + '_ {
    move |source| BuildError::Io { path: path.to_path_buf(), source }
}

/// Writes all files beside the destination and renames them into place.
fn write(files: &IndexMap<String, Vec<u8>>, out: &Path) -> Result<(), BuildError> {
    let (shown, out) = (out, &resolved(out)?);
    let parent = out.parent().unwrap_or(Path::new("/"));
    let name = file_name(out);
    let is_archive = name.ends_with(".tar.zst");
    check_place(shown, is_archive)?;
    let temp = parent.join(format!(".{name}.{}.tmp", std::process::id()));
    let written = if is_archive { archive(files, &temp) } else { folder(files, &temp) };
    let placed = written.and_then(|()| replace(&temp, out));
    if placed.is_err() {
        let _ = std::fs::remove_dir_all(&temp);
        let _ = std::fs::remove_file(&temp);
    }
    placed.map_err(|error| match error {
        // The file beside it is no name that anyone has heard of.
        BuildError::Io { source, .. } => BuildError::Io { path: shown.to_path_buf(), source },
        other => other,
    })
}

/// The destination without `.`, `..` and links: a bundle that is moved aside must not take its own path with it.
/// Its folder is made if it is not there.
fn resolved(out: &Path) -> Result<PathBuf, BuildError> {
    if out.exists() {
        return out.canonicalize().map_err(io(out));
    }
    let parent = out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if parent.exists() && !parent.is_dir() {
        return Err(BuildError::InTheWay { path: parent.to_path_buf(), reason: "it is no folder" });
    }
    std::fs::create_dir_all(parent).map_err(io(out))?;
    let name = out.file_name().unwrap_or(OsStr::new("bundle"));
    parent.canonicalize().map(|parent| parent.join(name)).map_err(io(out))
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

/// First bytes of every zstd frame. Source: RFC 8878, section 3.1.1.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];

/// Only a bundle of the same form may be replaced.
fn check_place(out: &Path, is_archive: bool) -> Result<(), BuildError> {
    let in_the_way = |reason| Err(BuildError::InTheWay { path: out.to_path_buf(), reason });
    if !out.exists() {
        return Ok(());
    }
    match (out.is_dir(), is_archive) {
        (true, true) => in_the_way("it is a folder, not an archive"),
        (true, false) if !out.join(manifest::FILE).is_file() => in_the_way("it has no manifest.json"),
        (true, false) => Ok(()),
        (false, false) => in_the_way("it is no folder"),
        (false, true) if !out.is_file() || !starts_with_magic(out) => in_the_way("it is no zstd archive"),
        (false, true) => Ok(()),
    }
}

/// An empty file, such as `mktemp` makes, may be replaced as well.
fn starts_with_magic(path: &Path) -> bool {
    let mut start = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(4).read_to_end(&mut start));
    read.is_ok() && (start.is_empty() || start == ZSTD_MAGIC)
}

fn folder(files: &IndexMap<String, Vec<u8>>, temp: &Path) -> Result<(), BuildError> {
    std::fs::create_dir_all(temp).map_err(io(temp))?;
    for (path, data) in files {
        let path = temp.join(path);
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).map_err(io(dir))?;
        }
        std::fs::write(&path, data).map_err(io(&path))?;
    }
    Ok(())
}

fn archive(files: &IndexMap<String, Vec<u8>>, temp: &Path) -> Result<(), BuildError> {
    let file = std::fs::File::create(temp).map_err(io(temp))?;
    let encoder = zstd::Encoder::new(file, 9).map_err(io(temp))?;
    let mut tar = tar::Builder::new(encoder);
    for (path, data) in files {
        let mut h = tar::Header::new_ustar();
        h.set_size(data.len() as u64);
        h.set_mode(0o644);
        h.set_mtime(0);
        tar.append_data(&mut h, path, data.as_slice()).map_err(io(temp))?;
    }
    let encoder = tar.into_inner().map_err(io(temp))?;
    encoder.finish().map(|_| ()).map_err(io(temp))
}

fn replace(temp: &Path, out: &Path) -> Result<(), BuildError> {
    if out.is_dir() {
        let old = out.with_file_name(format!(".{}.{}.old", file_name(out), std::process::id()));
        std::fs::rename(out, &old).map_err(io(out))?;
        if let Err(error) = std::fs::rename(temp, out) {
            // The old bundle is better than none.
            let _ = std::fs::rename(&old, out);
            return Err(io(out)(error));
        }
        return std::fs::remove_dir_all(&old).map_err(io(&old));
    }
    std::fs::rename(temp, out).map_err(io(out))
}

impl From<TypeError> for BuildError {
    fn from(e: TypeError) -> BuildError {
        internal("graph", e)
    }
}
