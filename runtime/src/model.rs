//! A loaded model: a device with weights and states, and the step tables that drive it.

use crate::bundle::Bundle;
use crate::executor::{self, Capacity, Device, DeviceError, GpuOptions, StepInput, StepOutput};
use crate::weights::WeightStore;
use dsc_ir::manifest::Model as Facts;
use dsc_ir::op::step;
use dsc_ir::schedule::Phase;
use std::path::PathBuf;

/// How to load a model.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Checkpoint path or `random:SEED`.
    pub weights: String,
    /// Engram tables file, for models with an n-gram memory.
    pub engram_tables: Option<PathBuf>,
    /// `cpu` or another device's name.
    pub device: String,
    /// CPU threads.
    pub threads: usize,
    /// Sequences and positions to make room for.
    pub capacity: Capacity,
    /// How a GPU is used.
    pub gpu: GpuOptions,
}

/// A model on a device.
pub struct Model {
    device: Box<dyn Device>,
    facts: Facts,
    unused: Vec<String>,
}

/// Threads of this machine.
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

impl Model {
    /// Puts a bundle and its weights on a device.
    ///
    /// # Errors
    /// Weights that do not fit, a device that cannot run the bundle, a context beyond the model's.
    pub fn load(bundle: &Bundle, options: &LoadOptions) -> Result<Model, DeviceError> {
        let facts = bundle.manifest.model.clone();
        if options.capacity.n_context > facts.max_position_embeddings {
            return Err(DeviceError::Step(format!(
                "{} positions are needed, the model has {}",
                options.capacity.n_context, facts.max_position_embeddings
            )));
        }
        let tables = options.engram_tables.as_deref();
        let mut store = WeightStore::open(&options.weights, tables, &bundle.manifest)?;
        let LoadOptions { capacity, threads, gpu, .. } = options;
        let device = executor::open(&options.device, bundle, &mut store, *capacity, *threads, gpu)?;
        let unused = store.unused().into_iter().map(String::from).collect();
        Ok(Model { device, facts, unused })
    }

    /// Facts of the bundle.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Checkpoint tensors that the model has no use for.
    pub fn unused_tensors(&self) -> &[String] {
        &self.unused
    }

    /// Runs one step.
    ///
    /// # Errors
    /// As [`Device::run_step`].
    pub fn step(&mut self, phase: Phase, table: &StepTable, want: Want) -> Result<StepOutput, DeviceError> {
        self.with_input(phase, table, want, |device, input| device.run_step(phase, input))
    }

    /// The device and the input of a step, as [`Model::step`] would run it.
    ///
    /// # Errors
    /// What `f` fails with, or a step that does not fit.
    pub fn with_input<T>(
        &mut self,
        phase: Phase,
        table: &StepTable,
        want: Want,
        f: impl FnOnce(&mut dyn Device, &StepInput<'_>) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let tail = self.facts.prefill_tail.filter(|_| phase == Phase::Prefill);
        let tail_rows = tail.map(|n| table.tail(n)).transpose()?;
        let out_rows = match (want.rows, &tail_rows) {
            (Rows::None, _) => Vec::new(),
            (Rows::Last, None) => table.runs.iter().map(Run::last).collect(),
            (Rows::Last, Some(tail)) => table.last_of(tail),
            (Rows::All, None) => (0..table.n_rows() as i32).collect(),
            (Rows::All, Some(tail)) => (0..tail.len() as i32).collect(),
        };
        let tail_rows = tail_rows.as_deref().unwrap_or(&[]);
        let input = StepInput { step: &table.cells, tail_rows, out_rows: &out_rows, probes: want.probes };
        f(self.device.as_mut(), &input)
    }
}

/// Rows whose logits are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// None.
    None,
    /// The last of each sequence.
    Last,
    /// All.
    All,
}

/// What to read out of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Want {
    /// Logits.
    pub rows: Rows,
    /// Other probes.
    pub probes: bool,
}

/// The step table under construction: one run of consecutive positions for each sequence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepTable {
    cells: Vec<i32>,
    runs: Vec<Run>,
}

/// Rows of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    row0: usize,
    rows: usize,
    start: usize,
    /// Whether its prompt ends with it.
    ends: bool,
}

impl Run {
    fn last(&self) -> i32 {
        (self.row0 + self.rows) as i32 - 1
    }
}

impl StepTable {
    /// An empty step.
    pub fn new() -> StepTable {
        StepTable::default()
    }

    /// Rows so far.
    pub fn n_rows(&self) -> usize {
        self.cells.len() / step::COLUMNS as usize
    }

    /// The table's cells.
    pub fn cells(&self) -> &[i32] {
        &self.cells
    }

    /// Appends the tokens of a sequence from position `start` on: all that it has for now.
    pub fn push(&mut self, seq: usize, start: usize, ids: &[i32]) {
        self.push_run(seq, start, ids, true);
    }

    /// Appends a part of a prompt that goes on in a later step.
    pub fn push_part(&mut self, seq: usize, start: usize, ids: &[i32]) {
        self.push_run(seq, start, ids, false);
    }

