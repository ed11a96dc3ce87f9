//! From a checked spec to the op graph of one step, the same for every phase unless prefill replays only the end of
//! each prompt through the layers after the last source.
//!
//! The whole model is one graph: a fusion may then cross layers, and equal layers meet again when kernels are
//! told apart by their content. What is inside: embedding, n-gram memory, every layer's attention and feed-forward
//! sublayer with their residual, final norm and head. Linear operands are not quantised here (a pass does that, by
//! `numerics`); cache rows are.

mod attention;
mod ffn;
mod residual;
mod tail;

use crate::engram;
use crate::spec::{Activations, Caches, DecoderRows, Residual, Role, Spec};
use dsc_ir::dtype::{DType, RowFormat, WeightFormat};
use dsc_ir::expr::{Expr, Sym};
use dsc_ir::graph::{Def, Graph, Shard, StateKind, TensorType, TypeError, ValueId, WeightSource};
use dsc_ir::op::{self, Op};
use dsc_ir::schedule::{MAX_DECODE_ROWS, Phase};
use std::collections::BTreeMap;

/// A lowered model.
#[derive(Debug, Clone, PartialEq)]
pub struct Lowered {
    /// One step of the model.
    pub graph: Graph,
    /// Values of interest: name, layer, value.
    pub probes: Vec<(String, Option<u32>, ValueId)>,
    /// Role and ratio of each layer.
    pub layers: Vec<(Role, u32)>,
}

/// Lowers a checked spec for a phase. Weights and states are the same, in the same order, in every phase.
///
/// # Errors
/// An ill-typed op, which a checked spec never gives: a defect of dsc.
pub fn lower(spec: &Spec, phase: Phase) -> Result<Lowered, TypeError> {
    let mut b = Lowerer::new(spec);
    if phase == Phase::Prefill && spec.prefill.decoder_rows == DecoderRows::Tail {
        b.narrow_at = spec.last_source();
    }
    b.model()?;
    let layers = (0..spec.num_hidden_layers).map(|l| (spec.role(l), spec.ratio(l))).collect();
    Ok(Lowered { graph: b.graph, probes: b.probes, layers })
}

/// The state of a lowering.
pub(crate) struct Lowerer<'a> {
    spec: &'a Spec,
    graph: Graph,
    probes: Vec<(String, Option<u32>, ValueId)>,
    /// Step table of the rows that go on.
    step: ValueId,
    /// Step table of all rows.
    all_step: ValueId,
    out_rows: ValueId,
    /// Layer from which on only the tail's rows go on, once its sources are written.
    narrow_at: Option<u32>,
    /// Rows of the tail among all, once the graph is narrowed.
    tail_rows: Option<ValueId>,
    /// Values of all rows that were narrowed to the tail's.
    taken: BTreeMap<ValueId, ValueId>,
    weights: BTreeMap<(String, Option<u32>), ValueId>,
    states: BTreeMap<(String, u32), ValueId>,
    /// Selection of each index source.
    selected: BTreeMap<u32, ValueId>,
    /// Candidate blocks, once their source is lowered.
    blocks: Option<ValueId>,
    /// Bucket rows of the n-gram memories.
    engram_rows: Option<ValueId>,
    layer: Option<u32>,
}

type Made = Result<ValueId, TypeError>;

