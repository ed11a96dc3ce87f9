//! `run`: generates from a bundle and weights.

use super::{CommandError, Outcome, Streams, write_json};
use crate::bundle::Bundle;
use crate::executor::Capacity;
use crate::generate::{DEFAULT_CHUNK, Generation, Request, generate};
use crate::model::{LoadOptions, Model, default_threads};
use crate::{dump, prompts};
use clap::Args;
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
    /// Prints one JSON document
    #[arg(long)]
    pub json: bool,
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
