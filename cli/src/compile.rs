//! From a checked spec to schedules and bundle input: the calls every subcommand shares.

use dsc_frontend::lower::{self, Lowered};
use dsc_frontend::spec::{DecoderRows, LinearInputs, Spec};
use dsc_ir::graph::TypeError;
use dsc_ir::manifest;
use dsc_ir::schedule::{Phase, Schedule};
use dsc_ir::target::Target;
use dsc_passes::explain::{self, LayerFacts, PhaseFacts};
use dsc_passes::pipeline::{self, Compiled, Config, Dump, Select};
use dsc_passes::remark::Remark;
use dsc_passes::{Numerics, Probed};
use indexmap::IndexMap;
use rayon::prelude::*;

/// A lowered spec, ready for the passes.
pub struct Model {
    /// The spec.
    pub spec: Spec,
    /// Its op graph.
    pub lowered: Lowered,
    /// The op graph of prefill, where it is another.
    prefill: Option<Lowered>,
}

impl Model {
    /// Lowers a spec.
    ///
    /// # Errors
    /// A defect of dsc: a checked spec always lowers.
    pub fn new(spec: &Spec) -> Result<Model, TypeError> {
        let prefill = match spec.prefill.decoder_rows {
            DecoderRows::All => None,
            DecoderRows::Tail => Some(lower::lower(spec, Phase::Prefill)?),
        };
        Ok(Model { spec: spec.clone(), lowered: lower::lower(spec, Phase::Decode)?, prefill })
    }

    /// Rows of each prompt that prefill replays through the layers after the last source; none where all go through.
    pub fn tail(&self) -> Option<u64> {
        self.prefill.as_ref().map(|_| self.spec.attention.sliding_window)
    }

    /// The op graph of a phase.
    pub fn lowered(&self, phase: Phase) -> &Lowered {
        match (phase, &self.prefill) {
            (Phase::Prefill, Some(prefill)) => prefill,
            _ => &self.lowered,
        }
    }

    /// Rounding switches for the passes.
    pub fn numerics(&self) -> Numerics {
        let n = &self.spec.numerics;
        Numerics {
            linear_inputs_fp8: n.linear_inputs == LinearInputs::Fp8,
            wo_a_fp8: n.wo_a_input == LinearInputs::Fp8,
        }
    }

    /// Values that callers may ask for.
    pub fn probes(&self, phase: Phase) -> Vec<Probed> {
        let probe = |(name, layer, value): &(String, Option<u32>, _)| Probed {
            name: name.clone(),
            layer: *layer,
            value: *value,
        };
        self.lowered(phase).probes.iter().map(probe).collect()
    }

    /// Runs the passes for one phase.
    ///
    /// # Errors
    /// A defect of dsc.
    pub fn compile(
        &self,
        phase: Phase,
        target: &Target,
        select: &Select,
        dump: Option<&mut dyn FnMut(Dump)>,
    ) -> Result<Compiled, TypeError> {
        let config = Config { phase, target, numerics: self.numerics(), select: select.clone() };
        pipeline::run(&self.lowered(phase).graph, &self.probes(phase), &config, dump)
    }

    /// Role and ratio of each layer.
    pub fn layers(&self) -> Vec<LayerFacts> {
        let facts =
            |(role, ratio): &(dsc_frontend::spec::Role, u32)| LayerFacts { role: role.name().into(), ratio: *ratio };
        self.lowered.layers.iter().map(facts).collect()
    }

    /// Facts for the manifest.
    pub fn manifest_model(&self) -> manifest::Model {
        let s = &self.spec;
        let engram = s.engram.as_ref().map(|e| {
            let tables = dsc_frontend::engram::tables(e);
            manifest::EngramInfo {
                layers: e.engram_layer_ids.clone(),
                max_ngram: e.engram_max_ngram_size.into(),
                heads: e.engram_n_heads.into(),
                compressed_vocab_size: e.engram_compressed_vocab_size,
                pad_token_id: e.engram_pad_token_id,
                multipliers: tables.iter().flat_map(|t| t.multipliers.iter().copied()).collect(),
                primes: tables.iter().flat_map(|t| t.primes.iter().copied()).collect(),
            }
        });
        manifest::Model {
            name: s.name.clone(),
            vocab_size: s.vocab_size,
            num_hidden_layers: s.num_hidden_layers,
            max_position_embeddings: s.max_position_embeddings,
            tp: s.parallel.tp,
            ep: s.parallel.ep,
            prefill_tail: self.tail(),
            engram,
        }
    }
}

/// One compiled phase.
pub struct Scheduled {
    /// Phase.
    pub phase: Phase,
    /// Its schedule.
    pub schedule: Schedule,
    /// Decisions of the passes.
    pub remarks: Vec<Remark>,
}

/// Compiles phases for one target, at once.
///
/// # Errors
/// A defect of dsc.
pub fn phases(model: &Model, phases: &[Phase], target: &Target, select: &Select) -> Result<Vec<Scheduled>, TypeError> {
    let one = |phase: &Phase| {
        let Compiled { schedule, remarks } = model.compile(*phase, target, select, None)?;
        Ok(Scheduled { phase: *phase, schedule, remarks })
    };
    phases.par_iter().map(one).collect()
}

/// Figures of compiled phases at a batch and a context, by phase.
pub fn facts(model: &Model, phases: &[Scheduled], batch: u64, context: u64) -> IndexMap<String, PhaseFacts> {
    let layers = model.layers();
    let one = |s: &Scheduled| {
        let env = explain::env(s.phase, batch, context, model.tail());
        (s.phase.name().to_owned(), explain::phase_facts(&s.schedule, &layers, &env))
    };
    phases.iter().map(one).collect()
}
