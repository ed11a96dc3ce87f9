//! `run`: generates from a bundle and weights.

use super::step::{self, Against, StepChoice};
use super::{CommandError, Outcome, Streams, write_json};
use crate::bundle::Bundle;
use crate::executor::{Capacity, EngramMemory, GpuOptions};
use crate::generate::{DEFAULT_CHUNK, Generation, Request, generate};
use crate::model::{LoadOptions, Model, default_threads};
use crate::{dump, prompts};
use clap::{Args, ValueEnum};
use serde_json::json;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Arguments of `run`.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Bundle folder or .tar.zst
    pub bundle: PathBuf,
    /// Checkpoint: a safetensors file, a folder with one or with an index, or random:SEED
    #[arg(long)]
    pub weights: String,
    /// Token ids such as 1,2,3, or a JSON file: a list of lists, or an object with `prompts`
    #[arg(long, value_name = "IDS|FILE.json")]
    pub prompt_ids: String,
    /// Tokens to generate for every prompt
    #[arg(long, default_value_t = 16)]
    pub max_new_tokens: usize,
    /// Device to run on
    #[arg(long, default_value = "cpu")]
    pub device: String,
    /// Engram tables, for models with an n-gram memory
    #[arg(long, value_name = "FILE.json")]
    pub engram_tables: Option<PathBuf>,
    /// Token ids that end a sequence
    #[arg(long, value_delimiter = ',')]
    pub stop_ids: Vec<i32>,
    /// CPU threads; all of the machine's by default
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Rows of a prefill step
    #[arg(long, default_value_t = DEFAULT_CHUNK as u32, value_parser = clap::value_parser!(u32).range(1..))]
    pub chunk: u32,
    /// Writes all logits and selections to this safetensors file
    #[arg(long, value_name = "OUT.safetensors")]
    pub dump: Option<PathBuf>,
    /// Instead of generating, runs one step up to launch N (from 0) and compares that kernel's results with another
    /// execution of it on the same inputs; `all` compares every launch. `prefill:` chooses the last step of prompt 0's
    /// prefill, otherwise it is the first decode step of all prompts
    #[arg(long, value_name = "[prefill:]N|all")]
    pub step: Option<StepChoice>,
    /// What `--step` compares with; by default the CPU's kernels, or the interpreter where they are what runs
    #[arg(long, value_name = "cpu|interpreter", requires = "step")]
    pub step_against: Option<Against>,
    #[command(flatten)]
    /// How a GPU is used.
    pub gpu: GpuArgs,
    /// Prints one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Arguments for GPUs.
#[derive(Debug, Clone, Args)]
pub struct GpuArgs {
    /// Starts every kernel of a decode step by itself, where a GPU would replay a graph of them
    #[arg(long)]
    pub no_graphs: bool,
    /// Waits after every kernel on a GPU, so that a failure names the kernel
    #[arg(long)]
    pub check_launches: bool,
    /// Takes a GPU's code for this target of the bundle, not the best that the GPU runs
    #[arg(long, value_name = "TARGET")]
    pub gpu_target: Option<String>,
    /// Where n-gram tables live with a GPU: in its memory, or page-locked on the host; by default on the GPU where
    /// they fit
    #[arg(long, value_name = "host|device")]
    pub engram_memory: Option<TableMemory>,
}

/// A choice of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TableMemory {
    /// Page-locked memory of the host.
    Host,
    /// The GPU's.
    Device,
}

impl GpuArgs {
    fn options(&self) -> GpuOptions {
        GpuOptions {
            graphs: !self.no_graphs,
            check_launches: self.check_launches,
            target: self.gpu_target.clone(),
            engram_memory: match self.engram_memory {
                None => EngramMemory::Auto,
                Some(TableMemory::Host) => EngramMemory::Host,
                Some(TableMemory::Device) => EngramMemory::Device,
            },
        }
    }
}

/// Runs it.
///
/// # Errors
/// Wrong input or a failing machine.
pub fn run(args: &RunArgs, io: &mut Streams<'_>) -> Result<Outcome, CommandError> {
    let bundle = Bundle::load(&args.bundle)?;
    let facts = &bundle.manifest.model;
    let given = prompts::read(&args.prompt_ids)?;
    let new = args.max_new_tokens as u64;
    let prompts = prompts::check(&given, new, facts.vocab_size, facts.max_position_embeddings)?;
    let n_context = prompts.iter().map(|p| prompts::positions(p.len(), new)).max().unwrap_or(1);
    let options = LoadOptions {
        weights: args.weights.clone(),
        engram_tables: args.engram_tables.clone(),
        device: args.device.clone(),
        threads: args.threads.map_or_else(default_threads, usize::from),
        capacity: Capacity { n_seqs: prompts.len() as u64, n_context },
        gpu: args.gpu.options(),
    };
    let began = Instant::now();
    let mut model = Model::load(&bundle, &options)?;
    let loaded = began.elapsed();
    let unused = model.unused_tensors().len();
    if unused > 0 {
        writeln!(io.notes, "{unused} tensors of the checkpoint are not used")?;
    }
    let request = Request {
        prompts,
        max_new_tokens: args.max_new_tokens,
        stop_ids: args.stop_ids.clone(),
        chunk: args.chunk as usize,
        trace: args.dump.is_some(),
    };
    if let Some(choice) = &args.step {
        return step::run(args, *choice, &bundle, &mut model, &request, io);
    }
    let all = generate(&mut model, &request)?;
    if let Some(path) = &args.dump {
        dump::write(path, &all, facts.vocab_size as usize)?;
    }
    if args.json {
        write_json(io.out, &report(args, facts, &request, &all, loaded, unused))?;
    } else {
        print(io, &request, &all)?;
    }
    Ok(Outcome::Done)
}

fn seconds(d: Duration) -> f64 {
    (d.as_secs_f64() * 1e6).round() / 1e6
}

fn report(
    args: &RunArgs,
    facts: &dsc_ir::manifest::Model,
    request: &Request,
    all: &[Generation],
    loaded: Duration,
    unused: usize,
) -> serde_json::Value {
    let one = |(prompt, g): (&Vec<i32>, &Generation)| {
        json!({
            "prompt_tokens": prompt.len(),
            "generated_ids": g.tokens,
            "prefill_seconds": seconds(g.prefill),
            "decode_seconds": seconds(g.decode),
        })
    };
    let prompts: Vec<_> = request.prompts.iter().zip(all).map(one).collect();
    json!({
        "model": facts.name,
        "device": args.device,
        "load_seconds": seconds(loaded),
        "unused_tensors": unused,
        "prompts": prompts,
    })
}

fn print(io: &mut Streams<'_>, request: &Request, all: &[Generation]) -> Result<(), CommandError> {
    for (i, (prompt, g)) in request.prompts.iter().zip(all).enumerate() {
        let ids: Vec<String> = g.tokens.iter().map(i32::to_string).collect();
        writeln!(io.out, "prompt {i} ({} tokens): {}", prompt.len(), ids.join(","))?;
        let steps = g.tokens.len().saturating_sub(1);
        let prefill = prompt.len() as f64 / g.prefill.as_secs_f64().max(1e-9);
        write!(io.notes, "  prefill {:.3} s ({prefill:.0} tokens/s)", g.prefill.as_secs_f64())?;
        if steps > 0 {
            let each = g.decode.as_secs_f64() * 1e3 / steps as f64;
            write!(io.notes, ", decode {steps} steps of {each:.1} ms")?;
        }
        writeln!(io.notes)?;
    }
    Ok(())
}