impl<'a> Lowerer<'a> {
    fn new(spec: &'a Spec) -> Lowerer<'a> {
        let mut graph = Graph::new(&spec.name);
        let step_type = TensorType::new(DType::I32, [Expr::tokens(), op::step::COLUMNS.into()]);
        let step = graph.add_value("step", None, step_type, Def::Input);
        let rows_type = TensorType::new(DType::I32, [Expr::Sym(Sym::OutRows)]);
        let out_rows = graph.add_value("out_rows", None, rows_type, Def::Input);
        Lowerer {
            spec,
            graph,
            probes: Vec::new(),
            step,
            all_step: step,
            out_rows,
            narrow_at: None,
            tail_rows: None,
            taken: BTreeMap::new(),
            weights: BTreeMap::new(),
            states: BTreeMap::new(),
            selected: BTreeMap::new(),
            blocks: None,
            engram_rows: None,
            layer: None,
        }
    }

    /// Dtype of values between operations.
    fn act(&self) -> DType {
        match self.spec.numerics.activations {
            Activations::F32 => DType::F32,
            Activations::Bf16 => DType::Bf16,
        }
    }

    /// Dtype of cached rows of a format.
    fn cached(&self, format: RowFormat) -> DType {
        match (self.spec.numerics.caches, format) {
            (Caches::Exact, _) => self.act(),
            (Caches::Packed, RowFormat::F32) => DType::F32,
            (Caches::Packed, RowFormat::Bf16) => DType::Bf16,
            (Caches::Packed, format) => DType::Packed(format),
        }
    }

    /// Adds an op with one result.
    fn one(&mut self, op: impl Into<Op>, inputs: &[ValueId], name: &str, dtype: DType) -> Made {
        let layer = self.layer;
        Ok(self.graph.add(op, layer, inputs, &[(name, dtype)])?[0])
    }

    /// Adds an op with one result of the activation dtype.
    fn float(&mut self, op: impl Into<Op>, inputs: &[ValueId], name: &str) -> Made {
        let act = self.act();
        self.one(op, inputs, name, act)
    }

    /// Adds an op without result.
    fn write(&mut self, op: impl Into<Op>, inputs: &[ValueId]) -> Result<(), TypeError> {
        let layer = self.layer;
        self.graph.add(op, layer, inputs, &[]).map(|_| ())
    }

    fn weight(&mut self, name: &str, dtype: DType, shape: &[u64], shard: Shard) -> ValueId {
        let key = (name.to_string(), self.layer);
        if let Some(v) = self.weights.get(&key) {
            return *v;
        }
        let tensor = match self.layer {
            Some(l) => format!("layers.{l}.{name}"),
            None => name.to_string(),
        };
        let ty = TensorType::new(dtype, shape.iter().map(|s| Expr::Const(*s)));
        let v = self.graph.add_value(name, self.layer, ty, Def::Weight(WeightSource { tensor, shard }));
        self.weights.insert(key, v);
        v
    }

    /// A matrix `[n, k]` in the format of dense weights.
    fn dense(&mut self, name: &str, n: u64, k: u64, shard: Shard) -> ValueId {
        self.weight(name, DType::Weight(self.spec.weights.dense), &[n, k], shard)
    }

    /// A matrix `[n, k]` in the format of unquantised weights.
    fn plain(&mut self, name: &str, n: u64, k: u64) -> ValueId {
        self.weight(name, DType::Weight(self.spec.weights.other), &[n, k], Shard::None)
    }

    /// A vector or small table, read as f32.
    fn vector(&mut self, name: &str, shape: &[u64]) -> ValueId {
        self.weight(name, DType::F32, shape, Shard::None)
    }

    fn linear(&mut self, x: ValueId, w: ValueId, name: &str) -> Made {
        self.float(op::Linear { heads: vec![0] }, &[x, w], name)
    }

    fn norm(&mut self, x: ValueId, weight: &str, name: &str) -> Made {
        let c = self.graph.ty(x).channels();
        let w = self.vector(weight, &[c]);
        self.float(op::RmsNorm { eps: self.spec.rms_norm_eps }, &[x, w], name)
    }

    /// A ring that keeps `keep` positions before a step, of which a row itself may be one (`own`).
    fn ring(&mut self, name: &str, dtype: DType, keep: u64, own: bool, channels: u64) -> ValueId {
        let slots = keep + MAX_DECODE_ROWS - u64::from(own);
        let ty = TensorType::new(dtype, [Expr::Sym(Sym::Seqs), slots.into(), channels.into()]);
        self.graph.add_value(name, self.layer, ty, Def::State(StateKind::Ring { keep }))
    }

    fn pages(&mut self, name: &str, dtype: DType, ratio: u32, channels: u64) -> ValueId {
        let entries = Expr::Sym(Sym::Context).ceil_div(u64::from(ratio));
        let ty = TensorType::new(dtype, [Expr::Sym(Sym::Seqs), entries, channels.into()]);
        let v = self.graph.add_value(name, self.layer, ty, Def::State(StateKind::Pages { ratio }));
        if let Some(l) = self.layer {
            self.states.insert((name.to_string(), l), v);
        }
        v
    }

    /// A rotation with the frequencies of the current layer.
    fn rope(&self, inverse: bool, at: op::RopeAt) -> op::Rope {
        let ratio = self.layer.map_or(0, |l| self.spec.ratio(l));
        let yarn = self.spec.rope.yarn.as_ref().filter(|_| ratio > 0);
        op::Rope {
            rotary: self.spec.attention.qk_rope_head_dim,
            inverse,
            at,
            ratio: if at == op::RopeAt::Entry { ratio } else { 1 },
            base: if ratio > 0 { self.spec.rope.compress_rope_theta } else { self.spec.rope.rope_theta },
            factor: yarn.map_or(0.0, |y| y.factor),
            original: yarn.map_or(0, |y| y.original_max_position_embeddings),
            beta_fast: yarn.map_or(0.0, |y| y.beta_fast),
            beta_slow: yarn.map_or(0.0, |y| y.beta_slow),
        }
    }

    /// Rows as a cache holds them.
    fn packed(&mut self, x: ValueId, format: RowFormat, name: &str) -> Made {
        match self.cached(format) {
            DType::Packed(format) => self.one(op::Quantize { format }, &[x], name, DType::Packed(format)),
            _ => Ok(x),
        }
    }

    fn reduce(&mut self, y: ValueId, ranks: u64, name: &str) -> Made {
        if ranks <= 1 {
            return Ok(y);
        }
        self.float(op::AllReduce { ranks }, &[y], name)
    }

    fn model(&mut self) -> Result<(), TypeError> {
        let spec = self.spec;
        self.engram_hash()?;
        let table = self.plain("embed", spec.vocab_size, spec.hidden_size);
        let embedded = self.float(op::Embed {}, &[table, self.step], "embedded")?;
        let mut stream = self.stream_start(embedded)?;
        for l in 0..spec.num_hidden_layers {
            self.layer = Some(l);
            self.engram_inject(&mut stream)?;
            let mut site = self.enter(&mut stream, "attn")?;
            let input = site.input;
            if self.narrow_at == Some(l) {
                self.narrow(&mut stream, &mut site)?;
            }
            let y = self.attention(l, site.input, input)?;
            self.leave(&mut stream, site, y)?;
            let site = self.enter(&mut stream, "ffn")?;
            let y = self.ffn(l, site.input)?;
            if l + 1 == spec.num_hidden_layers {
                self.layer = None;
                self.take_rows(&mut stream, site, y)?;
            } else {
                self.leave(&mut stream, site, y)?;
            }
        }
        self.layer = None;
        let h = self.stream_end(stream)?;
        let h = self.norm(h, "norm", "final")?;
        let head = self.plain("head", spec.vocab_size, spec.hidden_size);
        let logits = self.one(op::Linear { heads: vec![0] }, &[h, head], "logits", DType::F32)?;
        self.graph.results.push(logits);
        self.probe("logits", logits);
        Ok(())
    }

    fn probe(&mut self, name: &str, v: ValueId) {
        self.probes.push((name.to_string(), self.layer, v));
    }

    fn engram_hash(&mut self) -> Result<(), TypeError> {
        let Some(e) = &self.spec.engram else { return Ok(()) };
        let tables = engram::tables(e);
        let history = self.ring("engram.history", DType::I32, u64::from(e.engram_max_ngram_size) - 1, false, 1);
        let source = WeightSource { tensor: "@engram.token_map".into(), shard: Shard::None };
        let map_type = TensorType::new(DType::I32, [self.spec.vocab_size.into()]);
        let map = self.graph.add_value("engram.token_map", None, map_type, Def::Weight(source));
        let hash = op::EngramHash {
            layers: e.engram_layer_ids.len() as u64,
            max_ngram: e.engram_max_ngram_size.into(),
            heads: e.engram_n_heads.into(),
            pad_token: e.engram_pad_token_id,
            multipliers: tables.iter().flat_map(|t| t.multipliers.iter().copied()).collect(),
            primes: tables.iter().flat_map(|t| t.primes.iter().copied()).collect(),
        };
        let outputs = [("engram.rows", DType::I32), ("engram.ids", DType::I32)];
        let made = self.graph.add(hash, None, &[map, self.step, history], &outputs)?;
        self.write(op::RingWrite {}, &[history, made[1], self.step])?;
        self.probe("engram_rows", made[0]);
        self.engram_rows = Some(made[0]);
        Ok(())
    }

    fn engram_inject(&mut self, stream: &mut residual::Stream) -> Result<(), TypeError> {
        let (Some(e), Some(l), Some(rows)) = (&self.spec.engram, self.layer, self.engram_rows) else { return Ok(()) };
        let Some(plane) = e.engram_layer_ids.iter().position(|x| *x == l) else { return Ok(()) };
        let Residual::Mhc(m) = &self.spec.residual else { return Ok(()) };
        let (n, d) = (m.hc_mult, self.spec.hidden_size);
        let table_rows = e.engram_num_embeddings.get(plane).copied().unwrap_or(0);
        let dtype = match self.spec.weights.engram {
            RowFormat::F32 => DType::F32,
            RowFormat::Bf16 => DType::Bf16,
            format => DType::Packed(format),
        };
        let table = self.weight("engram.embed", dtype, &[table_rows, e.engram_head_dim], Shard::None);
        let rows = self.of_tail(rows)?;
        let memory = self.float(op::EngramGather { plane: plane as u64 }, &[table, rows], "engram.memory")?;
        let k = self.graph.ty(memory).channels();
        let wkv = self.dense("engram.wkv", (n + 1) * d, k, Shard::None);
        let kv = self.linear(memory, wkv, "engram.kv")?;
        let (qw, kw) = (self.vector("engram.q_weight", &[n, d]), self.vector("engram.k_weight", &[n, d]));
        let inject = op::EngramInject { eps: self.spec.rms_norm_eps };
        stream.x = self.float(inject, &[stream.x, kv, qw, kw, self.step], "engram.stream")?;
        Ok(())
    }
}

/// Format of a weight family that has no quantised form.
pub(crate) fn f32_matrix() -> DType {
    DType::Weight(WeightFormat::F32)
}
