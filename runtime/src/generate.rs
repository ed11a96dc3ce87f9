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

/// Runs everything before a step of a phase, and gives that step: the last of prompt 0's prefill, or the first decode
/// step of all sequences.
///
/// # Errors
/// As [`generate`], or a prompt that is empty.
pub fn before(model: &mut Model, request: &Request, phase: Phase) -> Result<StepTable, DeviceError> {
    let vocab = model.facts().vocab_size as usize;
    let mut run = Run { model, request, vocab };
    let mut table = StepTable::new();
    if phase == Phase::Prefill {
        let prompt = request.prompts.first().map_or(&[][..], Vec::as_slice);
        let mut start = 0;
        let pieces = run.pieces(prompt.len());
        for (i, rows) in pieces.iter().enumerate() {
            let ids = &prompt[start..start + rows];
            table = StepTable::new();
            if i + 1 == pieces.len() {
                table.push(0, start, ids);
            } else {
                table.push_part(0, start, ids);
                run.model.step(phase, &table, Want { rows: Rows::None, probes: false })?;
            }
            start += rows;
        }
        return Ok(table);
    }
    for seq in 0..request.prompts.len() {
        let g = run.prefill(seq)?;
        table.push(seq, request.prompts[seq].len(), &g.tokens);
    }
    Ok(table)
}

impl Run<'_> {
    /// Rows of each prefill step of a prompt.
    fn pieces(&self, len: usize) -> Vec<usize> {
        let tail = self.model.facts().prefill_tail.map_or(0, |n| usize::try_from(n).unwrap_or(usize::MAX));
        pieces(len, self.request.chunk.max(1), tail)
    }

    fn prefill(&mut self, seq: usize) -> Result<Generation, DeviceError> {
        let began = Instant::now();
        let request = self.request;
        let prompt = &request.prompts[seq];
        let trace = request.trace.then(|| Trace::of_prompt(prompt.len()));
        let mut g = Generation { trace, ..Generation::default() };
        let mut start = 0;
        for rows in self.pieces(prompt.len()) {
            let ids = &prompt[start..start + rows];
            let last = start + rows == prompt.len();
            let wanted = match (request.trace, last) {
                (true, _) => Rows::All,
                (false, true) => Rows::Last,
                (false, false) => Rows::None,
            };
            let mut table = StepTable::new();
            if last {
                table.push(seq, start, ids);
            } else {
                table.push_part(seq, start, ids);
            }
            start += ids.len();
            let out = self.model.step(Phase::Prefill, &table, Want { rows: wanted, probes: request.trace })?;
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

/// Rows of each prefill step of a prompt: `chunk` at most, but the last step has the last `tail` rows, or all.
fn pieces(len: usize, chunk: usize, tail: usize) -> Vec<usize> {
    let even = |len: usize| -> Vec<usize> { (0..len).step_by(chunk).map(|at| chunk.min(len - at)).collect() };
    let pieces = even(len);
    let last = tail.min(len);
    if pieces.last().is_none_or(|rows| *rows >= last) {
        return pieces;
    }
    [even(len - last), vec![last]].concat()
}

fn logits_row(out: &StepOutput, from: usize, vocab: usize) -> Result<&[f32], DeviceError> {
    let row = out.logits.get(from..from + vocab);
    row.ok_or_else(|| DeviceError::Step(format!("the step gave {} logits, not rows of {vocab}", out.logits.len())))
}

#[cfg(test)]
mod tests {
    use super::{argmax, pieces};

    #[test]
    fn a_tail_is_in_the_last_step() {
        assert_eq!(pieces(10, 4, 0), [4, 4, 2]);
        assert_eq!(pieces(10, 4, 2), [4, 4, 2]);
        assert_eq!(pieces(10, 4, 3), [4, 3, 3]);
        assert_eq!(pieces(10, 4, 7), [3, 7]);
        assert_eq!(pieces(5, 8, 128), [5]);
        assert_eq!(pieces(10, 1, 100), [10]);
        assert_eq!(pieces(0, 4, 3), Vec::<usize>::new());
    }

    #[test]
    fn argmax_takes_the_lowest_of_equals() {
        assert_eq!(argmax(&[1.0, 3.0, 3.0, f32::NAN]), 1);
        assert_eq!(argmax(&[f32::NAN, f32::NEG_INFINITY]), 0);
    }
}
