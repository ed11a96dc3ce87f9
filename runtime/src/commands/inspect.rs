//! `inspect`: what is in a bundle.

use super::{CommandError, Outcome, Streams, write_json};
use crate::bundle::Bundle;
use crate::weights::weight_bytes;
use clap::Args;
use serde_json::json;
use std::path::PathBuf;

/// Arguments of `inspect`.
#[derive(Debug, Clone, Args)]
pub struct InspectArgs {
    /// Bundle folder or .tar.zst
    pub bundle: PathBuf,
    /// Prints one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Prints a verified bundle's contents.
///
/// # Errors
/// A bundle that is refused.
pub fn inspect(args: &InspectArgs, io: &mut Streams<'_>) -> Result<Outcome, CommandError> {
    let bundle = Bundle::load(&args.bundle)?;
    let m = &bundle.manifest;
    let weights: u64 = m.weights.iter().map(weight_bytes).fold(0, u64::saturating_add);
    let files: usize = bundle.files().map(|(_, n)| n).sum();
    if args.json {
        let document = json!({
            "manifest": m,
            "weight_bytes": weights,
            "file_bytes": files,
        });
        write_json(io.out, &document)?;
        return Ok(Outcome::Done);
    }
    let out = &mut io.out;
    writeln!(out, "{}: {} layers, vocabulary {}", m.model.name, m.model.num_hidden_layers, m.model.vocab_size)?;
    writeln!(out, "format {}, dsc {}, spec {}", m.format, m.dsc_version, m.spec_hash)?;
    if m.model.tp > 1 || m.model.ep > 1 {
        writeln!(out, "shapes of one rank of tp {} and ep {}", m.model.tp, m.model.ep)?;
    }
    for (name, t) in &m.targets {
        let arch = if t.exact_arch { "this architecture alone" } else { "this architecture and newer" };
        match t.ptx_isa {
            0 => writeln!(out, "target {name}")?,
            isa => {
                writeln!(out, "target {name}: {arch}, PTX {}.{}, driver {}", isa / 10, isa % 10, t.min_driver)?;
            }
        }
    }
    writeln!(out, "{} weights of {weights} bytes, {} states", m.weights.len(), m.states.len())?;
    writeln!(out, "{} files of {files} bytes", bundle.files().count())?;
    for s in &m.schedules {
        let n = s.launches.len();
        writeln!(out, "{} for {}: {n} launches, {} buffers", s.phase.name(), s.target, s.buffers.len())?;
    }
    writeln!(out, "{} kernels", m.kernels.len())?;
    for k in &m.kernels {
        let cpu = if k.cpu.is_some() { " cpu" } else { "" };
        let gpu: String = k.gpu.keys().map(|t| format!(" {t}")).collect();
        writeln!(out, "  {:<40} {:<16} {}  [{}{gpu}]", k.name, k.anchor, k.ops.join(" "), cpu.trim())?;
    }
    Ok(Outcome::Done)
}
