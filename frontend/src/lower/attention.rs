//! Attention of a layer: queries, window rows, compressed rows, selection, output projection.

use super::{Lowerer, Made};
use crate::spec::{Activations, Index, IndexKeys, Role};
use dsc_ir::dtype::DType;
use dsc_ir::graph::{Shard, TypeError, ValueId};
use dsc_ir::op::{self, RopeAt, Select};

impl Lowerer<'_> {
    /// Lowers the attention sublayer of layer `l` on its normed input `u [T, d]`. Sources are made of `all`, which has
    /// every row of the step also where `u` has those of the tail alone.
    pub(super) fn attention(&mut self, l: u32, u: ValueId, all: ValueId) -> Made {
        let spec = self.spec;
        let a = &spec.attention;
        let tp = spec.parallel.tp;
        let (heads, dim, d) = (a.num_attention_heads / tp, a.head_dim, spec.hidden_size);
        let wq_a = self.dense("attn.wq_a", a.q_lora_rank, d, Shard::None);
        let q_a = self.linear(u, wq_a, "attn.q_a")?;
        let wkv = self.dense("attn.wkv", dim, d, Shard::None);
        let kv_a = self.linear(u, wkv, "attn.kv_a")?;
        let qr = self.norm(q_a, "attn.q_norm", "attn.qr")?;
        let wq_b = self.dense("attn.wq_b", heads * dim, a.q_lora_rank, shard_outer(tp));
        let mut q = self.float(op::Linear { heads: vec![heads] }, &[qr, wq_b], "attn.q_b")?;
        if a.per_head_q_norm {
            q = self.float(op::RmsNorm { eps: spec.rms_norm_eps }, &[q], "attn.q_normed")?;
        }
        let q = self.float(self.rope(false, RopeAt::Token), &[q, self.step], "attn.q")?;

        let kv = self.norm(kv_a, "attn.kv_norm", "attn.kv_normed")?;
        let kv = self.float(self.rope(false, RopeAt::Token), &[kv, self.step], "attn.kv")?;
        let rows = self.packed(kv, spec.kv_cache.window, "attn.window_rows")?;
        let dtype = self.graph.ty(rows).dtype;
        let swa = self.ring("attn.window", dtype, a.sliding_window, true, dim);

        if spec.is_kv_source(l) {
            self.with_all_rows(|b| b.compress(l, all))?;
        }
        if spec.is_index_source(l) {
            self.select(l, u, qr)?;
        }
        let mut operands = vec![q, rows, swa, self.step];
        if a.attn_sink {
            operands.push(self.weight("attn.attn_sink", DType::F32, &[heads], shard_outer(tp)));
        }
        let select = self.sources(l, &mut operands)?;
        let core = op::SparseAttention {
            window: a.sliding_window,
            ratio: if select == Select::None { 0 } else { spec.ratio(l) },
            scale: (dim as f32).powf(-0.5),
            sink: a.attn_sink,
            select,
            round_probs: spec.numerics.activations == Activations::Bf16,
        };
        let o = self.float(core, &operands, "attn.o_rotated")?;
        self.write(op::RingWrite {}, &[swa, rows, self.step])?;
        let o = self.float(self.rope(true, RopeAt::Token), &[o, self.step], "attn.o")?;
        let groups = a.o_groups / tp;
        let wo_a = self.dense("attn.wo_a", groups * a.o_lora_rank, heads * dim / groups.max(1), shard_outer(tp));
        let z = self.float(op::GroupLinear { groups }, &[o, wo_a], "attn.z")?;
        let wo_b = self.dense("attn.wo_b", d, groups * a.o_lora_rank, shard_inner(tp));
        let y = self.linear(z, wo_b, "attn.y")?;
        self.reduce(y, tp, "attn.y.reduced")
    }

    /// Compressed operands of the attention of layer `l`.
    fn sources(&mut self, l: u32, operands: &mut Vec<ValueId>) -> Result<Select, TypeError> {
        let state = |owner: u32| self.states.get(&("attn.main".to_string(), owner)).copied();
        let Some(main) = self.spec.owner(l).and_then(state) else { return Ok(Select::None) };
        operands.push(main);
        if self.spec.role(l) == Role::Hca {
            return Ok(Select::All);
        }
        match self.spec.selector(l).and_then(|s| self.selected.get(&s).copied()) {
            Some(idx) => {
                operands.push(self.of_tail(idx)?);
                Ok(Select::Listed)
            }
            None => Ok(Select::All),
        }
    }

    /// Entry values of a compressor, before rotation: pooled (or per token at ratio 1), normed.
    fn compressor(&mut self, l: u32, u: ValueId, prefix: &str, dim: u64) -> Made {
        let spec = self.spec;
        let (ratio, d) = (spec.ratio(l), spec.hidden_size);
        let overlap = spec.compress.overlap_ratios.contains(&ratio);
        let c = if overlap { 2 * dim } else { dim };
        let wkv = self.plain(&format!("{prefix}.wkv"), c, d);
        let pooled = if ratio == 1 {
            self.linear(u, wkv, &format!("{prefix}.kv"))?
        } else {
            let wgate = self.plain(&format!("{prefix}.wgate"), c, d);
            let linear = || op::Linear { heads: vec![0] };
            let v = self.one(linear(), &[u, wkv], &format!("{prefix}.v"), DType::F32)?;
            let s = self.one(linear(), &[u, wgate], &format!("{prefix}.s"), DType::F32)?;
            let keep = u64::from(if overlap { 2 * ratio } else { ratio }) - 1;
            let carry_v = self.ring(&format!("{prefix}.carry_v"), DType::F32, keep, false, c);
            let carry_s = self.ring(&format!("{prefix}.carry_s"), DType::F32, keep, false, c);
            let mut operands = vec![v, s, carry_v, carry_s, self.step];
            if spec.compress.position_bias {
                operands.push(self.vector(&format!("{prefix}.ape"), &[u64::from(ratio), c]));
            }
            let pool = op::Pool { ratio, overlap, bias: spec.compress.position_bias };
            let pooled = self.float(pool, &operands, &format!("{prefix}.pooled"))?;
            self.write(op::RingWrite {}, &[carry_v, v, self.step])?;
            self.write(op::RingWrite {}, &[carry_s, s, self.step])?;
            pooled
        };
        self.norm(pooled, &format!("{prefix}.norm"), &format!("{prefix}.latent"))
    }

    /// Writes the compressed rows of a source layer, and its index keys.
    fn compress(&mut self, l: u32, u: ValueId) -> Result<(), TypeError> {
        let spec = self.spec;
        let ratio = spec.ratio(l);
        let latent = self.compressor(l, u, "attn.compressor", spec.attention.head_dim)?;
        let row = self.float(self.rope(false, RopeAt::Entry), &[latent, self.step], "attn.main_rotated")?;
        let row = self.packed(row, spec.kv_cache.main, "attn.main_rows")?;
        let dtype = self.graph.ty(row).dtype;
        let main = self.pages("attn.main", dtype, ratio, spec.attention.head_dim);
        self.write(op::PageWrite { ratio }, &[main, row, self.step])?;
        if let Some(index) = &spec.index
            && spec.is_index_source(l)
        {
            self.index_keys(l, index, u, latent)?;
        }
        Ok(())
    }

    fn index_keys(&mut self, l: u32, index: &Index, u: ValueId, latent: ValueId) -> Result<(), TypeError> {
        let (ratio, dim) = (self.spec.ratio(l), index.index_head_dim);
        let key = match index.keys_from {
            IndexKeys::Latent => {
                let wk = self.plain("attn.indexer.wk", dim, self.spec.attention.head_dim);
                let key = self.linear(latent, wk, "attn.indexer.k")?;
                self.norm(key, "attn.indexer.k_norm", "attn.indexer.k_normed")?
            }
            IndexKeys::Hidden => self.compressor(l, u, "attn.indexer.compressor", dim)?,
        };
        let key = self.float(self.rope(false, RopeAt::Entry), &[key, self.step], "attn.indexer.k_rotated")?;
        let key = self.index_pack(index, key, "attn.indexer.k")?;
        let dtype = self.graph.ty(key).dtype;
        let pages = self.pages("attn.index_keys", dtype, ratio, dim);
        self.write(op::PageWrite { ratio }, &[pages, key, self.step])
    }

    fn index_pack(&mut self, index: &Index, x: ValueId, name: &str) -> Made {
        let x = if index.hadamard { self.float(op::Hadamard {}, &[x], &format!("{name}_mixed"))? } else { x };
        self.packed(x, self.spec.kv_cache.index, &format!("{name}_rows"))
    }

    /// Scores and selects entries of the owner's rows.
    fn select(&mut self, l: u32, u: ValueId, qr: ValueId) -> Result<(), TypeError> {
        let spec = self.spec;
        let (Some(index), Some(owner)) = (&spec.index, spec.owner(l)) else { return Ok(()) };
        let Some(keys) = self.states.get(&("attn.index_keys".to_string(), owner)).copied() else { return Ok(()) };
        let (n, dim, ratio) = (index.index_n_heads, index.index_head_dim, spec.ratio(l));
        let wq = self.dense("attn.indexer.wq_b", n * dim, spec.attention.q_lora_rank, Shard::None);
        let q = self.float(op::Linear { heads: vec![n] }, &[qr, wq], "attn.indexer.q_b")?;
        let q = self.float(self.rope(false, RopeAt::Token), &[q, self.step], "attn.indexer.q_rotated")?;
        let q = self.index_pack(index, q, "attn.indexer.q")?;
        let proj = self.plain("attn.indexer.weights_proj", n, spec.hidden_size);
        let w = self.linear(u, proj, "attn.indexer.w")?;
        let candidates = index.candidates.as_ref();
        let blocks = self.blocks.filter(|_| candidates.is_some_and(|c| l > c.candidate_source_layer_id));
        let blocks = blocks.map(|v| self.of_tail(v)).transpose()?;
        let block = match (blocks, candidates) {
            (Some(_), Some(c)) => c.candidate_block_size,
            _ => 0,
        };
        let scale = (dim as f32).powf(-0.5) * (n as f32).powf(-0.5);
        let mut operands = vec![q, w, keys, self.step];
        operands.extend(blocks);
        let scores = self.one(op::IndexScores { ratio, block, scale }, &operands, "attn.indexer.scores", DType::F32)?;
        let mut operands = vec![scores, self.step];
        operands.extend(blocks);
        let top = op::TopK { k: index.index_topk, ratio, block };
        let idx = self.one(top, &operands, "attn.topk", DType::I32)?;
        self.probe("topk", idx);
        self.selected.insert(l, idx);
        if let Some(c) = candidates.filter(|c| c.candidate_source_layer_id == l) {
            let pick = op::CandidateBlocks { ratio, block: c.candidate_block_size, keep: c.candidate_topk_blocks };
            self.blocks = Some(self.one(pick, &[scores, self.step], "attn.candidates", DType::I32)?);
        }
        Ok(())
    }
}

/// Split along the outer axis over `n` ranks.
pub(super) fn shard_outer(n: u64) -> Shard {
    if n > 1 { Shard::Outer(n) } else { Shard::None }
}

/// Split along the inner axis over `n` ranks.
pub(super) fn shard_inner(n: u64) -> Shard {
    if n > 1 { Shard::Inner(n) } else { Shard::None }
}
