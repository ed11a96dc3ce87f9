//! What a run saw, written as a safetensors file that a script can compare.

use crate::executor::{ProbeValue, StepOutput};
use crate::generate::Generation;
use dsc_ir::dtype::DType;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Everything of one prompt: logits of its positions and of the new tokens, and the probes of its prefill.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    /// Tokens of the prompt.
    prompt: usize,
    /// `[T, V]`; the last rows alone where prefill replays those alone through the last layers.
    pub logits: Vec<f32>,
    /// `[N, V]`; row 0 is the last of the prefill.
    pub decode_logits: Vec<f32>,
    probes: BTreeMap<(String, Option<u32>), ProbeValue>,
}

impl Trace {
    /// An empty trace of a prompt of so many tokens.
    pub fn of_prompt(tokens: usize) -> Trace {
        Trace { prompt: tokens, ..Trace::default() }
    }

    /// Appends a chunk of the prompt.
    pub fn add_prefill(&mut self, out: StepOutput) {
        self.logits.extend(out.logits);
        for value in out.probes {
            let key = (value.name.clone(), value.layer);
            match self.probes.get_mut(&key) {
                None => {
                    self.probes.insert(key, value);
                }
                Some(all) => {
                    all.bytes.extend(value.bytes);
                    if let (Some(rows), Some(more)) = (all.shape.first_mut(), value.shape.first()) {
                        *rows += more;
                    }
                }
            }
        }
    }

    /// One plane per layer that has this probe, in ascending layers.
    fn planes(&self, name: &str) -> Vec<&ProbeValue> {
        self.probes.iter().filter(|((n, _), _)| n == name).map(|(_, v)| v).collect()
    }
}

/// A dump could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the dump `{}`: {reason}", path.display())]
pub struct DumpError {
    path: PathBuf,
    reason: String,
}

struct Entry {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

fn floats(name: String, shape: Vec<usize>, x: &[f32]) -> Entry {
    Entry { name, dtype: Dtype::F32, shape, bytes: x.iter().flat_map(|v| v.to_le_bytes()).collect() }
}

/// A plane with a row for every position of the prompt: -1 for rows that did not go through its layer.
fn whole(plane: &ProbeValue, prompt: usize) -> ProbeValue {
    let mut plane = plane.clone();
    if let Some((rows, rest)) = plane.shape.split_first_mut()
        && *rows < prompt
    {
        let missing = (prompt - *rows) * rest.iter().product::<usize>();
        plane.bytes.splice(0..0, (-1i32).to_le_bytes().repeat(missing));
        *rows = prompt;
    }
    plane
}

/// Planes stacked: `[planes, ..]`. Absent when there are none or their shapes differ.
fn stacked(name: String, planes: &[ProbeValue]) -> Option<Entry> {
    let first = planes.first()?;
    if planes.iter().any(|p| p.shape != first.shape || p.dtype != first.dtype) {
        return None;
    }
    let shape = [vec![planes.len()], first.shape.clone()].concat();
    let bytes = planes.iter().flat_map(|p| p.bytes.iter().copied()).collect();
    Some(Entry { name, dtype: if first.dtype == DType::I32 { Dtype::I32 } else { Dtype::F32 }, shape, bytes })
}

fn entries(i: usize, g: &Generation, vocab: usize) -> Vec<Entry> {
    let Some(trace) = &g.trace else { return Vec::new() };
    let rows = |x: &[f32]| vec![x.len() / vocab.max(1), vocab];
    // Positions that did not go through the last layers have no logits.
    let missing = (trace.prompt * vocab).saturating_sub(trace.logits.len());
    let logits = [vec![f32::NAN; missing], trace.logits.clone()].concat();
    let tokens = g.tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
    let mut all = vec![
        floats(format!("p{i}.logits"), rows(&logits), &logits),
        floats(format!("p{i}.decode_logits"), rows(&trace.decode_logits), &trace.decode_logits),
        Entry { name: format!("p{i}.decode_tokens"), dtype: Dtype::I32, shape: vec![g.tokens.len()], bytes: tokens },
    ];
    for name in ["topk", "moe_experts"] {
        let planes: Vec<ProbeValue> = trace.planes(name).into_iter().map(|p| whole(p, trace.prompt)).collect();
        all.extend(stacked(format!("p{i}.{name}"), &planes));
    }
    if let Some(p) = trace.planes("engram_rows").first() {
        let bytes = p.bytes.clone();
        all.push(Entry { name: format!("p{i}.engram_rows"), dtype: Dtype::I32, shape: p.shape.clone(), bytes });
    }
    all
}

fn view(e: &Entry) -> Result<(String, TensorView<'_>), String> {
    let view = TensorView::new(e.dtype, e.shape.clone(), &e.bytes).map_err(|err| format!("`{}`: {err}", e.name))?;
    Ok((e.name.clone(), view))
}

/// Writes the traces of all prompts.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, all: &[Generation], vocab: usize) -> Result<(), DumpError> {
    let fail = |reason: String| DumpError { path: path.into(), reason };
    let entries: Vec<Entry> = all.iter().enumerate().flat_map(|(i, g)| entries(i, g, vocab)).collect();
    let views: Vec<_> = entries.iter().map(|e| view(e).map_err(fail)).collect::<Result<_, _>>()?;
    // A device or a pipe is written to; only a file may be replaced by a new one.
    if std::fs::metadata(path).is_ok_and(|at| !at.is_file() && !at.is_dir()) {
        let bytes = safetensors::serialize(views, None).map_err(|e| fail(e.to_string()))?;
        return std::fs::write(path, bytes).map_err(|e| fail(e.to_string()));
    }
    safetensors::serialize_to_file(views, None, path).map_err(|e| fail(e.to_string()))
}