    fn push_run(&mut self, seq: usize, start: usize, ids: &[i32], ends: bool) {
        let row0 = self.n_rows() as i32;
        if !ids.is_empty() {
            self.runs.push(Run { row0: row0 as usize, rows: ids.len(), start, ends });
        }
        let end = (start + ids.len()) as i32;
        for (i, id) in ids.iter().enumerate() {
            let mut row = [0i32; step::COLUMNS as usize];
            row[step::ID as usize] = *id;
            row[step::POS as usize] = (start + i) as i32;
            row[step::SEQ as usize] = seq as i32;
            row[step::START as usize] = start as i32;
            row[step::ROW0 as usize] = row0;
            row[step::END as usize] = end;
            self.cells.extend(row);
        }
    }

    /// The last `n` rows, or all, of each prompt that ends in this step.
    ///
    /// # Errors
    /// A prompt ends in this step with fewer rows, after others in earlier steps.
    fn tail(&self, n: u64) -> Result<Vec<i32>, DeviceError> {
        let n = usize::try_from(n).unwrap_or(usize::MAX);
        let mut all = Vec::new();
        for run in self.runs.iter().filter(|r| r.ends) {
            if run.rows < n.min(run.start + run.rows) {
                return Err(DeviceError::Step(format!(
                    "the last step of a prompt must hold its last {n} rows for this bundle, it has {}",
                    run.rows
                )));
            }
            let end = run.row0 + run.rows;
            all.extend((end - run.rows.min(n)..end).map(|r| r as i32));
        }
        Ok(all)
    }

    /// Where in the tail the last row of each prompt is.
    fn last_of(&self, tail: &[i32]) -> Vec<i32> {
        let ends: Vec<i32> = self.runs.iter().filter(|r| r.ends).map(Run::last).collect();
        let at = tail.iter().enumerate().filter(|(_, row)| ends.contains(row));
        at.map(|(i, _)| i as i32).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a failed step fails the test
mod tests {
    use super::*;

    #[test]
    fn tables_hold_runs() {
        let mut t = StepTable::new();
        t.push(1, 5, &[7, 8]);
        t.push(0, 0, &[9]);
        assert_eq!(t.cells(), [7, 5, 1, 5, 0, 7, 0, 0, 8, 6, 1, 5, 0, 7, 0, 0, 9, 0, 0, 0, 2, 1, 0, 0]);
        let last: Vec<i32> = t.runs.iter().map(Run::last).collect();
        assert_eq!(last, [1, 2]);
        let input = StepInput { step: t.cells(), tail_rows: &[], out_rows: &last, probes: false };
        let model = |vocab_size| facts(vocab_size, None);
        let capacity = Capacity { n_seqs: 2, n_context: 7 };
        assert!(input.check(Phase::Prefill, &model(10), capacity).is_ok());
        assert!(input.check(Phase::Prefill, &model(9), capacity).is_err());
        assert!(input.check(Phase::Prefill, &model(10), Capacity { n_context: 6, ..capacity }).is_err());
        assert!(input.check(Phase::Prefill, &model(10), Capacity { n_seqs: 1, ..capacity }).is_err());
        assert!(StepInput { out_rows: &[3], ..input }.check(Phase::Prefill, &model(10), capacity).is_err());
    }

    fn facts(vocab_size: u64, prefill_tail: Option<u64>) -> Facts {
        Facts {
            name: "m".into(),
            vocab_size,
            num_hidden_layers: 1,
            max_position_embeddings: 100,
            tp: 1,
            ep: 1,
            prefill_tail,
            engram: None,
        }
    }

    #[test]
    fn tails_are_the_last_rows_of_prompts_that_end() {
        let mut t = StepTable::new();
        t.push(1, 5, &[7, 8, 9]);
        t.push_part(2, 0, &[1, 2]);
        t.push(0, 0, &[3]);
        let tail = t.tail(2).unwrap();
        assert_eq!((tail.as_slice(), t.last_of(&tail)), (&[1, 2, 5][..], vec![1, 2]));
        let input = StepInput { step: t.cells(), tail_rows: &tail, out_rows: &[1, 2], probes: false };
        let rows: Vec<Vec<i32>> = input.tail_step().chunks(8).map(<[i32]>::to_vec).collect();
        assert_eq!(rows, [[8, 6, 1, 6, 0, 8, 0, 6], [9, 7, 1, 6, 0, 8, 0, 6], [3, 0, 0, 0, 2, 1, 0, 0]]);
        let capacity = Capacity { n_seqs: 3, n_context: 9 };
        let check = |input: StepInput<'_>, tail| input.check(Phase::Prefill, &facts(10, tail), capacity);
        assert!(check(input, Some(2)).is_ok());
        assert!(check(input, None).is_err());
        for bad in [&[0, 1][..], &[2, 2], &[5, 1, 2], &[6], &[-1]] {
            assert!(check(StepInput { tail_rows: bad, out_rows: &[], ..input }, Some(2)).is_err(), "{bad:?}");
        }
        assert!(check(StepInput { out_rows: &[3], ..input }, Some(2)).is_err());
        // Five rows are behind it, and three are here.
        assert!(t.tail(4).is_err());
    }
}
