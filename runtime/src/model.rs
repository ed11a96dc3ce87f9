//! A loaded model: a device with weights and states, and the step tables that drive it.

use crate::bundle::Bundle;
use crate::executor::{self, Capacity, Device, DeviceError, StepInput, StepOutput};
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
        executor::one_rank(&bundle.manifest)?;
        if options.capacity.n_context > facts.max_position_embeddings {
            return Err(DeviceError::Step(format!(
                "{} positions are needed, the model has {}",
                options.capacity.n_context, facts.max_position_embeddings
            )));
        }
        let tables = options.engram_tables.as_deref();
        let mut store = WeightStore::open(&options.weights, tables, &bundle.manifest)?;
        let device = executor::open(&options.device, bundle, &mut store, options.capacity, options.threads)?;
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
        let out_rows = match want.rows {
            Rows::None => Vec::new(),
            Rows::Last => table.last_rows.clone(),
            Rows::All => (0..table.n_rows() as i32).collect(),
        };
        let input = StepInput { step: &table.cells, out_rows: &out_rows, probes: want.probes };
        self.device.run_step(phase, &input)
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
    last_rows: Vec<i32>,
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

    /// Appends the tokens of a sequence from position `start` on.
    pub fn push(&mut self, seq: usize, start: usize, ids: &[i32]) {
        let row0 = self.n_rows() as i32;
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
        if !ids.is_empty() {
            self.last_rows.push(self.n_rows() as i32 - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_hold_runs() {
        let mut t = StepTable::new();
        t.push(1, 5, &[7, 8]);
        t.push(0, 0, &[9]);
        assert_eq!(t.cells(), [7, 5, 1, 5, 0, 7, 0, 0, 8, 6, 1, 5, 0, 7, 0, 0, 9, 0, 0, 0, 2, 1, 0, 0]);
        assert_eq!(t.last_rows, [1, 2]);
        let input = StepInput { step: t.cells(), out_rows: &t.last_rows, probes: false };
        let capacity = Capacity { n_seqs: 2, n_context: 7 };
        assert!(input.check(Phase::Prefill, 10, capacity).is_ok());
        assert!(input.check(Phase::Prefill, 9, capacity).is_err());
        assert!(input.check(Phase::Prefill, 10, Capacity { n_context: 6, ..capacity }).is_err());
        assert!(input.check(Phase::Prefill, 10, Capacity { n_seqs: 1, ..capacity }).is_err());
        assert!(StepInput { out_rows: &[3], ..input }.check(Phase::Prefill, 10, capacity).is_err());
    }
}
