//! Greedy generation: prefill each prompt in chunks, then decode all sequences together.

use crate::dump::Trace;
use crate::executor::{DeviceError, StepOutput};
use crate::model::{Model, Rows, StepTable, Want};
use dsc_ir::schedule::Phase;
use std::time::{Duration, Instant};

/// Rows of a prefill step unless told otherwise.
pub const DEFAULT_CHUNK: usize = 256;

/// What to generate.
#[derive(Debug, Clone)]
pub struct Request {
    /// Checked prompts, one sequence each.
    pub prompts: Vec<Vec<i32>>,
    /// Tokens to generate for each.
    pub max_new_tokens: usize,
    /// Tokens after which a sequence ends.
    pub stop_ids: Vec<i32>,
    /// Rows of a prefill step.
    pub chunk: usize,
    /// Whether all logits and probes are kept.
    pub trace: bool,
}

/// What one prompt led to.
#[derive(Debug, Clone, Default)]
pub struct Generation {
    /// New tokens.
    pub tokens: Vec<i32>,
    /// Time of its prefill.
    pub prefill: Duration,
    /// Time of the decode steps it took part in.
    pub decode: Duration,
    /// What the run saw, where asked for.
    pub trace: Option<Trace>,
}

/// The largest logit's token; the lowest on ties, NaN never.
pub fn argmax(logits: &[f32]) -> i32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (i, x) in logits.iter().enumerate() {
        if *x > best.1 {
            best = (i, *x);
        }
    }
    best.0 as i32
}

struct Run<'a> {
    model: &'a mut Model,
    request: &'a Request,
    vocab: usize,
}

/// Generates for all prompts.
///
/// # Errors
/// A step that the device refuses or fails.
pub fn generate(model: &mut Model, request: &Request) -> Result<Vec<Generation>, DeviceError> {
    let vocab = model.facts().vocab_size as usize;
    let mut run = Run { model, request, vocab };
    let mut all = Vec::with_capacity(request.prompts.len());
    for seq in 0..request.prompts.len() {
        all.push(run.prefill(seq)?);
    }
    while run.decode(&mut all)? {}
    Ok(all)
}

impl Run<'_> {
    fn prefill(&mut self, seq: usize) -> Result<Generation, DeviceError> {
        let began = Instant::now();
        let request = self.request;
        let prompt = &request.prompts[seq];
        let mut g = Generation { trace: request.trace.then(Trace::default), ..Generation::default() };
        let chunk = request.chunk.max(1);
        for (i, ids) in prompt.chunks(chunk).enumerate() {
            let start = i * chunk;
            let last = start + ids.len() == prompt.len();
            let rows = match (request.trace, last) {
                (true, _) => Rows::All,
                (false, true) => Rows::Last,
                (false, false) => Rows::None,
            };
            let mut table = StepTable::new();
            table.push(seq, start, ids);
            let out = self.model.step(Phase::Prefill, &table, Want { rows, probes: request.trace })?;
            if last && request.max_new_tokens > 0 {
                let row = out.logits.len().saturating_sub(self.vocab);
                self.accept(&mut g, logits_row(&out, row, self.vocab)?);
            }
            if let Some(trace) = &mut g.trace {
                trace.add_prefill(out);
            }
        }
        g.prefill = began.elapsed();
        Ok(g)
    }

    fn accept(&self, g: &mut Generation, logits: &[f32]) {
        g.tokens.push(argmax(logits));
        if let Some(trace) = &mut g.trace {
            trace.decode_logits.extend_from_slice(logits);
        }
    }

    fn wants_more(&self, g: &Generation) -> bool {
        let stopped = g.tokens.last().is_some_and(|t| self.request.stop_ids.contains(t));
        !stopped && !g.tokens.is_empty() && g.tokens.len() < self.request.max_new_tokens
    }

    /// One step of every sequence that is not done; false when none is left.
    fn decode(&mut self, all: &mut [Generation]) -> Result<bool, DeviceError> {
        let began = Instant::now();
        let mut table = StepTable::new();
        let mut active = Vec::new();
        for (seq, g) in all.iter().enumerate() {
            if let Some(token) = g.tokens.last().filter(|_| self.wants_more(g)) {
                table.push(seq, self.request.prompts[seq].len() + g.tokens.len() - 1, &[*token]);
                active.push(seq);
            }
        }
        if active.is_empty() {
            return Ok(false);
        }
        let out = self.model.step(Phase::Decode, &table, Want { rows: Rows::Last, probes: false })?;
        let took = began.elapsed();
        for (i, seq) in active.into_iter().enumerate() {
            self.accept(&mut all[seq], logits_row(&out, i * self.vocab, self.vocab)?);
            all[seq].decode += took;
        }
        Ok(true)
    }
}

fn logits_row(out: &StepOutput, from: usize, vocab: usize) -> Result<&[f32], DeviceError> {
    let row = out.logits.get(from..from + vocab);
    row.ok_or_else(|| DeviceError::Step(format!("the step gave {} logits, not rows of {vocab}", out.logits.len())))
}

#[cfg(test)]
mod tests {
    use super::argmax;

    #[test]
    fn argmax_takes_the_lowest_of_equals() {
        assert_eq!(argmax(&[1.0, 3.0, 3.0, f32::NAN]), 1);
        assert_eq!(argmax(&[f32::NAN, f32::NEG_INFINITY]), 0);
    }
}
